"""Which replica a request goes to: the one that answered its session before, else the least busy.

Promises: a session stays with its replica while that serves and the session is among the last `MOST_SESSIONS`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

MOST_SESSIONS: Final = 65_536
"""Sessions whose replica is remembered; of more, those that asked longest ago are forgotten."""


class Router:
    """Remembers where sessions are."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._places: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def choose(self, session: str, in_flight: Mapping[int, int]) -> int:
        """Return a replica of those that serve, `in_flight` (not empty); session "" is of nobody."""
        place = self._places.get(session)
        if place is None or place not in in_flight:
            place = min(in_flight, key=lambda number: (in_flight[number], number))
        if session:
            self._remember(session, place)
        return place

    def _remember(self, session: str, place: int) -> None:
        self._places[session] = place
        self._places.move_to_end(session)
        if len(self._places) > self._most:
            self._places.popitem(last=False)
