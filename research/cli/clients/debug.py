"""`ajet client debug`: one play of an agent in this terminal, where a breakpoint stops."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from research.agents.debugging import DebuggedPlay, Debugging
from research.agents.files import AgentFiles
from research.agents.request import BadOption, check_ready, find_server, tasks_of
from research.cli.output import console, print_json, warn
from research.cli.swarm.episodes.episode_screen import episode_screen
from research.environments.bring import environment_of, packages_of
from research.installation.home import Home
from sandboxes.shown import shown
from swarm.client.agents import WrongResult, worth_of
from swarm.client.threads import Bridge
from swarm.environments import Task
from swarm.environments.bringing.loading import playable
from swarm.environments.playing.code import is_async, load
from swarm.environments.playing.play import agent_of
from swarm.environments.playing.rewards import Reward
from swarm.environments.playing.standby import traceback_of
from swarm.environments.registry import environments, look_in
from swarm.errors import EngineUnavailable, ServerFailed, Throttled, Unreachable

FAILED, LOST = 1, 3
STDOUT, STDERR = 1, 2
_HOW_TO_ADD = "install it here: `ajet client debug` runs in this Python"


def debug(
    agent: Annotated[
        str | None,
        typer.Argument(help="FILE.py[:NAME] or a folder with agent.py; the environment's own agent when left out."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Id of the task that is played; the first one when left out.")
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help='Tasks of your own: JSON, [{"id": ..., "data": {...}}].')] = None,
    environment: Annotated[str | None, typer.Option(help="Whose task is played; the job's when left out.")] = None,
    reward: Annotated[str | None, typer.Option(help="FILE.py[:NAME] that judges the environment's own agent.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Address of a swarm server; its token is read from AJET_TOKEN.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every token that the server captured.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, calls and prints on stderr.")] = False,
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
        raise BadOption("expected --reward with the environment's own agent; found it with another")
    home = Home.locate()
    at = find_server(server, os.environ, home)
    job = check_ready(at, train=False)
    look_in(home.environments)
    if environment is not None and environment not in environments():
        environment = environment_of(environment, None, home.prepare(), warn).name
    whose, _, known = tasks_of(environment, tasks, job, own_agent=agent is not None, evaluated=False)
    chosen = _chosen(known, task)
    files = _files(agent, reward)
    if whose is not None:
        sys.path[:0] = map(str, packages_of(whose, home.prepare(), warn))
    with prints_on_stderr() if json else nullcontext():
        played = _agent(files, whose, rewarded=reward is not None)
        with _bridge() as bridge:
            say = _say(json)
            say(f"task {chosen.id}: {dict(chosen.data)!r:.500}")
            found = _play(Debugging(at, bridge, say), played, chosen, files)
    if json:
        print_json(_as_json(found, chosen))
        return
    _show(found, full=full)


@dataclass(frozen=True, slots=True)
class DebuggedAgent:
    """The function that plays, and whether it is a plain one."""

    function: Any
    plain: bool


def _files(agent: str | None, reward: str | None) -> AgentFiles | None:
    if reward is not None:
        return AgentFiles.locate(reward, "reward")
    return AgentFiles.locate(agent) if agent is not None else None


def _agent(files: AgentFiles | None, environment: str | None, *, rewarded: bool) -> DebuggedAgent:
    """Return the agent of the files, else the environment's own, judged by the files' reward."""
    if files is not None and not rewarded:
        function = load(files.at(files.folder), "agent", takes="episode", add_package=_HOW_TO_ADD)
        return DebuggedAgent(function, plain=not is_async(function))
    assert environment is not None  # without an agent of one's own the tasks are an environment's
    judge = Reward.load(files.at(files.folder)) if files is not None else None
    return DebuggedAgent(agent_of(playable(environment), judge), plain=False)


def _chosen(tasks: tuple[Task, ...], name: str | None) -> Task:
    if name is None:
        return tasks[0]
    for task in tasks:
        if task.id == name:
            return task
    some = ", ".join(task.id for task in tasks[:5])
    raise BadOption(f"expected --task as the id of one of {len(tasks)} tasks ({some}, ...); found {name[:80]!r}")


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Send to stderr what is written to stdout inside, by print, by the debugger or by processes that are started."""
    sys.stdout.flush()
    stdout = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()  # what was bound to it before, as a logging handler, belongs there too
        os.dup2(stdout, STDOUT)
        os.close(stdout)


@contextmanager
def _bridge() -> Iterator[Bridge]:
    """Yield a bridge to an event loop in a thread of its own."""
    bridge = Bridge(asyncio.new_event_loop())
    thread = threading.Thread(target=bridge.loop.run_forever, name="debugged episode", daemon=True)
    thread.start()
    try:
        yield bridge
    finally:
        bridge.loop.call_soon_threadsafe(bridge.loop.stop)
        thread.join()
        bridge.loop.close()


def _say(json: bool) -> Any:
    stream = sys.stderr if json else sys.stdout
    return lambda text: print(shown(text), file=stream, flush=True)


def _play(debugging: Debugging, agent: DebuggedAgent, task: Task, files: AgentFiles | None) -> DebuggedPlay:
    """Play the task; where the agent raises, show the traceback of the user's files and leave."""
    began = time.monotonic()
    try:
        found = debugging.play(agent.function, task, plain=agent.plain)
        reward, _ = worth_of(found.result)
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


def _as_json(found: DebuggedPlay, task: Task) -> dict[str, Any]:
    reward, success = worth_of(found.result)
    calls = found.record.calls if found.record is not None else found.calls
    return {
        "episode": found.episode, "task": task.id, "reward": reward, "success": success, "calls": calls,
        "seconds": round(found.seconds, 3),
    }  # fmt: skip


def _show(found: DebuggedPlay, *, full: bool) -> None:
    reward, success = worth_of(found.result)
    record = found.record
    if record is not None and (full or record.calls > found.calls):  # of an SDK: nothing of it was shown yet
        console().print(episode_screen(record, full=full))
    told = "" if success is None else ", solved" if success else ", not solved"
    calls = record.calls if record is not None else found.calls
    console().print(f"reward         {reward:g}{told}")
    console().print(f"calls          {calls}" + ("; with none, nothing could be trained of it" if not calls else ""))
    console().print(f"time           {found.seconds:.2f} s")
    console().print("the episode was given up: nothing of it is trained or counted")
