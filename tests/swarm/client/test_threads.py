"""Plain functions in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from swarm.client import threads
from swarm.client.threads import in_thread


async def test_the_loop_goes_on_while_a_function_works() -> None:
    working, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        working.set()
        assert go_on.wait(10)
        return "done"

    call = asyncio.create_task(in_thread(slow))
    while not working.is_set():  # noqa: ASYNC110 - a thread sets it
        await asyncio.sleep(0)
    go_on.set()
    assert await call == "done"


async def test_a_function_sees_the_context_of_its_caller() -> None:
    colour = contextvars.ContextVar("colour", default="none")
    colour.set("red")
    assert await in_thread(colour.get) == "red"


async def test_no_call_is_made_while_too_many_have_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_left_behind", set())
    go_on = threading.Event()
    for _ in range(threads.MOST_LEFT):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await in_thread(go_on.wait, 10)
    with pytest.raises(TimeoutError, match="have not returned"):
        await in_thread(int)
    left = list(threads._left_behind)
    go_on.set()
    for thread in left:
        await asyncio.to_thread(thread.join, 10)
    assert await in_thread(int) == 0


async def test_nobody_waits_for_a_function_whose_loop_is_closed() -> None:
    """The thread goes on, and what it returns is dropped without a word."""
    working, go_on = threading.Event(), threading.Event()
    threads_before = set(threading.enumerate())

    def slow() -> None:
        working.set()
        go_on.wait(10)

    def other_loop() -> None:
        async def given_up() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await in_thread(slow)

        asyncio.run(given_up())

    await asyncio.to_thread(other_loop)
    failures: list[object] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        go_on.set()
        for thread in set(threading.enumerate()) - threads_before:
            if thread.name == "play":
                await asyncio.to_thread(thread.join, 10)
    finally:
        threading.excepthook = hook
    assert failures == []
