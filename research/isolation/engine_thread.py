"""Calls to a container engine from an event loop: its SDK blocks, so all calls go through one thread.

One thread, because the calls about a container have an order, and a stop is to come after what it interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class EngineThread:
    """The one thread of calls to an engine; each is made within `errors`, which may translate its errors."""

    def __init__(self, errors: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self._errors = errors
        self._thread = ThreadPoolExecutor(1, "engine")

    async def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a call returns; it is not made if its caller is cancelled while it waits for its turn."""
        return await asyncio.wrap_future(self._thread.submit(self._do, partial(call, *args, **kwargs)))

    async def see_through(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the same; the call is made even if its caller is cancelled while it waits for its turn."""
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(self._do, partial(call, *args, **kwargs))))

    def _do(self, call: Callable[[], T]) -> T:
        with self._errors():
            return call()

    def close(self) -> None:
        """Wait for the last call."""
        self._thread.shutdown()
