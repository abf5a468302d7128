"""What episodes send and store, played through a relay that counts.

A relay that stands between clients and a server and counts, by kind of request, what passes in either direction.

Counted are the bytes of HTTP, heads included, as they are written to the socket; headers of TCP and IP come on top.
One connection carries one request at a time, as HTTP/1.1 without pipelining does, so an answer's bytes belong to the
request before it. Clients must say the length of a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import (
    Any,
    Literal,
    Self,
)

import psutil

from rig.load import passage
from rig.servers import ServerProcess
from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.job import Job

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_EPISODE = re.compile(r"/episodes/[^/]+")
_AT_ONCE = 1 << 16


@dataclass(slots=True)
class Exchange:
    """One request and its answer: the bytes that went up to the server and down from it, and the answer's status."""

    kind: str
    up: int = 0
    down: int = 0
    status: int = 0


class Requests:
    """Reads the requests of one connection as their bytes come, and adds each to `passed`."""

    def __init__(self, passed: list[Exchange]) -> None:
        self._passed = passed
        self._last = Exchange("")
        self._head = b""
        self._left = 0

    def asked(self, data: bytes) -> None:
        """Take the next bytes from the client, however they are cut."""
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                self._last.up += len(part)
            else:
                data = self._begin(self._head + data)

    def answered(self, data: bytes) -> None:
        """Take the next bytes of the answer."""
        if not self._last.down:
            self._last.status = int(data[9:12])
        self._last.down += len(data)

    def _begin(self, data: bytes) -> bytes:
        """Read a head; return what follows it, nothing where it is not whole yet."""
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._head = data
            return b""
        self._head, head = b"", data[:end]
        if b"\r\ntransfer-encoding:" in head.lower():
            raise ValueError("expected a request that says its length; found one in chunks")
        length = _LENGTH.search(head)
        self._left = 0 if length is None else int(length[1])
        self._last = Exchange(kind_of(head), up=end)
        self._passed.append(self._last)
        return data[end:]


def kind_of(head: bytes) -> str:
    """Return a request's method and path, without its query and the episode's id: `POST /episodes/ID/end`."""
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
    return f"{method} {_EPISODE.sub('/episodes/ID', target.partition('?')[0])}"


class Relay:
    """Listens on the loopback while its context is entered; `connect` makes a connection to what stands behind it."""

    def __init__(self, connect: Connect) -> None:
        self.passed: list[Exchange] = []
        """Every request, in the order of their beginnings."""
        self._connect = connect
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        requests = Requests(self.passed)
        behind, to = await self._connect()
        with contextlib.suppress(asyncio.CancelledError):  # by the relay's end
            async with asyncio.TaskGroup() as group:
                group.create_task(_pumped(reader, to, requests.asked))
                group.create_task(_pumped(behind, writer, requests.answered))


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[bytes], None]) -> None:
    """Pass on what comes, counted before it is sent, until a side is gone; the other then goes too."""
    with contextlib.closing(writer), contextlib.suppress(ConnectionError):
        while data := await reader.read(_AT_ONCE):
            count(data)
            writer.write(data)
            await writer.drain()


def over_tcp(url: str) -> Connect:
    """Return what connects to an address of the form http://HOST:PORT."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    return lambda: asyncio.open_connection(host, int(port))


TABLES = ("episodes", "nodes", "steps", "events", "streams", "task_lists", "checkpoints", "trainings")
_PAYLOAD = """
    SELECT m.tbl_name, SUM(s.payload) FROM dbstat s JOIN sqlite_master m ON m.name = s.name GROUP BY m.tbl_name
"""
"""Bytes of rows and of entries in their indices, without what a page leaves free."""
_TOKENS = "SELECT COALESCE(SUM(LENGTH(context)), 0) / 4, COALESCE(SUM(LENGTH(sampled)), 0) / 4 FROM nodes"


@dataclass(frozen=True, slots=True)
class Held:
    """A store at one moment: rows and bytes by table, tokens in them, commits so far."""

    rows: Mapping[str, int]
    payload: Mapping[str, int]
    context: int
    sampled: int
    commits: int
    written: int
    """Bytes that the kernel counts as written to a disk by the server's process: log, write-ahead log and database."""


def look(database: Path, pid: int) -> Held:
    """Read a store and its server's counters."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reader:

        def one(query: str) -> tuple[int, ...]:
            return tuple(reader.execute(query).fetchone())

        context, sampled = one(_TOKENS)
        return Held(
            rows={table: one(f"SELECT COUNT(*) FROM {table}")[0] for table in TABLES},
            payload=dict(reader.execute(_PAYLOAD).fetchall()),
            context=context,
            sampled=sampled,
            commits=one("SELECT COALESCE(SUM(written), 0) FROM trainings")[0],
            written=psutil.Process(pid).io_counters().write_bytes,
        )


DATABASE = "store.sqlite3"
Way = Literal["ajet", "openai", "openai, streamed"]
"""By which client the agent makes its calls."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What each episode is like, and how many are played; `silent_s` is how long its agent is silent after a call."""

    turns: int
    way: Way = "ajet"
    concurrency: int = 32
    silent_s: float = 0.0
    asked: int = 240
    """Characters of each of the agent's own messages."""


@dataclass(slots=True)
class Played:
    """What became of a shape: what passed between client and server, and the store around it."""

    shape: Shape
    job: Job
    before: Held
    after: Held
    passed: list[Exchange]

    @property
    def episodes(self) -> int:
        """Episodes that were trained."""
        return self.job.steps * self.job.episodes_per_step

    def granted(self, kind: str) -> list[Exchange]:
        """Return the requests of a kind that were not refused, as the client has them."""
        return [each for each in self.passed if each.kind == kind and each.status == 200]


async def play(server: ServerProcess, folder: Path, job: Job, shape: Shape) -> Played:
    """Train a job with episodes of a shape; the server must have no job, and has none afterwards."""
    async with AsyncSwarmClient(server.url, server.token) as admin:
        await admin.ensure_training(job)
        before = look(folder / DATABASE, server.pid)
        async with Relay(over_tcp(server.url)) as relay:
            played = Played(shape, job, before, before, relay.passed)
            async with AsyncSwarmClient(relay.url, server.token) as client:
                tasks = [NamedTask(f"task-{number}") for number in range(job.tasks_per_step)]
                agent = _agent(shape)
                await client.rollout(agent, tasks, concurrency=shape.concurrency)
        while not (await admin.status()).finished:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)
        await admin.stop()
    played.after = look(folder / DATABASE, server.pid)
    return played


def _agent(shape: Shape) -> Callable[[Episode[Any]], Awaitable[float]]:
    async def agent(episode: Episode[Any]) -> float:
        async with _WAYS[shape.way](episode) as answer:
            said: list[dict[str, str]] = []
            for turn in range(shape.turns):
                said.append({"role": "user", "content": passage(turn, shape.asked)})
                text = await answer(said)
                said.append({"role": "assistant", "content": text})
                await asyncio.sleep(shape.silent_s)
        return 1.0

    return agent


Answer = Callable[[list[Any]], Awaitable[str]]
"""Returns the answer's text."""


@asynccontextmanager
async def _by_ajet(episode: Episode[Any]) -> AsyncIterator[Answer]:
    async def answer(said: list[Any]) -> str:
        return (await episode.chat(said)).content

    yield answer


@asynccontextmanager
async def _by_openai(episode: Episode[Any]) -> AsyncIterator[Answer]:
    async with episode.openai() as sdk:

        async def answer(said: list[Any]) -> str:
            reply = await sdk.chat.completions.create(model=episode.model, messages=said)
            return reply.choices[0].message.content or ""

        yield answer


@asynccontextmanager
async def _by_openai_streamed(episode: Episode[Any]) -> AsyncIterator[Answer]:
    async with episode.openai() as sdk:

        async def answer(said: list[Any]) -> str:
            stream = await sdk.chat.completions.create(
                model=episode.model, messages=said, stream=True, stream_options={"include_usage": True}
            )
            return "".join([choice.delta.content or "" async for event in stream for choice in event.choices])

        yield answer


_WAYS: dict[Way, Callable[[Episode[Any]], AbstractAsyncContextManager[Answer]]] = {
    "ajet": _by_ajet,
    "openai": _by_openai,
    "openai, streamed": _by_openai_streamed,
}


BEGIN = "POST /episodes"
CALL = "POST /v1/chat/completions"
END = "POST /episodes/ID/end"
BEAT = "POST /episodes/ID/heartbeat"
