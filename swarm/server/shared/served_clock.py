"""The clock of leases: it counts only the seconds in which the server could answer.

A process that was stopped, or whose event loop was held by one long call, could not take the heartbeats that wait in
its sockets. A regular beat on the loop shows it: what lies between two beats counts for MOST_S at most, so leases,
drain times and whatever else is measured by this clock are extended by the stall, before anything is swept. While a
machine sleeps the monotonic clock below stands too (on Linux and macOS), with the same effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BEAT_S = 0.05
MOST_S = 0.25
"""Most that passes between two beats: five times what it should be, which a busy loop keeps."""


class ServedClock:
    """Seconds that were served, from an arbitrary beginning; `clock` is the one below."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten = clock()
        self._served = 0.0

    def __call__(self) -> float:
        """Return the seconds now."""
        return self._served + min(self._clock() - self._beaten, MOST_S)

    def beat(self) -> None:
        """Note that the server is at work."""
        self._served, self._beaten = self(), self._clock()

    async def run(self) -> None:
        """Beat on this event loop, until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_S)
