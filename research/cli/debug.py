"""`ajet client debug`: one play in the main thread, whose terminal a debugger can use.

Connections and heartbeats are on another thread, so the lease lives however long the agent stands still. It is an
evaluation episode that is given up at its end.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from research.agents.request import AgentArgument, AgentFiles, TasksOption, check_ready, select_tasks
from research.cli.app import console
from research.cli.episodes import episode_screen
from research.environments.install import load_environment, packages_of
from research.errors import BadInput
from research.installation.home import Home
from research.installation.servers import ServerConnection, connect_server
from research.terminal import warn
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

ROOM_S = 30.0
"""How long the server may take to begin the episode: it may just be updating its weights."""
FAILED, LOST = 1, 3
_HOW_TO_ADD = "install it here: `ajet client debug` runs in this Python"


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
        begun = bridge.run(client.begin(task, kind="eval", stream=EVALUATION_STREAM, wait_s=ROOM_S))
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
    task: Annotated[
        str | None, typer.Option(help="Id of the task that is played; the first one when left out.")
    ] = None,
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
    whose, _, known = select_tasks(environment, tasks, job, own_agent=agent is not None, evaluated=False)
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
        function = load(files.locator_in(files.folder), "agent", takes="episode", add_package=_HOW_TO_ADD)
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
