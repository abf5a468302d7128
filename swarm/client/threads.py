"""Threads of a client: the event loop in which blocking verbs work, and plain functions run for coroutines.

Threads that spin slow all others down, so while `MOST_LEFT` of them have not returned no further call is made.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")
MOST_LEFT: Final = 8
GOODBYE_S: Final = 5.0
"""How long what was interrupted may clean up."""
_left_behind: set[threading.Thread] = set()
_started: "dict[int, Bridge]" = {}
_starting = threading.Lock()


class Bridge:
    """Runs coroutines in an event loop on behalf of other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and wait for it; an interrupt cancels it, and lets it clean up for GOODBYE_S. Raises
        RuntimeError in the loop's own thread, which would wait for itself."""
        running = None
        with suppress(RuntimeError):  # no loop runs in this thread
            running = asyncio.get_running_loop()
        if running is self.loop:
            work.close()
            raise RuntimeError(
                "expected a blocking call outside the event loop that does the work; found one within, which would "
                "wait for itself: await the asynchronous client's verb there"
            )
        begun, over = threading.Event(), threading.Event()

        async def run_work() -> T:
            begun.set()
            try:
                return await work
            finally:
                over.set()

        future = asyncio.run_coroutine_threadsafe(run_work(), self.loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                with suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(lambda: None if begun.is_set() else work.close())
                if begun.is_set():
                    over.wait(GOODBYE_S)
            raise


def background() -> Bridge:
    """Return the way to this process's one event loop in a thread: for blocking verbs, and heartbeats of all agents."""
    with _starting:
        if (process := os.getpid()) not in _started:  # a fork has no threads of its parent
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="swarm-client", daemon=True).start()
            _started[process] = Bridge(loop)
        return _started[process]


async def run_in_thread(function: Callable[..., T], *arguments: Any, most_left: int = MOST_LEFT) -> T:
    """Call a function in a thread of its own and wait for it; a cancelled wait leaves the thread behind. SystemExit and
    StopIteration arrive as a RuntimeError. Raises TimeoutError when `most_left` threads were left behind and run on."""
    _left_behind.difference_update([thread for thread in _left_behind if not thread.is_alive()])
    if len(_left_behind) >= most_left:
        raise TimeoutError(f"{len(_left_behind)} calls took too long and have not returned yet; no other is made")
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[T] = loop.create_future()

    def settle(settle_future: Callable[[Any], None], outcome: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else settle_future(outcome))

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the loop
            ordinary = isinstance(error, Exception) and not isinstance(error, StopIteration)
            settle(
                future.set_exception, error if ordinary else RuntimeError(f"it raised {type(error).__name__}({error})")
            )
        else:
            settle(future.set_result, result)

    thread = threading.Thread(target=work, name="play", daemon=True)
    thread.start()
    try:
        return await future
    except asyncio.CancelledError:
        _left_behind.add(thread)
        raise
