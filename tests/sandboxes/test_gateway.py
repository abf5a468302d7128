"""The gateway on real sockets: what passes, what does not, and what becomes of either side when the other goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from sandboxes.gateway import Gateway, Request, Upstream

TOKEN = "the-run's-token"


def admit_all(_: Request) -> str | None:
    return None


@dataclass
class Seen:
    """What reached the server behind the gateway."""

    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def headers(self) -> dict[str, str]:
        return self.requests[-1][2]


@contextlib.asynccontextmanager
async def server(
    handler: Callable[[web.BaseRequest], Any], *, cancel: bool = True, port: int = 0
) -> AsyncIterator[str]:
    """Serve on loopback; yields the address."""
    made = web.Server(handler, handler_cancellation=cancel, access_log=None)
    listener = await asyncio.get_running_loop().create_server(made, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await made.shutdown(0.0)


def recorder(seen: Seen) -> Callable[[web.BaseRequest], Any]:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen.requests.append((request.method, request.raw_path, headers, body))
        return web.json_response({"ok": True})

    return handle


@contextlib.asynccontextmanager
async def client(folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A client in the container's place: its addresses are 127.0.0.1:8000."""
    connector = aiohttp.UnixConnector(str(folder / "server.sock"), limit=0)
    async with aiohttp.ClientSession("http://127.0.0.1:8000", connector=connector) as session:
        yield session


@contextlib.asynccontextmanager
async def gateway(
    folder: Path, url: str, admits: Callable[[Request], str | None] = admit_all
) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession]]:
    async with (
        Gateway(folder / "exchange", upstream=Upstream(url, TOKEN, admits), log=folder / "egress.jsonl") as opened,
        client(folder / "exchange") as session,
    ):
        yield opened, session


async def test_the_placeholder_is_replaced_by_the_runs_token_and_another_key_passes(tmp_path: Path) -> None:
    seen = Seen()
    async with server(recorder(seen)) as url, gateway(tmp_path, url) as (_, http):
        for sent, arrived in (("Bearer sandbox", f"Bearer {TOKEN}"), ("Bearer other", "Bearer other")):
            async with http.post("/v1/chat/completions", data=b"{}", headers={"Authorization": sent}) as reply:
                assert reply.status == 200
            assert seen.headers["authorization"] == arrived
            assert seen.headers["host"] == "127.0.0.1:8000"


async def test_each_piece_of_a_stream_arrives_before_the_next_is_made(tmp_path: Path) -> None:
    turn = asyncio.Event()

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            await response.write(b"data: %d\n\n" % number)
            await turn.wait()
            turn.clear()
        return response

    async with server(stream) as url, gateway(tmp_path, url) as (_, http), http.get("/v1/events") as reply:
        for number in range(3):
            assert await reply.content.readany() == b"data: %d\n\n" % number
            turn.set()
        assert await reply.content.read() == b""
