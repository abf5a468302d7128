"""Simulated time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""When every flight begins, so that two flights of one study are equal to the byte."""


class SimClock:
    """The clock of one flight; calling it reads it."""

    def __init__(self, begin: datetime = BEGIN, skew_s: float = 0.0) -> None:
        """With `skew_s`, every other reading is so many seconds behind: two machines whose clocks differ."""
        self.true = begin
        self._skew = timedelta(seconds=skew_s)
        self._readings = 0

    def __call__(self) -> datetime:
        """Return the time as it is read."""
        self._readings += 1
        return self.true - self._skew if self._readings % 2 else self.true

    def seconds(self) -> float:
        """Return the seconds of true time since the begin, as a stopwatch measures it."""
        return (self.true - BEGIN).total_seconds()

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self.true += timedelta(seconds=max(0.0, seconds))

    def advance_to(self, moment: datetime) -> None:
        """Let time pass until a moment; nothing if it is over."""
        self.true = max(self.true, moment)
