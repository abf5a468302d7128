"""The clocks of one machine over many days, which do not agree: what real ones do in a sleep and where they are set.

`true` is the time for which the machine was awake, and what attempts run by. The wall clock runs on in a sleep, and
jumps where somebody sets it, back too. The stopwatch stands in a sleep; the steady clock runs on and never jumps.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from simlab.flights.clock import SimClock


class HaulClock(SimClock):
    """The clocks of one machine; calling it reads the wall clock."""

    def __init__(self) -> None:
        super().__init__()
        self._slept_s = 0.0
        self._set_s = 0.0

    def __call__(self) -> datetime:
        """Return the time of the wall clock."""
        return self.true + timedelta(seconds=self._slept_s + self._set_s)

    def steady(self) -> float:
        """Return the seconds since the begin, sleeps included, whatever the wall clock was set to."""
        return self.seconds() + self._slept_s

    def sleep(self, seconds: float) -> None:
        """Let the machine sleep: nothing on it goes on."""
        self._slept_s += max(0.0, seconds)

    def set(self, seconds: float) -> None:
        """Set the wall clock so much forward, or back."""
        self._set_s += seconds
