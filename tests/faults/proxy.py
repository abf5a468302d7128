"""A network between client and server that repeats, delays and reorders control-plane requests, and loses replies."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

LONGEST_S = 0.05
"""Longest delay; requests overtake each other because each has its own."""


class Proxy:
    """Forwards to `target`; what it does to each request is drawn from a seeded stream."""

    def __init__(self, target: str, seed: int) -> None:
        self.target = target
        self.done: Counter[str] = Counter()
        """How often a request was delayed, repeated, or its reply lost."""
        self._random = random.Random(seed)
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Serve on a free port; yield the address."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
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
            return await self._twice(request, body)
        reply = await self._forward(request, body)
        if self._random.random() < 0.2:
            self.done["lost"] += 1
            assert request.transport is not None
            request.transport.abort()
        return reply

    async def _twice(self, request: web.Request, body: bytes) -> web.Response:
        """Send a request twice, the second copy at any time; answer with one of the replies."""

        async def copy() -> web.Response:
            await self._delay()
            return await self._forward(request, body)

        replies = await asyncio.gather(copy(), copy())
        return self._random.choice(replies)

    async def _delay(self) -> None:
        self.done["delayed"] += 1
        await asyncio.sleep(self._random.uniform(0.0, LONGEST_S))

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        assert self._session is not None
        headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
        async with self._session.request(
            request.method, self.target + request.path_qs, data=body, headers=headers
        ) as reply:
            kept = {name: reply.headers[name] for name in ("content-type", "retry-after") if name in reply.headers}
            return web.Response(body=await reply.read(), status=reply.status, headers=kept)
