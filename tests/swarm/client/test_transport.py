"""The transport notices what is gone, and plain functions wait in threads of their own."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from swarm.client import threads, transport
from swarm.client.threads import run_in_thread
from swarm.client.transport import Transport


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
        asked = asyncio.create_task(client.call("POST", "/v1/chat/completions", "key", b"{}"))
        await came.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await gone.wait()


def test_the_kernel_notices_within_two_minutes_that_the_other_side_is_gone() -> None:
    with transport._keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("", 0))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count, unacknowledged = (
            made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in transport._KEEPALIVE
        )
    assert idle + interval * count <= 120, "where nothing is sent"
    assert unacknowledged <= 120_000, "where what was sent is not taken"


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
