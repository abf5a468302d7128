"""A curve in one line of text: a bar for each value, or for the mean of several where they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

BARS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=+*%#"
"""The same for a terminal that has no more than ASCII."""


def sparkline(values: Sequence[float | None], width: int, bars: str = BARS) -> str:
    """Return at most `width` characters; the lowest value is the lowest bar, and a value that is not known a space.

    Values that are all alike are bars of half the height.
    """
    parts = [_mean(part) for part in _parts(values, width)]
    known = [part for part in parts if part is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join(" " if part is None else bars[_height(part, low, high, len(bars))] for part in parts)


def _parts(values: Sequence[float | None], width: int) -> list[Sequence[float | None]]:
    """Return the values in order, as nearly equal parts, so many that they fit."""
    count = min(len(values), max(1, width))
    return [values[place * len(values) // count : (place + 1) * len(values) // count] for place in range(count)]


def _mean(part: Sequence[float | None]) -> float | None:
    known = [value for value in part if value is not None]
    return fmean(known) if known else None


def _height(value: float, low: float, high: float, bars: int) -> int:
    if high <= low:
        return bars // 2
    return min(bars - 1, int((value - low) / (high - low) * bars))
