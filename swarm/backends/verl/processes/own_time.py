"""Bounds on waiting that count only the time in which this process ran.

A process that was stopped, or a machine that slept, finds on waking that hours have passed in which nobody could have
answered it: what it waits for is not to blame. Time is counted in slices; one counts as itself, however long it took.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, TypeVar

SLICE_S: Final = 1.0
"""Seconds of a slice."""
T = TypeVar("T")


class OwnTime:
    """Seconds that something may still take."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    @property
    def slice(self) -> float:
        """Seconds to wait now."""
        return max(0.0, min(SLICE_S, self.left))

    def spend(self) -> bool:
        """Count a slice in which nothing came; return whether more may follow."""
        self.left -= self.slice or SLICE_S
        return self.left > 0


async def within(future: asyncio.Future[T], seconds: float) -> T:
    """Return what a future comes to within so many seconds; raise TimeoutError, and cancel it, where it does not."""
    patience = OwnTime(seconds)
    try:
        while True:
            done, _ = await asyncio.wait({future}, timeout=patience.slice)
            if done:
                return future.result()
            if not patience.spend():
                raise TimeoutError
    finally:
        if not future.done():
            future.cancel()


def ready_within(ray: Any, reference: Any, seconds: float) -> bool:
    """Return whether a reference of Ray's is ready within so many seconds. Blocks."""
    patience = OwnTime(seconds)
    while not ray.wait([reference], timeout=patience.slice)[0]:
        if not patience.spend():
            return False
    return True


class Silence:
    """Seconds, of those in which this process ran, since something was last heard."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._looked = time.monotonic()

    def end(self) -> None:
        """Say that something was heard."""
        self._seconds, self._looked = 0.0, time.monotonic()

    def lasts(self, most_between: float) -> float:
        """Return for how long it was silent; between two looks no more than `most_between` seconds count."""
        now = time.monotonic()
        self._seconds += min(now - self._looked, most_between)
        self._looked = now
        return self._seconds
