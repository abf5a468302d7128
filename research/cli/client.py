"""`ajet client run`, `debug`, `wheel` and `env`."""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import RenderableType

from research.agents.debugger import Debugger, DebugResult
from research.agents.request import (
    AgentFiles,
    AgentRequest,
    Confinement,
    check_evaluated,
    check_ready,
    parse_memory,
    parse_stream,
    select_tasks,
)
from research.agents.run import AgentPlacement, AgentResult, AgentRun, job_status
from research.agents.supervisor import perform
from research.cli.agent_files import PRESETS, CommandLine, agent_file
from research.cli.app import Json, answer, console, print_json, takes_options
from research.cli.episodes import episode_screen
from research.environments.install import load_environment, packages_of
from research.errors import BadInput
from research.installation.home import Home
from research.installation.servers import Server, connect_server
from research.isolation.client_image import build_wheel
from research.terminal import warn
from research.text import parse_budget
from sandboxes.gateway.egress import Destination
from sandboxes.spec import Limits, escape_control
from swarm.client.async_client import EPISODE_TIMEOUT_S
from swarm.client.episode import WrongResult, parse_reward
from swarm.client.threads import Bridge
from swarm.environments import Task
from swarm.environments.loading import load_playable
from swarm.environments.play import agent_of
from swarm.environments.processes import traceback_of
from swarm.environments.registry import add_folder, environments
from swarm.environments.user_code import Reward as EpisodeReward
from swarm.environments.user_code import is_async, load
from swarm.errors import EngineUnavailable, ServerFailed, Throttled, Unreachable

AGENT_FAILED = 1
EXPLAINED = (2, 3)
"""Exit codes of an agent's process that printed the reason itself: bad input, and a server that is lost."""


def exit_code(ended: AgentResult) -> int:
    if ended.exit.reason == "finished":
        return AGENT_FAILED if ended.unfinished else 0
    return ended.exit.code or AGENT_FAILED if _is_explained(ended) else AGENT_FAILED


def show(ended: AgentResult) -> None:
    if ended.result is not None:
        request, result = ended.run.request, ended.result
        if request.during:
            several = result.get("evaluations")
            plays = [play for play in several if isinstance(play, dict)] if isinstance(several, list) else []
            lines = list(map(_format_evaluation, plays))
            text = "\n".join(lines) or "evaluated      nothing: training waited for no evaluation"
        elif request.action == "play":
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


def report_failure(ended: AgentResult) -> None:
    """Write to stderr why it failed, unless the process printed that itself."""
    if ended.exit.reason != "finished" and not _is_explained(ended):
        limits, seconds = ended.run.place.given.limits, ended.run.request.time_limit_s
        reasons = {
            "out_of_memory": f"the agent used up its memory of {limits.memory_bytes >> 20} MiB; give it more with "
            "--memory",
            "timeout": f"the time limit of {seconds:g} s is over; give it more with --time-limit",
            "error": f"the agent's process ended with exit code {ended.exit.code}; its last words are above",
            "stopped": "the agent was stopped",
            "killed": "the agent was ended from outside",
            "lost": "the agent's container is gone, and nobody saw how it ended",
        }
        warn(reasons[ended.exit.reason])
    if ended.unfinished:
        warn("the agent ended before the job was finished; run it again, and it goes on where its stream stands")


def _is_explained(ended: AgentResult) -> bool:
    return ended.exit.reason == "error" and ended.exit.code in EXPLAINED


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


Agent = Annotated[
    str | None,
    typer.Argument(help="FILE.py[:NAME] or a folder with agent.py; the environment's own agent when left out."),
]
Tasks = Annotated[Path | None, typer.Option(help='Tasks of your own: JSON, [{"id": ..., "data": {...}}].')]
FAILED, LOST = 1, 3
_HOW_TO_ADD = "install it here: `ajet client debug` runs in this Python"


def debug(
    agent: Agent = None,
    task: Annotated[
        str | None, typer.Option(help="Id of the task that is played; the first one when left out.")
    ] = None,
    tasks: Tasks = None,
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
    environment = _bring(environment, home)
    whose, _, known = select_tasks(environment, tasks, job, own_agent=agent is not None, evaluated=False)
    chosen = _find_task(known, task)
    files = AgentFiles.locate(agent) if agent is not None else None
    if reward is not None:
        files = AgentFiles.locate(reward, "reward")
    if whose is not None:
        sys.path[:0] = map(str, packages_of(whose, home.prepare(), warn))
    function, plain = _agent(files, whose, rewarded=reward is not None)

    def say(text: str) -> None:
        typer.echo(escape_control(text))

    with _bridge() as bridge:
        say(f"task {chosen.id}: {dict(chosen.data)!r:.500}")
        result = _play(Debugger(at, bridge, say), function, chosen, files, plain=plain)
    answer(False, None, _debug_lines(result, full=full))


def _agent(files: AgentFiles | None, environment: str | None, *, rewarded: bool) -> tuple[Any, bool]:
    """Return the function that plays, and whether it is a plain one: the files', else the environment's own."""
    if files is not None and not rewarded:
        function = load(files.locator_in(files.folder), "agent", takes="episode", add_package=_HOW_TO_ADD)
        return function, not is_async(function)
    assert environment is not None  # without an agent of one's own the tasks are an environment's
    judge = EpisodeReward.load(files.locator_in(files.folder)) if files is not None else None
    return agent_of(load_playable(environment), judge), False


def _find_task(tasks: tuple[Task, ...], name: str | None) -> Task:
    if name is None:
        return tasks[0]
    for task in tasks:
        if task.id == name:
            return task
    some = ", ".join(task.id for task in tasks[:5])
    raise BadInput(f"expected --task as the id of one of {len(tasks)} tasks ({some}, ...); found {name[:80]!r}")


@contextmanager
def _bridge() -> Iterator[Bridge]:
    bridge = Bridge(asyncio.new_event_loop())
    thread = threading.Thread(target=bridge.loop.run_forever, name="debugged episode", daemon=True)
    thread.start()
    try:
        yield bridge
    finally:
        bridge.loop.call_soon_threadsafe(bridge.loop.stop)
        thread.join()
        bridge.loop.close()


def _play(debugger: Debugger, function: Any, task: Task, files: AgentFiles | None, *, plain: bool) -> DebugResult:
    """Play the task; where the agent raises, show the traceback of the user's files and leave."""
    began = time.monotonic()
    try:
        found = debugger.play(function, task, plain=plain)
        reward, _ = parse_reward(found.result)
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
        if math.isfinite(reward):
            return found
        warn(f"expected a finite reward, found {reward!r}")
    raise typer.Exit(FAILED)


def _debug_lines(found: DebugResult, *, full: bool) -> Iterator[RenderableType]:
    reward, success = parse_reward(found.result)
    record = found.record
    if record is not None and (full or record.calls > found.calls):  # of an SDK: nothing of it was shown yet
        yield episode_screen(record, full=full)
    told = "" if success is None else ", solved" if success else ", not solved"
    calls = record.calls if record is not None else found.calls
    yield f"reward         {reward:g}{told}"
    yield f"calls          {calls}" + ("; with none, nothing could be trained of it" if not calls else "")
    yield f"time           {found.seconds:.2f} s"
    yield "the episode was given up: nothing of it is trained or counted"


def env(
    name: Annotated[CommandLine, typer.Argument(help="The command line.")],
    json: Json = False,
) -> None:
    """Print an agent.py that has a command line play: its variables and options, and what its job needs.

    Examples:

        ajet client env claude > my_agent/agent.py
    """
    if json:
        print_json({"name": name.value, "needs": PRESETS[name].needs, "file": agent_file(name)})
    else:
        sys.stdout.write(agent_file(name))


def wheel(
    folder: Annotated[Path, typer.Argument(help="Where it is written.")] = Path("dist"),
    json: Json = False,
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


app = typer.Typer(help="Clients: agents of your own on a swarm server.", no_args_is_help=True)
app.command()(debug)
app.command()(wheel)
app.command()(env)
DEFAULTS = Limits()
THREADS_A_PLAY, FILES_A_PLAY = 4, 16
EVALUATED_EPISODES = 256
INTERRUPTED = 130


@app.callback()
def client() -> None:
    """Clients: agents of your own on a swarm server."""


class RunOptions(BaseModel):
    """Options of `ajet client run`: who plays what, how much of it, and what the agent's process may have."""

    agent: Agent = None
    server: Server = None
    environment: Annotated[str | None, typer.Option(help="Whose tasks are played; the job's when left out.")] = None
    tasks: Tasks = None
    evaluate: Annotated[bool, typer.Option("--eval", help="Evaluate the policy as it is; nothing is trained.")] = False
    evaluations: Annotated[
        bool,
        typer.Option("--evaluations", help="Evaluate whenever training waits for it (eval_every), beside who trains."),
    ] = False
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes of an evaluation by --eval; 256.")] = None
    reward: Annotated[
        str | None, typer.Option(help="FILE.py[:NAME] that judges the environment's own agent (docs/agents.md).")
    ] = None
    stream: Annotated[str, typer.Option(help="The job's stream that the episodes belong to.")] = "default"
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Episodes at once.")] = 64
    seed: Annotated[int, typer.Option(help="Order of the tasks.")] = 0
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400.0, help="Seconds that one play may take.")] = (
        EPISODE_TIMEOUT_S
    )
    time_limit: Annotated[str, typer.Option(help="Wall clock for all of it: 30m, 2h, 1d.")] = "1d"
    sandbox: Annotated[
        str | None, typer.Option(help="docker or process; docker when an engine answers (or AJET_SANDBOX).")
    ] = None
    requirements: Annotated[Path | None, typer.Option(help="requirements.txt of the agent (docker).")] = None
    allow: Annotated[list[str] | None, typer.Option(help="HOST:PORT it may reach (docker); repeatable.")] = None
    memory: Annotated[str | None, typer.Option(help="Most memory, 512m or 2g (docker); 1g.")] = None
    cpus: Annotated[float | None, typer.Option(min=0.1, max=4096.0, help="Most processors (docker); 1.")] = None
    gpu: Annotated[list[str] | None, typer.Option(help="UUID of a GPU it may use (docker); repeatable.")] = None
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the agent; repeatable.")] = None
    restart: Annotated[bool, typer.Option("--restart", help="Start it again where it dies, after a growing pause.")] = (
        False
    )
    reload: Annotated[bool, typer.Option("--reload", help="Load its code again at each save (--sandbox process).")] = (
        False
    )

    @property
    def evaluates(self) -> bool:
        return self.evaluate or self.evaluations

    def check(self) -> None:
        """Refuse options that do not go together."""
        if self.evaluate and self.evaluations:
            raise BadInput("expected --eval (once, now) or --evaluations (whenever training waits for one); found both")
        if self.evaluations and self.reload:
            raise BadInput("expected --reload for a training; found it with --evaluations")
        if self.evaluate and (self.restart or self.reload):
            raise BadInput("expected --restart and --reload for a training; found one of them with --eval")
        if self.reload and self.agent is None and self.reward is None:
            raise BadInput("expected an agent or a --reward with --reload; found no file of yours that could be saved")
        if self.episodes is not None and not self.evaluate:
            other = "--evaluations, which plays the job's `evaluation_episodes`" if self.evaluations else "a training"
            raise BadInput(f"expected --episodes with --eval; found it with {other}")

    def files(self) -> tuple[AgentFiles | None, AgentFiles | None]:
        """Return the files of the agent, and those of the reward."""
        files = AgentFiles.locate(self.agent) if self.agent is not None else None
        judge = AgentFiles.locate(self.reward, "reward") if self.reward is not None else None
        if judge is not None and (files is not None or self.evaluates):
            raise BadInput(
                "expected --reward for training with the environment's own agent; found it with another, or --eval"
            )
        return files, judge

    def confinement(self) -> Confinement:
        limits = Limits(
            memory_bytes=DEFAULTS.memory_bytes if self.memory is None else parse_memory(self.memory),
            cpus=DEFAULTS.cpus if self.cpus is None else self.cpus,
            processes=max(DEFAULTS.processes, THREADS_A_PLAY * self.concurrency),
            open_files=max(DEFAULTS.open_files, FILES_A_PLAY * self.concurrency),
        )
        only = {"--requirements": self.requirements, "--allow": self.allow, "--memory": self.memory,
                "--cpus": self.cpus, "--gpu": self.gpu}  # fmt: skip
        return Confinement(
            tuple(map(Destination.parse, self.allow or ())), limits, tuple(self.gpu or ()), self.sandbox,
            self.requirements, tuple(self.env or ()), only, self.reload,
        )  # fmt: skip


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
    (files, judge), given = asked.files(), asked.confinement()
    seconds, home = parse_budget(asked.time_limit), Home.locate()
    at = connect_server(asked.server, role="client", home=home)
    stream = parse_stream(asked.stream)
    job = check_ready(at, train=not asked.evaluate, stream=None if asked.evaluates else stream)
    if asked.evaluations:
        check_evaluated(job)
    whose, split, chosen = select_tasks(
        _bring(asked.environment, home), asked.tasks, job, own_agent=files is not None, evaluated=asked.evaluates
    )
    request = AgentRequest(
        action="evaluate" if asked.evaluates else "play", during=asked.evaluations, agent=files, reward=judge,
        environment=whose, tasks=chosen, split=split, stream=stream, episodes=asked.episodes or EVALUATED_EPISODES,
        concurrency=asked.concurrency, seed=asked.seed, timeout_s=asked.timeout, time_limit_s=seconds,
    )  # fmt: skip
    place = AgentPlacement.choose(given, home.prepare(), os.environ, warn, whose)
    try:
        ended = asyncio.run(perform(AgentRun(request, at, place, asked.restart, asked.reload)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        warn("stopped; what was being played is given up")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(ended.to_json())
    else:
        show(ended)
    report_failure(ended)
    raise typer.Exit(exit_code(ended))


def _bring(environment: str | None, home: Home) -> str | None:
    """Return the name of the environment that is asked for, which is brought where it is not here yet."""
    add_folder(home.environments)
    if environment is None or environment in environments():
        return environment
    return load_environment(environment, None, home.prepare(), warn).name
