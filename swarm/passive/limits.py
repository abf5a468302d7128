"""Limits: how often an application, and a user of it, may ask. Token buckets in memory; a restart fills them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from swarm.errors import Throttled

MOST_BUCKETS = 65_536
"""Of one kind; the longest unused is forgotten first, which fills it."""


class RateLimit:
    """`per_minute` requests a minute for each name, and as many at once after a quiet minute. `clock` is in seconds."""

    def __init__(self, what: str, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._per_minute = per_minute
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """Count a request; raise Throttled, with the seconds until the next one is allowed, beyond the limit."""
        now = self._clock()
        left, at = self._left.get(name, (self._per_minute, now))
        left = min(self._per_minute, left + (now - at) * self._per_minute / 60)
        if left < 1:
            wait_s = (1 - left) * 60 / self._per_minute
            raise Throttled(
                f"expected at most {self._per_minute:g} requests a minute of this {self._what}, found more; wait "
                f"{wait_s:.1f} s",
                retry_after=wait_s,
            )
        self._left[name] = (left - 1, now)
        self._left.move_to_end(name)
        if len(self._left) > MOST_BUCKETS:
            self._left.popitem(last=False)
