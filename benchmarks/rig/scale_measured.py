"""What episodes send and store, played through a relay that counts.

A relay that stands between clients and a server and counts, by kind of request, what passes in either direction.

Counted are the bytes of HTTP, heads included, as they are written to the socket; headers of TCP and IP come on top.
One connection carries one request at a time, as HTTP/1.1 without pipelining does: a request begins where the client's
bytes follow an answer, and an answer's bytes belong to the request before it.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from rig.load import passage
from rig.servers import ServerProcess
from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.job import Job

_EPISODE = re.compile(r"/episodes/[^/]+")
_AT_ONCE = 1 << 16


@dataclass(slots=True)
class Exchange:
    """One request and its answer: the bytes that went up to the server and down from it, and the answer's status."""

    kind: str
    """Method and path, without query and the episode's id: `POST /episodes/ID/end`."""
    up: int = 0
    down: int = 0
    status: int = 0


@asynccontextmanager
async def relayed(url: str, passed: list[Exchange]) -> AsyncIterator[str]:
    """Pass on to http://HOST:PORT what comes to the address that is yielded, and add every request to `passed`."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        behind, to = await asyncio.open_connection(host, int(port))
        last = Exchange("", down=1)

        def asked(data: bytes) -> None:
            nonlocal last
            if last.down:
                method, target, _ = data.split(b"\r\n", 1)[0].decode().split(" ", 2)
                last = Exchange(f"{method} {_EPISODE.sub('/episodes/ID', target.partition('?')[0])}")
                passed.append(last)
            last.up += len(data)

        def answered(data: bytes) -> None:
            last.status = last.status or int(data[9:12])
            last.down += len(data)

        with suppress(asyncio.CancelledError):  # by the relay's end
            await asyncio.gather(_pumped(reader, to, asked), _pumped(behind, writer, answered))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        open_tasks = [task for task in serving if task is not None]
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[bytes], None]) -> None:
    """Pass on what comes, counted before it is sent, until a side is gone; the other then goes too."""
    with closing(writer), suppress(ConnectionError):
        while data := await reader.read(_AT_ONCE):
            count(data)
            writer.write(data)
            await writer.drain()


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
        played = Played(shape, job, before, before, [])
        async with relayed(server.url, played.passed) as url, AsyncSwarmClient(url, server.token) as client:
            tasks = [NamedTask(f"task-{number}") for number in range(job.tasks_per_step)]
            await client.rollout(_agent(shape), tasks, concurrency=shape.concurrency)
        while not (await admin.status()).finished:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)
        await admin.stop()
    played.after = look(folder / DATABASE, server.pid)
    return played


def _agent(shape: Shape) -> Callable[[Episode[Any]], Awaitable[float]]:
    async def agent(episode: Episode[Any]) -> float:
        async with nullcontext() if shape.way == "ajet" else episode.openai() as sdk:
            said: list[Any] = []
            for turn in range(shape.turns):
                said.append({"role": "user", "content": passage(turn, shape.asked)})
                if sdk is None:
                    text = (await episode.chat(said)).content
                elif shape.way == "openai":
                    reply = await sdk.chat.completions.create(model=episode.model, messages=said)
                    text = reply.choices[0].message.content or ""
                else:
                    stream = await sdk.chat.completions.create(
                        model=episode.model, messages=said, stream=True, stream_options={"include_usage": True}
                    )
                    text = "".join([choice.delta.content or "" async for event in stream for choice in event.choices])
                said.append({"role": "assistant", "content": text})
                await asyncio.sleep(shape.silent_s)
        return 1.0

    return agent


BEGIN = "POST /episodes"
CALL = "POST /v1/chat/completions"
END = "POST /episodes/ID/end"
BEAT = "POST /episodes/ID/heartbeat"
