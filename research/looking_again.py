"""When to look again for what was not there yet: soon at first, then at growing distances, by the injected clock.

It is kept in memory alone: a controller that begins anew looks at once, which costs it one look.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from studies.events import Clock

FIRST_S = 1.0
LONGEST_S = 30.0


class _Wait(NamedTuple):
    since: datetime
    seconds: float


class LookingAgain:
    """Distances between looks, doubled after each look in vain, for each name by itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    def is_due(self, name: str) -> bool:
        """Whether it is time to look; a clock that was set back makes it so."""
        wait = self._waits.get(name)
        return wait is None or not 0 <= (self._clock() - wait.since).total_seconds() < wait.seconds

    def in_vain(self, name: str) -> None:
        """Take it that nothing was there: the next look is due after twice the last distance."""
        before = self._waits.get(name)
        seconds = FIRST_S if before is None else min(LONGEST_S, 2 * before.seconds)
        self._waits[name] = _Wait(self._clock(), seconds)

    def found(self, name: str) -> None:
        """Forget a name that needs no other look."""
        self._waits.pop(name, None)
