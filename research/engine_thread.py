"""Speaking to a container engine from an event loop: its SDK blocks, so all calls go through one thread.

One thread, because calls of one attempt have an order, and a stop is to come after what it interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from research.codes import ENGINE_GONE, AttemptFailed
from research.sandboxing import one_line
from sandboxes import SandboxError
from sandboxes.engine import Engine

P = ParamSpec("P")
T = TypeVar("T")


class EngineThread:
    """The one thread in which an attempt speaks to its engine, for the SDK blocks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "engine")

    async def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a call returns; its SandboxError is the attempt's failure, or the engine's if that is gone."""
        return await asyncio.wrap_future(self._thread.submit(self._do, partial(call, *args, **kwargs)))

    async def see_through(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the same; the call is made though whoever waits for it is cancelled while it waits for its turn."""
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(self._do, partial(call, *args, **kwargs))))

    def _do(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except SandboxError as error:
            code = "container_refused" if self._answers() else ENGINE_GONE
            raise AttemptFailed(code, one_line(error)) from error

    def _answers(self) -> bool:
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            return bool(self._engine.client.ping())
        except (DockerException, RequestException):
            return False

    def close(self) -> None:
        """Wait for the last call."""
        self._thread.shutdown()
