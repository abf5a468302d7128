"""A relay that stands between clients and a server and counts, by kind of request, what passes in either direction.

Counted are the bytes of HTTP, heads included, as they are written to the socket; headers of TCP and IP come on top.
One connection carries one request at a time, as HTTP/1.1 without pipelining does, so an answer's bytes belong to the
request before it. Clients must say the length of a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

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


def over_socket(path: str) -> Connect:
    """Return what connects to a Unix socket."""
    return lambda: asyncio.open_unix_connection(path)
