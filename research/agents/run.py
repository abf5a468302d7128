"""One client of a user's agent, from its place to its end.

The agent's output goes to stderr as it comes, and the job's progress beside it, so that stdout is free for the
result. An interrupt ends the agent first, and its open episodes are given up.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from research.agents.launch import ContainerHost, ProcessAgent, RunningAgent, run_in_container, run_in_process
from research.agents.request import AgentRequest, Confinement, parse_variables
from research.environments.install import packages_of, python_path_variables
from research.environments.reference import requirements_of
from research.errors import BadInput
from research.installation.home import Home
from research.installation.servers import ServerConnection
from research.installation.tiny_model import Note
from research.isolation.client_image import ensure_client_image, ensure_derived_image
from research.isolation.mode import choose
from sandboxes import Exit
from sandboxes.docker.engine import HOW_TO_GET_DOCKER, connect
from sandboxes.spec import escape_control
from swarm.client import AsyncSwarmClient
from swarm.environments.processes import OWNER
from swarm.errors import SwarmError, Unreachable
from swarm.wire import EpisodeKind, ServerState, Status


@dataclass(frozen=True, slots=True)
class Restart:
    """A client that ended, and was started again after `pause_s`."""

    reason: str
    lived_s: float
    finished: int
    """Episodes it finished, as far as the server could be asked."""
    pause_s: float


RELOAD_GRACE_S: Final = 0.5
"""How long the old code's process may take to end by itself: what it has open is fenced already."""
PROGRESS_S = 5.0
"""Seconds between two lines about the job's progress, at least."""
SILENT_S = 15.0
"""A server that does not answer for its status within so long is reported."""
OWNED_BY = "ajet client"
_MOST_LOOKED_AT = 1000
_FINISHED = frozenset({"ended", "in_step", "consumed", "dropped"})
_NOT_SERVING = {
    ServerState.OFFLINE: "its engine is off: `ajet swarm start --job FILE` turns it on",
    ServerState.BOOTING: "it is loading the model",
    ServerState.FAILED: "mend that, then `ajet swarm start` tries again",
}
"""States in which no agent gets an answer, and what a person may do."""


@dataclass(frozen=True, slots=True)
class AgentPlacement:
    """Where an agent is to run; `host` is None for a plain process."""

    folder: Path
    environment: Mapping[str, str]
    given: Confinement
    host: ContainerHost | None

    @classmethod
    def choose(
        cls,
        given: Confinement,
        home: Home,
        environ: Mapping[str, str],
        note: Note,
        environment: str | None,
    ) -> Self:
        """Return where to run, with what an environment's code needs; raises ResearchError or SandboxError."""
        contained = choose(given.sandbox, environ, home, note).sandboxing.kind == "docker"
        if contained and given.reload:
            raise BadInput(
                "expected a plain process for --reload, which loads files where they lie; found a container. Add "
                "--sandbox process: the agent then has all your rights"
            )
        variables = parse_variables(given.variables, contained=contained)
        played = [] if environment is None else [environment]
        host = None
        if contained:
            engine, text = connect(environ), requirements_of(played)
            try:
                text += "" if given.requirements is None else given.requirements.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise BadInput(f"expected a requirements file; could not read {given.requirements}: {error}") from error
            image = ensure_derived_image(engine, home, text, note) if text else ensure_client_image(engine, home, note)
            host = ContainerHost(engine, image.id, home.containers)
        else:
            for option, value in given.only_contained.items():
                if value is not None:
                    install = f"; or install what it needs here: pip install -r {value}"
                    raise BadInput(
                        f"expected a container for {option}; found a plain process, which has all that you have. Use "
                        f"--sandbox docker: {HOW_TO_GET_DOCKER}{install if option == '--requirements' else ''}"
                    )
            note("the agent runs as a plain process with all your rights: nothing is isolated")
            variables |= python_path_variables(path for name in played for path in packages_of(name, home, note))
        name = f"ajet-client-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        folder = home.path / "clients" / name
        folder.mkdir(mode=0o700, parents=True)
        return cls(folder, variables, given, host)


@dataclass(frozen=True, slots=True)
class AgentRun:
    """All that a run needs."""

    request: AgentRequest
    server: ServerConnection
    place: AgentPlacement
    restart: bool = False
    """It is started again where it dies."""
    reload: bool = False
    """Its code is loaded again at each save."""

    def next_client(self, number: int, within_s: float | None) -> AgentRun:
        """Return the run of another client of it, in a folder of its own, with what is left of the time limit."""
        folder = self.place.folder.with_name(f"{self.place.folder.name}-{number}")
        folder.mkdir(mode=0o700)
        request = replace(self.request, time_limit_s=within_s, unchanged=self.reload)
        return replace(self, request=request, place=replace(self.place, folder=folder))

    def clear(self) -> None:
        """Remove its folder, tasks and sockets; the log of its connections to the Internet stays."""
        if not self.place.given.allow:
            shutil.rmtree(self.place.folder, ignore_errors=True)

    def begin(self, owner: str) -> AbstractAsyncContextManager[RunningAgent]:
        """Return the running agent, once entered; its episodes are the owner's."""
        request, place = self.request, self.place
        environment = {**place.environment, OWNER: owner}
        if place.host is None:
            return run_in_process(request, self.server, place.folder, environment)
        return run_in_container(request, self.server, place.folder, place.given, place.host, environment)


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
        return place.folder / "egress.log" if place.given.allow else None

    @property
    def unfinished(self) -> bool:
        """Whether an agent that was to train reported success, but the server has steps left."""
        train, status = self.run.request.action == "play", self.status
        return train and self.exit.reason == "finished" and status is not None and not status.finished

    def to_json(self) -> dict[str, Any]:
        host = self.run.place.host
        return {
            "action": self.run.request.action,
            "server": self.run.server.url,
            "sandbox": "process" if host is None else "docker",
            "image": host and host.image,
            "exit": asdict(self.exit),
            "result": self.result,
            "refused": dict(self.refused),
            "restarts": [asdict(restart) for restart in self.restarts],
            "reloads": self.reloads,
            "job": self.status and {"step": self.status.step, "steps": self.status.steps},
            "egress_log": self.egress_log and str(self.egress_log),
        }


async def play(run: AgentRun, saved: asyncio.Task[str] | None = None) -> AgentResult | None:
    """Run one client of an agent to its end; what one that died left open is given up at once.

    None where its code was `saved` anew: what the old code had open is fenced before and after its process is ended.
    """
    try:
        async with AsyncSwarmClient(run.server.url, run.server.token, owner=OWNED_BY) as mine:
            async with run.begin(mine.owner) as agent:
                ended = await follow(run, agent, saved)
                fenced = await _give_up(mine, "code_changed") if ended is None else 0
                if ended is None and isinstance(agent, ProcessAgent):
                    await agent.end(RELOAD_GRACE_S)
            if ended is None:
                fenced += await _give_up(mine, "code_changed")
                write_output(f"ajet: the code was saved; {fenced} open episodes of the last were fenced\n")
            elif ended.exit.reason != "finished":
                await _give_up(mine, "owner_died")
                with suppress(SwarmError):
                    kind: EpisodeKind = "eval" if run.request.action == "evaluate" else "train"
                    return replace(ended, finished=await count_finished(mine, kind))
            return ended
    finally:
        run.clear()


async def _give_up(client: AsyncSwarmClient, reason: Literal["owner_died", "code_changed"]) -> int:
    with suppress(SwarmError):  # a server that is away: the leases run out
        return await client.give_up_open(reason)
    return 0


async def count_finished(client: AsyncSwarmClient, kind: EpisodeKind) -> int:
    """Return how many of the newest episodes of a kind were finished under the client's name, also within others'."""
    found = (await client.episodes(_MOST_LOOKED_AT)).episodes
    return sum(
        client.owner in one.owner and one.state in _FINISHED and one.reason != "no_calls" and one.kind == kind
        for one in found
    )


async def read_status(run: AgentRun) -> Status | None:
    with suppress(SwarmError):
        async with AsyncSwarmClient(run.server.url, run.server.token) as client:
            return await client.status(within_s=SILENT_S)
    return None


async def follow(run: AgentRun, agent: RunningAgent, saved: asyncio.Task[str] | None) -> AgentResult | None:
    """Pass on what an agent says until it ends; None where its code was saved anew before."""
    progress, contained = asyncio.create_task(_report_progress(run)), run.place.host is not None
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


@asynccontextmanager
async def cancel_on_signals() -> AsyncIterator[None]:
    """Take SIGTERM, and the end of the terminal, for Ctrl-C while inside."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def write_output(text: str, contained: bool = False) -> None:
    """Pass on the agent's output; that of a container must not steer a terminal, also one behind a pipe (`| tee`)."""
    sys.stderr.write(escape_control(text) if contained else text)
    sys.stderr.flush()


async def _report_progress(run: AgentRun) -> None:
    before, stream = "", run.request.stream
    named = "" if stream == "default" else f"{escape_control(stream)}: "
    async with AsyncSwarmClient(run.server.url, run.server.token) as client:
        while True:
            await asyncio.sleep(PROGRESS_S)
            with suppress(SwarmError):
                now = await _progress_line(run, client)
                if now != before:
                    write_output(f"ajet: {named}{now}\n")
                before = now


async def _progress_line(run: AgentRun, client: AsyncSwarmClient) -> str:
    try:
        status = await client.status(within_s=SILENT_S)
    except Unreachable as error:
        return f"{error}; the agent waits for it"
    if run.request.action == "play" or run.request.during or status.state in _NOT_SERVING:
        return job_status(status)
    return f"evaluating, {status.open_episodes} episodes open"


def job_status(status: Status) -> str:
    if status.state in _NOT_SERVING:
        reason = f" ({status.reason})" if status.reason else ""
        return f"the server is {status.state}{reason}: {_NOT_SERVING[status.state]}"
    reward = status.metrics.get("critic/rewards/mean")
    said = "" if reward is None else f", reward {reward:.3f}"
    needed = f"{status.collected_episodes} of {status.needed_episodes} episodes collected"
    return f"step {status.step} of {status.steps}, {needed}, {status.open_episodes} open{said}"
