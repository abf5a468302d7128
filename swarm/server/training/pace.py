"""How fast a training goes now: ids sampled in a second, and the seconds that a step takes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 10.0
"""Seconds over which sampling is averaged."""
STEPS = 10
"""Last steps over which their time is averaged."""
_BETWEEN_S = 0.4
"""Seconds between two entries of the window, so that it stays small."""


class Pace:
    """Told what was done so far, again and again; `now` counts seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._sampled: deque[tuple[float, int]] = deque()
        self._steps: deque[float] = deque(maxlen=STEPS + 1)

    def sampled(self, tokens: int) -> None:
        """So many ids were sampled since the engine was started."""
        now = self._now()
        if self._sampled and now - self._sampled[-1][0] < _BETWEEN_S:
            return
        self._sampled.append((now, tokens))
        while now - self._sampled[0][0] > WINDOW_S:
            self._sampled.popleft()

    def step(self) -> None:
        """A step is finished, or the first one begins."""
        self._steps.append(self._now())

    @property
    def sampled_per_s(self) -> float | None:
        """Ids sampled in a second, over the last WINDOW_S; None before there are two looks."""
        if len(self._sampled) < 2:
            return None
        (began, before), (ended, after) = self._sampled[0], self._sampled[-1]
        return (after - before) / (ended - began)

    @property
    def step_s(self) -> float | None:
        """Seconds from one step's end to the next, with all that is waited for between; None before the first step."""
        if len(self._steps) < 2:
            return None
        return (self._steps[-1] - self._steps[0]) / (len(self._steps) - 1)
