"""The transport waits for a server as long as that lives, and plain functions wait in threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from swarm.client import threads, transport
from swarm.client.threads import run_in_thread
from swarm.client.transport import Transport
from swarm.errors import Unreachable

SHORT_S = 0.05  # instead of the time after which a server is asked for its health


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SILENCE_S", SHORT_S)
    monkeypatch.setattr(transport, "ANSWER_S", 4 * SHORT_S)


class Silent:
    """A server whose answers to calls come when they are told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.healthy = asyncio.Event()
        self.healthy.set()
        self.calls = 0

    async def call(self, _: web.Request) -> web.Response:
        self.calls += 1
        await self.answer.wait()
        return web.json_response({"said": "after all"})

    async def health(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.healthy.wait()
        return web.json_response({})

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Transport]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.call)
        app.router.add_get("/health", self.health)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with Transport(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
                yield client
        finally:
            self.answer.set()
            self.healthy.set()
            await runner.cleanup()


def call(client: Transport) -> asyncio.Task[object]:
    return asyncio.create_task(client.call("POST", "/v1/chat/completions", "key", b"{}"))


async def test_a_server_that_lives_is_waited_for_and_asked_once() -> None:
    silent = Silent()
    async with asyncio.timeout(60), silent.serve() as client:
        asked = call(client)
        for _ in range(3):
            await silent.asked.wait()
            silent.asked.clear()
        assert not asked.done()
        silent.answer.set()
        assert await asked == {"said": "after all"}
        assert silent.calls == 1


async def test_a_server_that_does_not_say_that_it_lives_is_taken_for_gone() -> None:
    silent = Silent()
    silent.healthy.clear()
    async with asyncio.timeout(60), silent.serve() as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
            await call(client)


async def test_a_call_nobody_waits_for_any_more_is_cut() -> None:
    came, gone = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        while await reader.read(65536):
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(60), server, Transport(url) as client:
        asked = call(client)
        await came.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await gone.wait()


async def test_no_call_is_made_while_too_many_have_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_left_behind", set())
    go_on = threading.Event()
    for _ in range(threads.MOST_LEFT):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await run_in_thread(go_on.wait, 120)
    with pytest.raises(TimeoutError, match="have not returned"):
        await run_in_thread(int)
    left = list(threads._left_behind)
    go_on.set()
    for thread in left:
        await asyncio.to_thread(thread.join, 120)
    assert await run_in_thread(int) == 0
