"""Servers with a fault, restarted in the same directory, and clients that keep books of what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import create_engine

from swarm.client import AsyncSwarmClient
from swarm.client.async_client import NamedTask
from swarm.client.episode import Episode
from swarm.errors import EngineUnavailable, EpisodeEnded, JobFinished, LeaseLost, Throttled, Unreachable
from swarm.job import Job
from swarm.store import reading
from swarm.wire import EpisodeSummary
from tests.faults.points import Fault

DEADLINE_S = 180.0
PATIENCE_S = 180.0
"""How long a client sends the same request again while the server is away: nothing may hang longer."""
TURNS = 2
"""Calls of an episode."""
SAID = [{"role": "user", "content": "from 1 to 9"}]
T = TypeVar("T")

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.faults.server_process"])


def job(**fields: Any) -> Job:
    """Return a small job: three steps of two groups of two, a checkpoint after the second and the last."""
    small = {
        "backend": "fake", "steps": 3, "episodes_per_step": 4, "group_size": 2, "checkpoint_every": 2,
        "lease_ttl_s": 2.0, "drain_timeout_s": 2.0, "max_context": 100_000,
    }  # fmt: skip
    return Job.model_validate({**small, **fields})


def _serve(*arguments: Any) -> None:
    from tests.faults import server_process

    server_process.run(*arguments)


class Server:
    """One server directory and the process that serves it now."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lives = 0
        self._port = 0
        self._process: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def token(self) -> str:
        return str(json.loads((self.directory / "tokens.json").read_text())["admin"])

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    async def start(self, fault: Fault | None = None, pages: int | None = None) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        arguments = (self.directory, self._port, fault, pages)
        self._process = _processes.Process(target=_serve, args=arguments, daemon=True)
        await asyncio.to_thread(self._process.start)
        self.lives += 1
        path = self.directory / "server.json"
        async for _ in moments():
            if self._process.exitcode is not None:
                raise AssertionError(f"the server did not start:\n{self.log[-2000:]}")
            with contextlib.suppress(FileNotFoundError, ValueError):
                found = json.loads(path.read_text())
                if found["pid"] == self._process.pid:
                    self._port = int(found["url"].rpartition(":")[2])
                    return

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    async def killed(self) -> None:
        async for _ in moments():
            if self._process.exitcode is not None:
                assert self._process.exitcode == -signal.SIGKILL, self.log[-3000:]
                return

    def stop(self) -> None:
        if self._process is not None and self._process.exitcode is None:
            self._process.kill()
            self._process.join()


async def moments(seconds: float = DEADLINE_S) -> AsyncIterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        await asyncio.sleep(0.005)
    raise AssertionError(f"it did not come to pass within {seconds:g} s")


@contextlib.asynccontextmanager
async def running(directory: Path, fault: Fault | None = None, pages: int | None = None) -> AsyncIterator[Server]:
    server = Server(directory)
    try:
        await server.start(fault, pages)
        yield server
    finally:
        server.stop()


@dataclass
class Play:
    """What a client knows of one episode: what it was served, and what it was told of its end."""

    episode: str
    tokens: int = 0
    """Tokens it was served: the completion tokens of all replies."""
    doubtful: bool = False
    """A call was sent again: a reply it never got may be part of the episode."""
    end_sent: bool = False
    acknowledged: bool = False


@dataclass
class Books:
    """What the clients know: all episodes, and every refusal they were told, by its code."""

    plays: dict[str, Play] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)


class Client:
    """An agent's process as it should be: it sends again what was not answered, and begins anew what it lost. Each
    conversation begins with `text`."""

    def __init__(self, server: Server, books: Books, text: str = "from 1 to 9") -> None:
        self._server = server
        self._books = books
        self._text = text
        self._clients: dict[str, AsyncSwarmClient] = {}

    @property
    def swarm(self) -> AsyncSwarmClient:
        token = self._server.token
        if token not in self._clients:
            self._clients[token] = AsyncSwarmClient(self._server.url, token, owner="faults")
        return self._clients[token]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.close()

    async def train(self, wanted: Job) -> None:
        async for _ in moments():
            with contextlib.suppress(Unreachable, EngineUnavailable):
                await self.swarm.ensure_training(wanted, timeout_s=PATIENCE_S)
                return

    async def play_on(self, places: Iterator[str]) -> None:
        for task in places:
            done = False
            while not done:
                try:
                    done = await self.play(task)
                except JobFinished:
                    return

    async def play(self, task: str) -> bool:
        episode = await self.until_answered(lambda: self.swarm.begin(NamedTask(task), wait_s=1.0))
        play = self._books.plays.setdefault(episode.id, Play(episode.id))
        try:
            await self._carry(episode, play)
        except (LeaseLost, EpisodeEnded) as error:
            self._books.told.append(error.code)
            return False
        return True

    async def _carry(self, episode: Episode[Any], play: Play) -> None:
        said = [{"role": "user", "content": self._text}]
        for turn in range(TURNS):
            reply = await self.until_answered(partial(episode.chat, said), play)
            play.tokens += reply.raw["usage"]["completion_tokens"]
            said += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": f"more {turn}"}]
        play.end_sent = True
        await self.until_answered(lambda: episode.end(float(len(episode.id) % 2)))
        play.acknowledged = True

    async def until_answered(self, work: Callable[[], Awaitable[T]], play: Play | None = None) -> T:
        """Do it again while the server is away or has no room; whatever else it says is raised."""
        async for _ in moments(PATIENCE_S):
            try:
                return await work()
            except (Unreachable, EngineUnavailable, Throttled) as error:
                self._books.told.append(error.code)
                if play is not None:
                    play.doubtful = True
        raise AssertionError("unreachable")


async def play_to_the_end(client: Client, *, workers: int = 4) -> None:
    shared = (f"task-{number}" for number in itertools.cycle(range(3)) for _ in range(2))  # places of groups
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(client.play_on(shared))


DOCUMENTED = {
    "lease_lost", "episode_ended", "unreachable", "engine_unavailable", "store_unavailable", "throttled",
    "server_failed", "job_finished",
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    steps: dict[int, dict[str, int]]

    @property
    def step_of(self) -> dict[str, int]:
        return {episode: step for step, batch in self.steps.items() for episode in batch}


def newest_weights(directory: Path) -> Weights:
    """Return what the newest whole checkpoint below a server's directory holds; every episode in it is there once."""
    found = [json.loads(path.read_text()) for path in directory.glob("**/checkpoints/**/fake.json")]
    newest = max(found, key=lambda value: int(value["version"]))
    steps = [step for step, _ in newest["trained"]]
    assert steps == list(range(1, newest["version"] + 1)), f"each step once and in order, found {steps}"
    times = Counter(name for _, batch in newest["trained"] for name, _ in batch)
    twice = [name for name, number in times.items() if number > 1]
    assert not twice, f"trained more than once: {twice}"
    return Weights({step: dict(batch) for step, batch in newest["trained"]})


async def check(books: Books, job: Job, server: Server) -> dict[str, EpisodeSummary]:
    """Assert that a finished training and its clients tell the same story; return what the store says of each episode.

    It stops the engine first, so that all is written. An episode that was begun and never called may be unknown to the
    store: its beginning is not waited for.
    """
    async with AsyncSwarmClient(server.url, server.token) as client:
        await client.stop()
    weights, stored = newest_weights(server.directory), stored_episodes(server.directory)
    assert len(weights.steps) == job.steps
    assert all(len(batch) == job.episodes_per_step for batch in weights.steps.values())
    assert set(weights.step_of) <= set(books.plays), "trained what no client ever played"
    for name, play in books.plays.items():
        if name in stored:
            _check_one(play, stored[name], weights)
        else:
            assert not play.tokens, f"{name} was served, and the store does not know it"
    assert set(books.told) <= DOCUMENTED, set(books.told) - DOCUMENTED
    return stored


def _check_one(play: Play, stored: EpisodeSummary, weights: Weights) -> None:
    step = weights.step_of.get(play.episode)
    assert stored.step == step, f"{play}: the store says step {stored.step}, the weights say {step}"
    if step is not None:
        assert play.end_sent, f"{play} was trained, and nobody ended it"
        assert stored.state == "consumed"
        trained = weights.steps[step][play.episode]
        assert trained == play.tokens or (play.doubtful and trained > play.tokens), (trained, play)
    elif play.acknowledged:
        assert stored.state == "dropped", f"{play} was acknowledged, is not trained, and is {stored.state}"
        assert stored.reason, f"{play} was dropped without a reason"
    else:
        assert stored.state != "open"


def stored_episodes(directory: Path) -> dict[str, EpisodeSummary]:
    engine = create_engine(f"sqlite:///{directory / 'store.sqlite3'}")
    with engine.connect() as connection:
        found = reading.episodes(connection, training=1, limit=1_000_000).episodes
    engine.dispose()
    return {episode.id: episode for episode in found}
