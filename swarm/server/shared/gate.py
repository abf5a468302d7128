"""The gate of generation: calls pass while it is open, wait while it is shut, and fail once it is broken.

With a `max_staleness` of 0 it is what makes the backend's promise true that no generation runs during an update: the
step loop shuts it, waits until nothing is in flight, updates, and opens it again. With 1 and more it stays open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from swarm.errors import SwarmError


class Gate:
    """Counts the calls inside. Starts shut."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._busy_s = 0.0
        self._busy_since = 0.0
        self._open = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._error: SwarmError | None = None
        self.in_flight = 0

    @property
    def busy_s(self) -> float:
        """Seconds for which calls were inside, all together."""
        return self._busy_s + (self._now() - self._busy_since if self.in_flight else 0.0)

    async def enter(self) -> None:
        """Wait until the gate is open, then count in; raise the error it was broken with."""
        while self._error is None and not self._open.is_set():
            await self._open.wait()
        if self._error is not None:
            raise self._error
        if self.in_flight == 0:
            self._busy_since = self._now()
        self.in_flight += 1
        self._empty.clear()

    def leave(self) -> None:
        """Count out."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._busy_s += self._now() - self._busy_since
            self._empty.set()

    def open(self) -> None:
        """Let calls pass."""
        self._open.set()

    def shut(self) -> None:
        """Make new calls wait; those inside go on."""
        self._open.clear()

    def fail(self, error: SwarmError) -> None:
        """Refuse all calls from now on, waiting ones too, with `error`."""
        self._error = error
        self._open.set()

    async def emptied(self, timeout_s: float) -> bool:
        """Wait until no call is inside; return False if that takes longer than `timeout_s`."""
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
