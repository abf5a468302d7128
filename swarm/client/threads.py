"""Threads of a client: event loops in threads, and plain functions run for coroutines.

Each call of a function is made in a daemon thread of its own, so that none can hold the process up.

A pool would be joined at exit, and a function that never returns would keep its process alive for ever; a daemon
thread is left behind, and what it computes is dropped. Threads that spin slow all others down: while `MOST_LEFT` of
them have not returned, no further call is made.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
MOST_LEFT = 8
_left_behind: set[threading.Thread] = set()


class Bridge:
    """Runs coroutines in an event loop on behalf of other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and wait for it; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class LoopThread(Bridge):
    """An event loop that runs in a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        super().__init__(self._runner.get_loop())
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, *, wait: bool = True) -> None:
        """Cancel what runs in it, and end the thread."""
        self.loop.call_soon_threadsafe(self._closed.set)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._closed.wait())


async def run_in_thread(function: Callable[..., T], *arguments: Any, most_left: int = MOST_LEFT) -> T:
    """Call a function in a thread of its own and wait for it; a cancelled wait leaves the thread behind.

    What is no ordinary exception (SystemExit, StopIteration) arrives as a RuntimeError that names it. Raises
    TimeoutError when more than `most_left` calls that nobody waits for any more have not returned.
    """
    _forget_finished(most_left)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the loop
            _settle(loop, future, future.set_exception, _to_exception(error))
        else:
            _settle(loop, future, future.set_result, result)

    thread = threading.Thread(target=work, name="play", daemon=True)
    thread.start()
    try:
        return await future
    except asyncio.CancelledError:
        _left_behind.add(thread)
        raise


def _forget_finished(most_left: int) -> None:
    _left_behind.difference_update([thread for thread in _left_behind if not thread.is_alive()])
    if len(_left_behind) >= most_left:
        raise TimeoutError(f"{len(_left_behind)} calls took too long and have not returned yet; no other is made")


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], settle: Callable[..., None], to: Any) -> None:
    def settle_if_pending() -> None:
        if not future.done():
            settle(to)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle_if_pending)


def _to_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"it raised {type(error).__name__}({error})")
