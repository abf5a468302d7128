"""What surrounds a server fails: its disk is full, its network repeats, reorders and loses."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.faults.harness import Books, Client, Server, check, job, moments, play_to_the_end, running

pytestmark = pytest.mark.slow

WANTED = job()
PAGES = 100
LONG = " ".join(str(number) for number in range(3000))
LONGEST_S = 0.05
"""Longest delay of a request; requests overtake each other because each has its own."""


async def full(server: Server, client: Client, books: Books) -> asyncio.Task[None]:
    await client.train(WANTED)
    playing = asyncio.create_task(play_to_the_end(client))
    async for _ in moments():
        if "store_unavailable" in books.told:
            return playing
        assert not playing.done(), "the disk was never full"
    raise AssertionError("unreachable")


async def test_a_server_killed_while_its_disk_is_full_recovers_what_it_acknowledged(tmp_path: Path) -> None:
    books = Books()
    async with running(tmp_path, pages=PAGES) as server, Client(server, books, text=LONG) as client:
        playing = await full(server, client, books)
        server.signal(signal.SIGKILL)
        await server.killed()
        await server.start()
        await client.train(WANTED)
        await playing
        await check(books, WANTED, server)


class Proxy:
    """A network that repeats, delays and reorders control-plane requests, and loses replies, by a seeded stream."""

    def __init__(self, target: str, seed: int) -> None:
        self.target = target
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._session: Any = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path.startswith("/v1/") or request.method == "GET":
            return await self._forward(request, body)
        await self._delay()
        if self._random.random() < 0.4:
            self.done["repeated"] += 1
            replies = await asyncio.gather(*(self._late(request, body) for _ in range(2)))
            return self._random.choice(replies)
        reply = await self._forward(request, body)
        if self._random.random() < 0.2:
            self.done["lost"] += 1
            assert request.transport is not None
            request.transport.abort()
        return reply

    async def _late(self, request: web.Request, body: bytes) -> web.Response:
        await self._delay()
        return await self._forward(request, body)

    async def _delay(self) -> None:
        self.done["delayed"] += 1
        await asyncio.sleep(self._random.uniform(0.0, LONGEST_S))

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
        async with self._session.request(
            request.method, self.target + request.path_qs, data=body, headers=headers
        ) as reply:
            kept = {name: reply.headers[name] for name in ("content-type", "retry-after") if name in reply.headers}
            return web.Response(body=await reply.read(), status=reply.status, headers=kept)


async def test_repeated_reordered_and_lost_requests_count_once(tmp_path: Path) -> None:
    wanted, books = job(lease_ttl_s=0.4, drain_timeout_s=0.4), Books()
    async with running(tmp_path) as server:
        proxy = Proxy(server.url, seed=1)
        async with proxy.open() as url, Client(server, books, url=url) as client:
            await client.train(wanted)
            await play_to_the_end(client, workers=6)
            await check(books, wanted, server)
    assert min(proxy.done[what] for what in ("delayed", "repeated", "lost")) > 0
