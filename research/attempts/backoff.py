"""Exponential backoff of repeated checks, by name and by the injected clock.

It is kept in memory only: a new controller checks at once, which costs one check.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from studies.log.event_log import Clock

FIRST_S = 1.0
LONGEST_S = 30.0


class _Wait(NamedTuple):
    since: datetime
    seconds: float


class Backoff:
    """Waiting times between checks, doubled after each one that found nothing, for each name by itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    def is_due(self, name: str) -> bool:
        """Whether it is time to check; a clock that was set back makes it so."""
        wait = self._waits.get(name)
        return wait is None or not 0 <= (self._clock() - wait.since).total_seconds() < wait.seconds

    def in_vain(self, name: str) -> None:
        """Record a check that found nothing: the next one is due after twice the last wait."""
        before = self._waits.get(name)
        seconds = FIRST_S if before is None else min(LONGEST_S, 2 * before.seconds)
        self._waits[name] = _Wait(self._clock(), seconds)

    def found(self, name: str) -> None:
        """Forget a name that needs no other check."""
        self._waits.pop(name, None)
