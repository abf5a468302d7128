"""What the tests of gateway and egress share: a server on loopback, and an agent at a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

DEADLINE_S = 180.0
HOST = b"Host: 127.0.0.1:8000\r\n"
Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.raw_path, headers, body))
        return web.json_response({"ok": True})

    @property
    def headers(self) -> dict[str, str]:
        return self.requests[-1][2]

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _, _ in self.requests]


@contextlib.asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    made = web.Server(handler, handler_cancellation=True, access_log=None)
    listener = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0, ssl=tls)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await made.shutdown(0.01)


@contextlib.asynccontextmanager
async def speaking(speak: Speak, path: Path | None = None) -> AsyncIterator[Any]:
    """Serve at a port of loopback, which is yielded, or at the path of a Unix socket, in place of whoever did."""

    async def spoken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await speak(reader, writer)
        finally:
            writer.close()

    if path is None:
        listener = await asyncio.start_server(spoken, "127.0.0.1", 0)
    else:
        listener = await asyncio.start_unix_server(spoken, path)
    try:
        yield listener.sockets[0].getsockname()[-1]
    finally:
        listener.close()


@dataclass
class Raw:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send bytes, and return the reply to them: status, headers, and its body as far as Content-Length tells."""
        self.writer.write(data)
        return await self.reply()

    async def status(self, data: bytes) -> int:
        return (await self.ask(data))[0]

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(DEADLINE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            return int(first.split()[1]), headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def rest(self) -> bytes:
        """Return all that comes until the other side ends the connection."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read()


@contextlib.asynccontextmanager
async def raw(path: Path) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def error_of(body: bytes) -> dict[str, Any]:
    return dict(json.loads(body)["error"])


async def eventually(look: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            seen = look()
            if await seen if inspect.isawaitable(seen) else seen:
                return
            await asyncio.sleep(0.005)


def request(method: str, path: str, body: bytes = b"", *, more: bytes = b"", host: bytes = HOST) -> bytes:
    framed = b"Content-Length: %d\r\n" % len(body) if method == "POST" else b""
    return f"{method} {path} HTTP/1.1\r\n".encode() + host + more + framed + b"\r\n" + body


GET = request("GET", "/health")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def send(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(body)
    await writer.drain()
    writer.write_eof()


@dataclass
class Endless:
    """Speaks without an end, and counts what it could write."""

    head: bytes = b""
    until: bytes = b""
    written: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.until:
            await reader.readuntil(self.until)
        writer.write(self.head)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
                self.written += 1 << 16

    async def stands_still(self) -> bool:
        """Wait until nothing more is taken; say whether that came before 30 MB."""
        before = -1
        while before != self.written or not self.written:
            before = self.written
            await asyncio.sleep(0.1)
        return self.written < 30_000_000


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await event.wait()


async def turns(count: int = 20) -> None:
    """Let the event loop do what needs no waiting."""
    for _ in range(count):
        await asyncio.sleep(0)


class LoopClock:
    """The clock of the event loop, which a test sets forward: what is due by then goes off at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_s, time = 0.0, loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + self._ahead_s)

    async def forward(self, seconds: float) -> None:
        self._ahead_s += seconds
        await turns()
