"""Figures over many flights, each with its interval: a share is known only as well as its number of studies allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Literal

Sense = Literal["at most", "at least", "between"]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure is held to."""

    sense: Sense
    value: float
    upper: float | None = None
    """Upper end, for `between`."""

    def holds(self, value: float) -> bool:
        """Return whether a value keeps it."""
        match self.sense:
            case "at most":
                return value <= self.value
            case "at least":
                return value >= self.value
            case "between":
                assert self.upper is not None
                return self.value <= value <= self.upper

    def words(self, percent: bool) -> str:
        """Return it in words."""
        shown = [f"{100 * end:g} %" if percent else f"{end:g}" for end in (self.value, self.upper) if end is not None]
        return f"{self.sense} {' and '.join(shown)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    name: str
    value: float | None
    """None where nothing was there to be counted."""
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval."""
    count: int | None = None
    of: int | None = None
    """Of a share: how many of how many."""
    bar: Bar | None = None
    percent: bool = True

    @property
    def kept(self) -> bool | None:
        """Whether the bar is kept; None without one. Nothing to count keeps no bar."""
        return None if self.bar is None else self.value is not None and self.bar.holds(self.value)

    def words(self) -> str:
        """Return it in words, with its interval and its bar."""
        if self.value is None:
            return f"{self.name}: nothing to count"
        ends = f" [{self._shown(self.low)}, {self._shown(self.high)}]" if self.low is not None else ""
        counts = f" ({self.count} of {self.of})" if self.count is not None else ""
        bar = f"; the bar is {self.bar.words(self.percent)}" if self.bar else ""
        return f"{self.name}: {self._shown(self.value)}{ends}{counts}{bar}"

    def payload(self) -> dict[str, Any]:
        """Return it for a file."""
        bar = self.bar.words(self.percent) if self.bar else None
        return {**asdict(self), "bar": bar, "kept": self.kept}

    def _shown(self, value: float | None) -> str:
        if value is None:
            return "?"
        return f"{100 * value:.1f} %" if self.percent else f"{value:.3g}"


def share(name: str, hits: Iterable[bool], bar: Bar | None = None) -> Figure:
    """Return the share of hits with its Clopper-Pearson interval."""
    found = list(hits)
    return counted(name, sum(found), len(found), bar)


def counted(name: str, count: int, of: int, bar: Bar | None = None) -> Figure:
    """Return `count` of `of` as a figure."""
    if not of:
        return Figure(name, None, bar=bar, count=0, of=0)
    low, high = clopper_pearson(count, of)
    return Figure(name, count / of, low, high, count, of, bar)


def mean(name: str, values: Sequence[float], bar: Bar | None = None, *, percent: bool = False) -> Figure:
    """Return the mean with the Student-t interval over flights."""
    if not values:
        return Figure(name, None, bar=bar, of=0, percent=percent)
    middle = fmean(values)
    if len(values) < 2:
        return Figure(name, middle, bar=bar, of=1, percent=percent)
    from scipy import stats

    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Figure(name, middle, middle - half, middle + half, None, len(values), bar, percent)


def clopper_pearson(count: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper & Pearson 1934, Biometrika 26)."""
    from scipy import stats

    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(stats.beta.ppf(tail, count, of - count + 1))
    high = 1.0 if count == of else float(stats.beta.ppf(1 - tail, count + 1, of - count))
    return low, high
