"""A user's agent on a swarm server, from its place to its end; with --restart and --reload one client after the other.

With --restart what a dead client left open is given up at once, so that the next one begins with those very places. Bad
input ends it, and so does the job's end. With --reload a save ends the client, once what the old code has open is
fenced (`code_changed`), and the new code plays in the next one. An edit that cannot be loaded plays nothing until the
next save.
"""

import asyncio
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from watchfiles import awatch

from research.agents.launch import AgentPlacement, ProcessAgent, RunningAgent, run_in_container, run_in_process
from research.agents.request import AgentRequest, RunOptions
from research.environments.catalog import requirements_of
from research.environments.install import packages_of, python_path_variables
from research.errors import BadInput
from research.installation.home import Home
from research.installation.servers import ServerConnection
from research.installation.tiny_model import Note
from research.isolation.client_image import ensure_derived_image
from research.isolation.mode import choose
from sandboxes import Exit
from sandboxes.docker.engine import HOW_TO_GET_DOCKER, connect
from sandboxes.spec import escape_control
from swarm.client import AsyncSwarmClient
from swarm.environments.processes import OWNER
from swarm.environments.user_code import SUFFIXES, code_hash
from swarm.errors import SwarmError, Unreachable
from swarm.wire import ServerState, Status

RELOAD_GRACE_S: Final = 0.5
"""How long the old code's process may take to end by itself: what it has open is fenced already."""
PROGRESS_S = 5.0
"""Seconds between two lines about the job's progress, at least."""
SILENT_S = 15.0
"""A server that does not answer for its status within so long is reported."""
_MOST_LOOKED_AT = 1000
_FINISHED = frozenset({"ended", "in_step", "consumed", "dropped"})
_NOT_SERVING = {
    ServerState.OFFLINE: "its engine is off: `ajet swarm start --job FILE` turns it on",
    ServerState.BOOTING: "it is loading the model",
    ServerState.FAILED: "mend that, then `ajet swarm start` tries again",
}
"""States in which no agent gets an answer, and what a person may do."""
FIRST_WAIT_S: Final = 0.5
MOST_WAIT_S: Final = 30.0
"""Before a restart, at the least and the most; it doubles with each client that was not healthy."""
HEALTHY_S: Final = 5.0
"""A client that lived for so long and finished an episode was healthy: the next pause is the first one again."""
MOST_IN_VAIN: Final = 8
"""Clients in a row that finish no episode, after which none is started again: about a minute of pauses."""
BAD_INPUT: Final = 2
LOST: Final = 3
"""Exit code of a client whose server is lost or refuses, or whose agent failed again and again."""
SETTLED_MS: Final = 50
"""Files that do not change for so long were saved whole."""
LOOK_MS: Final = 1000
"""Files are looked at so often, too, for not every file system tells of changes."""
JOB_LOOK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Restart:
    """A client that ended, and was started again after `pause_s`."""

    reason: str
    lived_s: float
    finished: int
    """Episodes it finished, as far as the server could be asked."""
    pause_s: float


def choose_place(
    asked: RunOptions, home: Home, environ: Mapping[str, str], note: Note, environment: str | None
) -> AgentPlacement:
    """Return where to run, with what an environment's code needs; raises ResearchError or SandboxError."""
    contained = choose(asked.sandbox, environ, home, note).sandboxing.kind == "docker"
    if contained and asked.reload:
        raise BadInput(
            "expected a plain process for --reload, which loads files where they lie; found a container. Add "
            "--sandbox process: the agent then has all your rights"
        )
    variables = asked.variables(contained=contained)
    played = [] if environment is None else [environment]
    engine = image = None
    if contained:
        engine, text = connect(environ), requirements_of(played)
        try:
            text += "" if asked.requirements is None else asked.requirements.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadInput(f"expected a requirements file; could not read {asked.requirements}: {error}") from error
        image = ensure_derived_image(engine, home, text, note).id
    else:
        for option in ("requirements", "allow", "memory", "cpus", "gpu"):
            if (value := getattr(asked, option)) is not None:
                install = f"; or install what it needs here: pip install -r {value}"
                raise BadInput(
                    f"expected a container for --{option}; found a plain process, which has all that you have. Use "
                    f"--sandbox docker: {HOW_TO_GET_DOCKER}{install if option == 'requirements' else ''}"
                )
        note("the agent runs as a plain process with all your rights: nothing is isolated")
        variables |= python_path_variables(path for name in played for path in packages_of(name, home, note))
    name = f"ajet-client-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    folder = home.path / "clients" / name
    folder.mkdir(mode=0o700, parents=True)
    gpus = tuple(asked.gpu or ())
    return AgentPlacement(folder, variables, asked.limits(), asked.destinations(), gpus, engine, image, home.containers)


@dataclass(frozen=True, slots=True)
class AgentRun:
    """All that a run needs."""

    request: AgentRequest
    server: ServerConnection
    place: AgentPlacement

    def clear(self) -> None:
        """Remove its folder, tasks and sockets; the log of its connections to the Internet stays."""
        if not self.place.allow:
            shutil.rmtree(self.place.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How a run ended."""

    run: AgentRun
    exit: Exit
    result: dict[str, Any] | None
    """The summary of a training, or the outcomes of an evaluation; None if it left none."""
    refused: Mapping[str, int]
    finished: int = 0
    """Episodes that a client which died had finished, as far as is known."""
    status: Status | None = None
    """The job's status by the server; None if it did not answer."""
    restarts: tuple[Restart, ...] = ()
    """The clients before this one that died."""
    reloads: int = 0
    """How often its code was loaded again."""

    @property
    def egress_log(self) -> Path | None:
        """The log of its connections to the Internet; None where it could have none."""
        place = self.run.place
        return place.folder / "egress.log" if place.allow else None

    @property
    def unfinished(self) -> bool:
        """Whether an agent that was to train reported success, but the server has steps left."""
        evaluates, status = self.run.request.asked.evaluates, self.status
        return not evaluates and self.exit.reason == "finished" and status is not None and not status.finished

    def to_json(self) -> dict[str, Any]:
        image = self.run.place.image
        return {
            "action": self.run.request.action, "server": self.run.server.url,
            "sandbox": "process" if image is None else "docker", "image": image, "exit": asdict(self.exit),
            "result": self.result, "refused": dict(self.refused),
            "restarts": [asdict(restart) for restart in self.restarts], "reloads": self.reloads,
            "job": self.status and {"step": self.status.step, "steps": self.status.steps},
            "egress_log": self.egress_log and str(self.egress_log),
        }  # fmt: skip


async def play(run: AgentRun, saved: asyncio.Task[str] | None = None) -> AgentResult | None:
    """Run one client of an agent to its end; what one that died left open is given up at once. None where its code was
    `saved` anew: what the old code had open is fenced before and after its process is ended."""
    request, place = run.request, run.place
    begin = run_in_process if place.engine is None else run_in_container
    try:
        async with AsyncSwarmClient(run.server.url, run.server.token, owner="ajet client") as mine:
            owned = replace(place, environment={**place.environment, OWNER: mine.owner})
            async with begin(request, run.server, owned) as agent:
                ended = await follow(run, agent, saved)
                fenced = await _give_up(mine, "code_changed") if ended is None else 0
                if ended is None and isinstance(agent, ProcessAgent):
                    await agent.end(RELOAD_GRACE_S)
            if ended is None:
                fenced += await _give_up(mine, "code_changed")
                write_output(f"ajet: the code was saved; {fenced} open episodes of the last were fenced\n")
            elif ended.exit.reason != "finished":
                await _give_up(mine, "owner_died")
                kind = "eval" if request.asked.evaluates else "train"
                with suppress(SwarmError):
                    newest = (await mine.episodes(_MOST_LOOKED_AT)).episodes
                    finished = sum(  # also those that were played under its name within others'
                        mine.owner in one.owner and one.state in _FINISHED and one.reason != "no_calls"
                        and one.kind == kind
                        for one in newest
                    )  # fmt: skip
                    return replace(ended, finished=finished)
            return ended
    finally:
        run.clear()


async def _give_up(client: AsyncSwarmClient, reason: Literal["owner_died", "code_changed"]) -> int:
    with suppress(SwarmError):  # a server that is away: the leases run out
        return await client.give_up_open(reason)
    return 0


async def read_status(run: AgentRun) -> Status | None:
    with suppress(SwarmError):
        async with AsyncSwarmClient(run.server.url, run.server.token) as client:
            return await client.status(within_s=SILENT_S)
    return None


async def follow(run: AgentRun, agent: RunningAgent, saved: asyncio.Task[str] | None) -> AgentResult | None:
    """Pass on what an agent says until it ends; None where its code was saved anew before."""
    progress, contained = asyncio.create_task(_report_progress(run)), run.place.engine is not None
    try:
        while (ended := await agent.wait()) is None:
            write_output(await agent.read_output(), contained)
            if saved is not None and saved.done():
                return None
        write_output(await agent.read_output(), contained)
    finally:
        progress.cancel()
        await asyncio.gather(progress, return_exceptions=True)
    return AgentResult(run, ended, await agent.result(), dict(agent.refused))


def write_output(text: str, contained: bool = False) -> None:
    """Pass on the agent's output; that of a container must not steer a terminal, also one behind a pipe (`| tee`)."""
    sys.stderr.write(escape_control(text) if contained else text)
    sys.stderr.flush()


async def _report_progress(run: AgentRun) -> None:
    before, asked = "", run.request.asked
    named = "" if asked.stream == "default" else f"{escape_control(asked.stream)}: "
    async with AsyncSwarmClient(run.server.url, run.server.token) as client:
        while True:
            await asyncio.sleep(PROGRESS_S)
            with suppress(SwarmError):
                try:
                    status = await client.status(within_s=SILENT_S)
                except Unreachable as error:
                    now = f"{error}; the agent waits for it"
                else:
                    now = f"evaluating, {status.open_episodes} episodes open"
                    if not asked.evaluate or status.state in _NOT_SERVING:
                        now = job_status(status)
                if now != before:
                    write_output(f"ajet: {named}{now}\n")
                before = now


def job_status(status: Status) -> str:
    if status.state in _NOT_SERVING:
        reason = f" ({status.reason})" if status.reason else ""
        return f"the server is {status.state}{reason}: {_NOT_SERVING[status.state]}"
    reward = status.metrics.get("critic/rewards/mean")
    said = "" if reward is None else f", reward {reward:.3f}"
    needed = f"{status.collected_episodes} of {status.needed_episodes} episodes collected"
    return f"step {status.step} of {status.steps}, {needed}, {status.open_episodes} open{said}"


class RestartPolicy:
    """Decides on each end of a client."""

    def __init__(self) -> None:
        self._unhealthy = 0
        self._in_vain = 0

    def pause(self, lived_s: float, finished: int) -> float | None:
        """Return the seconds to wait before the next client, None where no further one is started."""
        self._in_vain = 0 if finished else self._in_vain + 1
        self._unhealthy = 0 if finished and lived_s >= HEALTHY_S else self._unhealthy + 1
        pause = min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** max(0, self._unhealthy - 1))
        return None if self._in_vain >= MOST_IN_VAIN else pause


def restart_reason(ended: Exit) -> str | None:
    """Return why a client that ended so, with steps left to train, is to be started again; None: it is not."""
    code = ended.code
    if ended.reason == "timeout" or (ended.reason == "error" and code == BAD_INPUT):
        return None
    if ended.reason == "error":
        if code is not None and code < 0:
            return f"it was killed by signal {-code}"
        lost = "the server was lost, the disk was full, or the agent failed again and again"
        return f"it ended with exit code {code}" + (f": {lost}" if code == LOST else "")
    return {
        "finished": "it ended before the job was finished", "out_of_memory": "it used up its memory",
        "stopped": "it was stopped", "killed": "it was killed", "lost": "its container is gone",
    }[ended.reason]  # fmt: skip


async def wait_for_save(folder: Path, code: str) -> str:
    """Return the sha256 of the files in a folder once it is another than `code`, and they are whole."""
    for polling in (None, True):  # where the system watches no more files, they are looked at
        changes = awatch(
            folder, watch_filter=lambda _, path: Path(path).suffix in SUFFIXES or Path(path).is_dir(),
            step=SETTLED_MS, rust_timeout=LOOK_MS, yield_on_timeout=True, force_polling=polling,
            ignore_permission_denied=True,
        )  # fmt: skip
        try:
            async for _ in changes:
                found = await asyncio.to_thread(code_hash, folder)
                if found != code:
                    return found
        except (OSError, RuntimeError):
            if polling:
                raise
    raise AssertionError  # it watches until it is cancelled


async def perform(run: AgentRun) -> AgentResult:
    """Run an agent to its end; SIGTERM and the end of the terminal are taken for Ctrl-C."""
    task, loop, signals = asyncio.current_task(), asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGHUP)
    assert task is not None
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        ended = await (Supervisor(run).play() if run.request.asked.restart or run.request.asked.reload else play(run))
        assert ended is not None  # as nothing of it was saved anew
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        run.clear()
    return replace(ended, status=await read_status(run))


class Supervisor:
    """Runs one client of an agent after the other."""

    def __init__(self, run: AgentRun) -> None:
        limit_s = run.request.time_limit_s
        self._run = run
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        self._policy = RestartPolicy()
        self._restarts: list[Restart] = []
        self._reloads = 0
        self._saved: asyncio.Task[str] | None = None

    async def play(self) -> AgentResult:
        run = self._run
        code = run.request.code
        if run.request.asked.reload and code is not None:
            self._saved = asyncio.create_task(wait_for_save(code.folder, code_hash(code.folder)))
        try:
            while True:
                began, number = time.monotonic(), len(self._restarts) + self._reloads
                left_s = None if self._deadline == float("inf") else max(0.001, self._deadline - began)
                folder = run.place.folder.with_name(f"{run.place.folder.name}-{number}")
                folder.mkdir(mode=0o700)
                request = replace(run.request, time_limit_s=left_s)
                client = replace(run, request=request, place=replace(run.place, folder=folder))
                ended = await play(client, self._saved)
                if ended is not None:
                    ended = replace(ended, restarts=tuple(self._restarts), reloads=self._reloads)
                    ended = await self._handle_end(ended, time.monotonic() - began)
                if ended is not None:
                    return ended
                if self._saved is not None and self._saved.done() and code is not None:
                    self._reloads += 1
                    write_output(f"ajet: code {self._saved.result()[:12]} from here on\n")
                    self._saved = asyncio.create_task(wait_for_save(code.folder, self._saved.result()))
        finally:
            if self._saved is not None:
                self._saved.cancel()
                await asyncio.gather(self._saved, return_exceptions=True)

    async def _handle_end(self, ended: AgentResult, lived_s: float) -> AgentResult | None:
        bad_input = ended.exit.reason == "error" and ended.exit.code == BAD_INPUT
        restart = self._run.request.asked.restart
        failed = ended.exit.reason not in ("finished", "timeout") and ended.exit.code != LOST
        if self._saved is not None and (bad_input or (failed and not restart)):
            return await self._wait_for_save(ended)
        if not restart:
            return ended
        status = await read_status(self._run)
        if status is not None and status.finished:  # whatever became of this one: others may have played the rest
            return replace(ended, exit=Exit("finished", 0))
        if (reason := restart_reason(ended.exit)) is None:
            return ended
        pause_s = self._policy.pause(lived_s, ended.finished)
        if pause_s is None:
            write_output(f"ajet: {reason}; not started again: {MOST_IN_VAIN} clients in a row finished no episode\n")
            return ended
        self._restarts.append(Restart(reason, round(lived_s, 3), ended.finished, pause_s))
        write_output(
            f"ajet: restart {len(self._restarts)} in {pause_s:g} s: {reason}, after {lived_s:.1f} s and "
            f"{ended.finished} episodes\n"
        )
        if self._saved is None:
            await asyncio.sleep(pause_s)
        else:
            await asyncio.wait({self._saved}, timeout=pause_s)
        return None

    async def _wait_for_save(self, ended: AgentResult) -> AgentResult | None:
        assert self._saved is not None
        write_output("ajet: nothing is played by this client until the next save\n")
        while not self._saved.done():
            status = await read_status(self._run)
            if status is not None and status.finished:
                return replace(ended, exit=Exit("finished", 0))
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                return replace(ended, exit=Exit("timeout", None))
            await asyncio.wait({self._saved}, timeout=min(left_s, JOB_LOOK_S))
        return None
