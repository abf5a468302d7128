"""A swarm server in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from swarm.job import Job
from tests.swarm.server.support import DEADLINE_S, Served, serving

T = TypeVar("T")


class Threaded:
    """A running server; `run` awaits work on its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, served: Served) -> None:
        self._loop = loop
        self.served = served

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)


@contextlib.contextmanager
def threaded(folder: Path, wanted: Job | None = None, **how: Any) -> Iterator[Threaded]:
    """Serve a job as `serving` does, until the block is left."""
    loop, done, ready = asyncio.new_event_loop(), asyncio.Event(), Future[Served]()

    async def serve() -> None:
        try:
            async with serving(folder, wanted, **how) as served:
                ready.set_result(served)
                await done.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield Threaded(loop, ready.result(DEADLINE_S))
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()
