"""The transport notices what is gone, and plain functions wait in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
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


async def test_the_kernel_is_told_to_ask_whether_a_silent_connection_is_there() -> None:
    with transport._keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("", 0))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_a_function_sees_the_context_of_its_caller() -> None:
    colour = contextvars.ContextVar("colour", default="none")
    colour.set("red")
    assert await run_in_thread(colour.get) == "red"


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


async def test_nobody_waits_for_a_function_whose_loop_is_closed() -> None:
    """The thread goes on, and what it returns is dropped without a word."""
    working, go_on = threading.Event(), threading.Event()
    threads_before = set(threading.enumerate())

    def slow() -> None:
        working.set()
        go_on.wait(120)

    def other_loop() -> None:
        async def given_up() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await run_in_thread(slow)

        asyncio.run(given_up())

    await asyncio.to_thread(other_loop)
    failures: list[object] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        go_on.set()
        for thread in set(threading.enumerate()) - threads_before:
            if thread.name == "play":
                await asyncio.to_thread(thread.join, 120)
    finally:
        threading.excepthook = hook
    assert failures == []
