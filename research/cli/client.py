"""`ajet client run`, `debug`, `wheel` and `env`.

`debug` is one play in the main thread, whose terminal a debugger can use. Connections and heartbeats are on another
thread, so the lease lives however long the agent stands still. It is an evaluation episode, given up at its end.
"""

import asyncio
import inspect
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from research.agents import request as agent_request
from research.agents.request import AgentArgument, AgentFiles, AgentRequest, RunOptions, TasksOption, check_ready
from research.agents.run import AgentResult, AgentRun, choose_place, job_status, perform
from research.cli.app import Json, answer, console, make_table, print_json, takes_options
from research.cli.episodes import episode_screen
from research.environments.install import load_environment, packages_of
from research.errors import BadInput
from research.installation.home import Home
from research.installation.servers import ServerConnection, connect_server
from research.isolation.client_image import build_wheel
from research.text import did_you_mean, parse_budget, warn
from sandboxes.spec import escape_control
from swarm.client import AsyncSwarmClient, ChatReply, Episode, SyncEpisode
from swarm.client.episode import WrongResult, parse_reward
from swarm.client.threads import background
from swarm.environments import Task
from swarm.environments.loading import load_playable
from swarm.environments.play import agent_of
from swarm.environments.processes import traceback_of
from swarm.environments.registry import add_folder, environments
from swarm.environments.user_code import Reward, is_async, load
from swarm.errors import EngineUnavailable, ServerFailed, SwarmError, Throttled, Unreachable
from swarm.wire import EVALUATION_STREAM

FAILED, LOST = 1, 3


class VerboseEpisode(Episode[Task]):
    """An episode whose calls go through the event loop in the background, and are shown."""

    def __init__(self, episode: Episode[Task]) -> None:
        super().__init__(episode._transport, episode.lease, episode.task)
        self._shown = 0
        self.calls = 0
        """Made with `chat`; those of an SDK are in the server's record alone."""

    async def chat(self, messages: Sequence[Mapping[str, Any]], *, agent: str = "", **params: Any) -> ChatReply:
        shown = {**params, "agent": agent} if agent else params
        self.calls += 1
        _say(f"call {self.calls}" + (f"   {shown!r:.200}" if shown else ""))
        fresh = messages[self._shown :] if len(messages) > self._shown else messages
        if len(fresh) < len(messages):
            _say(f"  ({len(messages) - len(fresh)} messages as before)")
        for message in fresh:
            _say(f"  {message.get('role', '?')}: {_content(message)}")
        self._shown = len(messages)
        began, call, loop = time.monotonic(), super().chat(messages, agent=agent, **params), background().loop
        if asyncio.get_running_loop() is loop:
            reply = await call
        else:
            reply = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))
        answer = _content(reply.raw["choices"][0]["message"])
        _say(f"  -> {answer}   [{reply.finish_reason}, {time.monotonic() - began:.2f} s]")
        return reply


def _say(text: str) -> None:
    typer.echo(escape_control(text))


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    said = content if isinstance(content, str) else "" if content is None else repr(content)
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    return said + "".join(f" [calls {call.get('name')}({call.get('arguments', '')})]" for call in calls)


@contextmanager
def _begin_episode(server: ServerConnection, task: Task) -> Iterator[tuple[VerboseEpisode, AsyncSwarmClient]]:
    bridge, client = background(), AsyncSwarmClient(server.url, server.token, owner="ajet client debug")

    async def keep_alive(episode: Episode[Task]) -> None:
        while True:
            with suppress(SwarmError):  # the next one may reach it; a lost lease is told to the agent's next call
                await episode.heartbeat()
            await asyncio.sleep(episode.lease.ttl_s / 3)

    try:
        # the server may just be updating its weights
        begun = bridge.run(client.begin(task, kind="eval", stream=EVALUATION_STREAM, wait_s=30.0))
        keeper = asyncio.run_coroutine_threadsafe(keep_alive(begun), bridge.loop)
        try:
            yield VerboseEpisode(begun), client
        finally:
            keeper.cancel()
            with suppress(SwarmError):  # it was fenced: then it is over anyway
                bridge.run(begun.abort("debugged"))
    finally:
        bridge.run(client.close())


def debug(
    agent: AgentArgument = None,
    task: Annotated[str | None, typer.Option(help="Id of the task that is played; the first when left out.")] = None,
    tasks: TasksOption = None,
    environment: Annotated[str | None, typer.Option(help="Whose task is played; the job's when left out.")] = None,
    reward: Annotated[str | None, typer.Option(help="FILE.py[:NAME] that judges the environment's own agent.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Address of a swarm server; its token is read from AJET_TOKEN.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every token that the server captured.")] = False,
) -> None:
    """Play one episode of an agent in this terminal: each call is shown, and a breakpoint stops here.

    Nothing of it is trained or counted: the episode is an evaluation's, and is given up at its end. Its lease is kept
    while you stand at a breakpoint, and the training goes on. The agent runs as a plain process, with your rights.

    Exit codes: 0 the play came to its end; 1 the agent raised, or returned what is no reward; 2 bad input; 3 the server
    is lost.

    Examples:
        ajet client debug agent.py
        ajet client debug agent.py --task q17 --tasks tasks.json
        ajet client debug --environment guess --reward my_reward.py
    """
    if agent is not None and reward is not None:
        raise BadInput("expected --reward with the environment's own agent; found it with another")
    home = Home.locate()
    at = connect_server(server, role="client", home=home)
    job = check_ready(at, train=False)
    environment = bring_environment(environment, home)
    whose, _, known = agent_request.select_tasks(environment, tasks, job, own_agent=agent is not None, evaluated=False)
    chosen = known[0] if task is None else next((each for each in known if each.id == task), None)
    if chosen is None:
        some = ", ".join(each.id for each in known[:5])
        raise BadInput(f"expected --task as the id of one of {len(known)} tasks ({some}, ...); found {task!r:.82}")
    files = AgentFiles.locate(agent) if agent is not None else None
    if reward is not None:
        files = AgentFiles.locate(reward, "reward")
    if whose is not None:
        sys.path[:0] = map(str, packages_of(whose, home.prepare(), warn))
    function, plain = _load_agent(files, whose, rewarded=reward is not None)
    _say(f"task {chosen.id}: {dict(chosen.data)!r:.500}")
    began, record = time.monotonic(), None
    try:
        with _begin_episode(at, chosen) as (episode, client):
            started = time.monotonic()
            result = function(SyncEpisode(background(), episode)) if plain else asyncio.run(_play(function, episode))
            seconds, (worth, success) = time.monotonic() - started, parse_reward(result)
            with suppress(SwarmError):
                record = background().run(client.episode(episode.id))
    except WrongResult as error:
        warn(str(error))
    except (Unreachable, EngineUnavailable, ServerFailed, Throttled) as error:
        warn(str(error))
        raise typer.Exit(LOST) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's code raises is what they look for
        if files is not None:
            sys.stderr.write(traceback_of(error, files.folder))
        warn(f"the agent raised {type(error).__name__} after {time.monotonic() - began:.2f} s: {error}")
    else:
        if math.isfinite(worth):
            calls = episode.calls if record is None else record.calls
            if record is not None and (full or calls > episode.calls):  # of an SDK: nothing of it was shown yet
                console().print(episode_screen(record, full=full))
            told = "" if success is None else ", solved" if success else ", not solved"
            _say(f"reward         {worth:g}{told}")
            _say(f"calls          {calls}" + ("; with none, nothing could be trained of it" if not calls else ""))
            _say(f"time           {seconds:.2f} s")
            _say("the episode was given up: nothing of it is trained or counted")
            return
        warn(f"expected a finite reward, found {worth!r}")
    raise typer.Exit(FAILED)


def _load_agent(files: AgentFiles | None, whose: str | None, *, rewarded: bool) -> tuple[Callable[..., Any], bool]:
    if files is not None and not rewarded:
        add = "install it here: `ajet client debug` runs in this Python"
        function = load(files.locator_in(files.folder), "agent", takes="episode", add_package=add)
        return function, not is_async(function)
    assert whose is not None  # without an agent of one's own the tasks are an environment's
    judge = Reward.load(files.locator_in(files.folder)) if files is not None else None
    return agent_of(load_playable(whose), judge), False


async def _play(function: Callable[..., Any], episode: VerboseEpisode) -> Any:
    found = function(episode)
    return await found if inspect.isawaitable(found) else found


def bring_environment(environment: str | None, home: Home) -> str | None:
    """Return the name of the environment that is asked for, which is brought where it is not here yet."""
    add_folder(home.environments)
    if environment is None or environment in environments():
        return environment
    return load_environment(environment, None, home.prepare(), warn).name


def show(ended: AgentResult) -> None:
    if ended.result is not None:
        request, result = ended.run.request, ended.result
        if request.asked.evaluations:
            several = result.get("evaluations")
            plays = [play for play in several if isinstance(play, dict)] if isinstance(several, list) else []
            lines = list(map(_format_evaluation, plays))
            text = "\n".join(lines) or "evaluated      nothing: training waited for no evaluation"
        elif not request.asked.evaluates:
            drops = result.get("dropped")
            counts = sorted(drops.items()) if isinstance(drops, dict) else []
            lost = ", ".join(f"{count} by {reason}" for reason, count in counts) or "none"
            text = f"trained        {result.get('episodes')} episodes, {_format_means(result)}; dropped: {lost}"
        else:
            text = _format_evaluation(result)
        console().print(escape_control(text))  # the file is the agent's, and so are its words
    if ended.restarts:
        console().print(f"restarts       {len(ended.restarts)}; what is told is of the last client")
    if ended.reloads:
        console().print(f"reloads        {ended.reloads}; what is told is of the last code")
    if ended.status is not None and ended.result is not None:
        console().print(f"the job        {job_status(ended.status)}")
    for reason, count in sorted(ended.refused.items()):
        console().print(f"refused        {count} times: {reason.removeprefix('refused: ')}")
    if ended.egress_log is not None:
        console().print(f"connections    {ended.egress_log}")


def report_end(ended: AgentResult) -> int:
    """Return the exit code; write to stderr why it failed, unless the agent's process printed that itself."""
    reason, code = ended.exit.reason, ended.exit.code
    if ended.unfinished:
        warn("the agent ended before the job was finished; run it again, and it goes on where its stream stands")
    if reason == "finished":
        return FAILED if ended.unfinished else 0
    if reason == "error" and code in (2, LOST):  # it printed the reason itself: bad input, or a server that is lost
        return code
    limits, seconds = ended.run.place.limits, ended.run.request.time_limit_s
    reasons = {
        "out_of_memory": f"the agent used up its memory of {limits.memory_bytes >> 20} MiB; give it more with --memory",
        "timeout": f"the time limit of {seconds:g} s is over; give it more with --time-limit",
        "error": f"the agent's process ended with exit code {code}; its last words are above",
        "stopped": "the agent was stopped",
        "killed": "the agent was ended from outside",
        "lost": "the agent's container is gone, and nobody saw how it ended",
    }
    warn(reasons[reason])
    return FAILED


def _format_evaluation(outcomes: Mapping[str, Any]) -> str:
    found = outcomes.get("episodes")
    episodes = [episode for episode in found if isinstance(episode, dict)] if isinstance(found, list) else []
    said = {what: [episode.get(what) for episode in episodes] for what in ("reward", "success")}
    means = {f"{what}_mean": None if set(values) <= {None} else _mean(values) for what, values in said.items()}
    said_of = [str(episode["failed"]) for episode in episodes if episode.get("failed")]
    failed = Counter(found[0] if (found := re.match(r"\w{1,40}", text)) else "an error" for text in said_of)
    why = ", ".join(f"{count} by {name}" for name, count in failed.most_common(3))
    lost = f"; failed by the agent, which counts as not solved: {why}" if why else ""
    version = outcomes.get("policy_version")
    return f"evaluated      {len(episodes)} episodes, {_format_means(means)}; policy version {version}{lost}"


def _mean(values: Iterable[Any]) -> float:
    """Return the mean of what is a number: the file is the agent's, and may hold anything."""
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return sum(numbers) / max(1, len(numbers))


def _format_means(summary: Mapping[str, Any]) -> str:
    said = f"mean reward {_mean([summary.get('reward_mean')]):.3f}"
    success = summary.get("success_mean")
    return said if success is None else f"{said}, solved {_mean([success]):.3f}"


PRESETS: Final = Path(__file__).with_name("presets")
"""An agent.py for each, NAME.txt; the first line of its docstring ends with what its job needs."""


def env(
    name: Annotated[str | None, typer.Argument(help="SDK, framework or command line; listed when left out.")] = None,
    json: Json = False,
) -> None:
    """Print an agent.py by which an SDK, a framework or a command line plays; without a name list them.

    Examples:
        ajet client env
        ajet client env langgraph > my_agent/agent.py
    """
    files = {path.stem: path.read_text(encoding="utf-8") for path in PRESETS.glob("*.txt")}
    presets = {}
    for each in sorted(files):
        about, _, needs = files[each].partition("\n")[0].removeprefix('"""').partition(" Its job needs ")
        presets[each] = {"name": each, "about": about, "needs": needs.rstrip(".")}
    if name is None:
        rows = (list(preset.values()) for preset in presets.values())
        answer(json, list(presets.values()), make_table(("name", "about", "its job needs"), rows, wraps=("about",)))
        return
    chosen = {"claude-code": "claude"}.get(name, name)
    if chosen not in presets:
        raise BadInput(f"expected one of {', '.join(presets)}; found {name[:60]!r}{did_you_mean(name, presets)}")
    if json:
        print_json({**presets[chosen], "file": files[chosen]})
    else:
        sys.stdout.write(files[chosen])


def wheel(
    folder: Annotated[Path, typer.Argument(help="Where it is written.")] = Path("dist"), json: Json = False
) -> None:
    """Write the light client as a wheel, for machines on which agents play: it needs aiohttp and pydantic alone.

    Examples:
        ajet client wheel dist
        scp dist/ajet_client-*.whl player: && ssh player pip install ./ajet_client-*.whl
    """
    try:
        made = build_wheel(folder)
    except OSError as error:
        raise BadInput(
            f"expected a folder that can be written to; found {folder}: {error.strerror or error}"
        ) from error
    size = made.stat().st_size
    answer(json, {"wheel": str(made), "bytes": size}, f"wrote {made} ({size:,} bytes); there: pip install {made.name}")


app = typer.Typer(no_args_is_help=True)
app.command()(debug)
app.command()(wheel)
app.command()(env)


@app.command()
@takes_options(RunOptions)
def run(
    asked: RunOptions,
    json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, the rest on stderr.")] = False,
) -> None:
    """Run an agent on a swarm server until the job is finished: in a container, or as a plain process.

    The agent is a function of an episode that returns a reward: docs/agents.md. Without --server, the server of
    AJET_SERVER is used, else the one that `ajet swarm start` started here. Ctrl-C stops it cleanly.

    Exit codes: 0 done; 1 it was ended by a limit or from outside; 2 bad input, or an agent that cannot be played; 3 the
    server is lost or refuses, or the agent fails again and again; 130 stopped by Ctrl-C.

    Examples:
        ajet client run --environment guess
        ajet client run --environment guess --reward my_reward.py
        ajet client run --environment market --stream market
        ajet client run my_agent/ --tasks tasks.json --requirements my_agent/requirements.txt
        ajet client run agent.py:play --allow api.example.com:443 --memory 2g --time-limit 2h
        ajet client run agent.py --eval --episodes 100 --json
        ajet client run agent.py --evaluations
        ajet client run agent.py --restart
        ajet client run agent.py --reload --sandbox process
    """
    asked.check()
    files, judge = asked.files()
    seconds, home = parse_budget(asked.time_limit), Home.locate()
    at = connect_server(asked.server, role="client", home=home)
    job = check_ready(at, train=not asked.evaluate, stream=None if asked.evaluates else asked.stream)
    if asked.evaluations:
        agent_request.check_evaluated(job)
    whose, split, chosen = agent_request.select_tasks(
        bring_environment(asked.environment, home), asked.tasks, job, own_agent=files is not None,
        evaluated=asked.evaluates,
    )  # fmt: skip
    knobs = job.environment_args if whose == job.environment else {}
    request = AgentRequest(asked, whose, chosen, split, files, judge, seconds, knobs)
    place = choose_place(asked, home.prepare(), os.environ, warn, whose)
    try:
        ended = asyncio.run(perform(AgentRun(request, at, place)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        warn("stopped; what was being played is given up")
        raise typer.Exit(130) from None
    if json:
        print_json(ended.to_json())
    else:
        show(ended)
    raise typer.Exit(report_end(ended))
