"""One run of an agent in the foreground: launched, listened to, and summed up.

What the agent says goes to stderr as it comes, and where the job stands beside it, so that stdout is free for the
result. An interrupt ends the agent first, and what it was playing is given up.
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
from typing import Any, Self

from research.agent_order import AgentOrder, BadOption, Confinement, Demand, Server, variables_of
from research.agent_playing import Playing, Within, in_container, in_process
from research.client_image import ensure_client_image, ensure_derived_image
from research.home import Home
from research.model import Note
from research.sandboxing import choose
from sandboxes import Exit
from sandboxes.engine import HOW_TO_GET_DOCKER, connect
from sandboxes.shown import shown
from swarm.client import AsyncSwarmClient
from swarm.environments.lifeline import OWNER
from swarm.errors import SwarmError, Unreachable
from swarm.wire import ServerState, Status

TELL_S = 5.0
"""How often, at most, it is told where the job stands."""
SILENT_S = 15.0
"""A server that does not say within so long where it stands is told of."""
_NOT_SERVING = {
    ServerState.OFFLINE: "its engine is off: `ajet swarm start --job FILE` turns it on",
    ServerState.BOOTING: "it is loading the model",
    ServerState.FAILED: "mend that, then `ajet swarm start` tries again",
}
"""States in which no agent gets an answer, and what a person may do."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent is to run; `within` is None for a plain process."""

    folder: Path
    environment: Mapping[str, str]
    given: Confinement
    within: Within | None

    @classmethod
    def choose(cls, demand: Demand, given: Confinement, home: Home, environ: Mapping[str, str], note: Note) -> Self:
        """Return where to run. Raises ResearchError or SandboxError for what cannot be had."""
        contained = choose(demand.sandbox, environ, home, note).sandboxing.kind == "docker"
        variables = variables_of(demand.variables, contained=contained)
        within = _within(demand, home, environ, note) if contained else None
        if within is None:
            _unconfined(demand, note)
        name = f"ajet-client-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        folder = home.path / "clients" / name
        folder.mkdir(mode=0o700, parents=True)
        return cls(folder, variables, given, within)


def _within(demand: Demand, home: Home, environ: Mapping[str, str], note: Note) -> Within:
    engine = connect(environ)
    text = _text_of(demand.requirements)
    image = ensure_derived_image(engine, home, text, note) if text else ensure_client_image(engine, home, note)
    return Within(engine, image.id, home.containers)


def _unconfined(demand: Demand, note: Note) -> None:
    """Say that nothing is isolated; raise BadOption for what only a container can do."""
    for option, value in demand.only_contained.items():
        if value is not None:
            more = f"; or install what it needs here: pip install -r {value}" if option == "--requirements" else ""
            raise BadOption(
                f"expected a container for {option}; found a plain process, which has all that you have. Use --sandbox "
                f"docker: {HOW_TO_GET_DOCKER}{more}"
            )
    note("the agent runs as a plain process with all your rights: nothing is isolated")


def _text_of(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadOption(f"expected a requirements file; could not read {path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run needs."""

    order: AgentOrder
    server: Server
    place: Place

    def begin(self, owner: str) -> AbstractAsyncContextManager[Playing]:
        """Return the agent at work, once entered; its episodes are the owner's."""
        order, place = self.order, self.place
        environment = {**place.environment, OWNER: owner}
        if place.within is None:
            return in_process(order, self.server, place.folder, environment)
        return in_container(order, self.server, place.folder, place.given, place.within, environment)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    run: Run
    exit: Exit
    result: dict[str, Any] | None
    """The player's summary, or the evaluator's outcomes; None if it left none."""
    refused: Mapping[str, int]
    status: Status | None = None
    """Where the job stands by the server's own word; None if it did not answer."""

    @property
    def egress_log(self) -> Path | None:
        """The log of its connections to the Internet; None where it could have none."""
        place = self.run.place
        return place.folder / "egress.log" if place.given.allow else None

    @property
    def unfinished(self) -> bool:
        """Whether an agent that was to train ended well by its own word, but the server has steps left."""
        train, status = self.run.order.action == "play", self.status
        return train and self.exit.reason == "finished" and status is not None and not status.finished

    def to_json(self) -> dict[str, Any]:
        """Return it as a script reads it."""
        within = self.run.place.within
        return {
            "action": self.run.order.action,
            "server": self.run.server.url,
            "sandbox": "process" if within is None else "docker",
            "image": within and within.image,
            "exit": asdict(self.exit),
            "result": self.result,
            "refused": dict(self.refused),
            "job": self.status and {"step": self.status.step, "steps": self.status.steps},
            "egress_log": self.egress_log and str(self.egress_log),
        }


async def perform(run: Run) -> Ended:
    """Run an agent to its end; of its folder nothing stays but the log of its connections."""
    try:
        async with ended_by_signals(), AsyncSwarmClient(run.server.url, run.server.token, owner="ajet client") as mine:
            await mine.take_over()  # of runs that were killed: what they played ended with them
            async with run.begin(mine.owner) as playing:
                ended = await follow(run, playing)
    finally:
        if not run.place.given.allow:
            shutil.rmtree(run.place.folder, ignore_errors=True)  # tasks and sockets: nothing that is wanted any more
    with suppress(SwarmError):
        async with AsyncSwarmClient(run.server.url, run.server.token) as client:
            return replace(ended, status=await client.status())
    return ended


async def follow(run: Run, playing: Playing) -> Ended:
    """Listen to an agent until it has ended."""
    telling, contained = asyncio.create_task(_tell(run)), run.place.within is not None
    try:
        while (ended := await playing.wait()) is None:
            hear(await playing.said(), contained)
        hear(await playing.said(), contained)
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    return Ended(run, ended, await playing.result(), dict(playing.refused))


@asynccontextmanager
async def ended_by_signals() -> AsyncIterator[None]:
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


def hear(text: str, contained: bool = False) -> None:
    """Pass on what the agent said; what comes out of a container must not steer a terminal."""
    sys.stderr.write(shown(text) if contained and sys.stderr.isatty() else text)
    sys.stderr.flush()


async def _tell(run: Run) -> None:
    """Tell where the job stands whenever it has moved."""
    before = ""
    async with AsyncSwarmClient(run.server.url, run.server.token) as client:
        while True:
            await asyncio.sleep(TELL_S)
            with suppress(SwarmError):
                now = await _now(run, client)
                if now != before:
                    hear(f"ajet: {now}\n")
                before = now


async def _now(run: Run, client: AsyncSwarmClient) -> str:
    try:
        status = await client.status(within_s=SILENT_S)
    except Unreachable as error:
        return f"{error}; the agent waits for it"
    if run.order.action == "play" or status.state in _NOT_SERVING:
        return standing(status)
    return f"evaluating, {status.open_episodes} episodes open"


def standing(status: Status) -> str:
    """Return where a job stands, in a line."""
    if status.state in _NOT_SERVING:
        reason = f" ({status.reason})" if status.reason else ""
        return f"the server is {status.state}{reason}: {_NOT_SERVING[status.state]}"
    reward = status.metrics.get("critic/rewards/mean")
    said = "" if reward is None else f", reward {reward:.3f}"
    needed = f"{status.collected_episodes} of {status.needed_episodes} episodes collected"
    return f"step {status.step} of {status.steps}, {needed}, {status.open_episodes} open{said}"
