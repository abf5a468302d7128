"""Figures over many flights, each with its interval: a share is known only as well as its number of studies allows.

A bar knows the number it needs: so many that the interval of a share that is well on its right side lies there too. Of
fewer, a figure says neither kept nor missed, unless its whole interval lies on one side of the bar.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from statistics import fmean, stdev
from typing import Any, Literal, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")
Progress = Callable[[str], None]
SPEAK_EVERY_S = 3.0
MOST_AT_ONCE = 8
"""Items handed to a worker at a time."""
_NEW_OBJECTS = 50_000
"""After so many a worker looks for garbage: a flight makes many that live as long as it does."""


def silent(line: str) -> None:
    """Say nothing."""


def work(
    name: str, does: Callable[[Item], Found], items: Sequence[Item], *, workers: int = 1, tell: Progress = silent
) -> list[Found]:
    """Return `does` of each item, in their order; in so many processes where that is more than one."""
    if workers <= 1:
        return list(_told(name, map(does, items), len(items), tell))
    # Fresh processes: a fork would carry this one's threads and open databases along.
    context = multiprocessing.get_context("spawn")
    chunk = max(1, min(MOST_AT_ONCE, len(items) // (4 * workers)))
    with ProcessPoolExecutor(workers, context, gc.set_threshold, (_NEW_OBJECTS,)) as pool:
        return list(_told(name, pool.map(does, items, chunksize=chunk), len(items), tell))


def _told(name: str, found: Iterable[Found], count: int, tell: Progress) -> Iterable[Found]:
    began = spoken = time.monotonic()
    for number, one in enumerate(found, start=1):
        yield one
        if (now := time.monotonic()) - spoken >= SPEAK_EVERY_S or number == count:
            spoken = now
            tell(f"{name}: {number} of {count} flights, {now - began:.0f} s")


Sense = Literal["at most", "at least", "between"]

ROOM = 0.7
"""What a share that keeps its bar uses up, usually, of what the bar allows."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure is held to."""

    sense: Sense
    value: float
    upper: float | None = None
    """Upper end, for `between`."""
    likely: float | None = None
    """The share that is expected where the bar is kept; None for `ROOM` of what is allowed, or the middle."""

    @property
    def expected(self) -> float:
        """The share that is expected where it is kept."""
        match self.sense:
            case _ if self.likely is not None:
                return self.likely
            case "at most":
                return ROOM * self.value
            case "at least":
                return 1 - ROOM * (1 - self.value)
            case "between":
                assert self.upper is not None
                return (self.value + self.upper) / 2

    def excludes(self, low: float, high: float) -> bool:
        """Return whether no value of an interval keeps it."""
        above = self.upper if self.sense == "between" else self.value
        assert above is not None
        return (self.sense != "at least" and low > above) or (self.sense != "at most" and high < self.value)

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
class Measured:
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
    outside: bool = False
    """Whether it is of what verdicts promise nothing of: its bar is told, and is no bar of the suite."""

    @property
    def kept(self) -> bool | None:
        """Whether the bar is kept; None without one, and for too few to tell. Nothing to count keeps no bar."""
        if self.bar is None or self.small:
            return None
        return self.value is not None and self.bar.holds(self.value)

    @property
    def small(self) -> bool:
        """Whether it is of too few to tell whether the bar is kept."""
        if self.bar is None or self.count is None or not self.of or self.low is None or self.high is None:
            return False
        ends = self.low, self.high
        return self.of < needed(self.bar) and not self.bar.excludes(*ends) and not all(map(self.bar.holds, ends))

    def words(self) -> str:
        """Return it in words, with its interval and its bar."""
        bar = f"; the bar is {self.bar.words(self.percent)}" if self.bar else ""
        bar += f", and {needed(self.bar)} are needed to tell" if self.bar and self.small else ""
        bar += "; out of scope" if self.outside else ""
        return f"{self.name}: {self.measured()}{bar}"

    def measured(self) -> str:
        """Return the number with its interval and what it was counted of."""
        if self.value is None:
            return "nothing to count"
        ends = f" [{self._shown(self.low)}, {self._shown(self.high)}]" if self.low is not None else ""
        counts = f" ({self.count} of {self.of})" if self.count is not None else ""
        return f"{self._shown(self.value)}{ends}{counts}"

    def payload(self) -> dict[str, Any]:
        """Return it for a file."""
        bar = self.bar.words(self.percent) if self.bar else None
        needs = needed(self.bar) if self.bar and self.count is not None else None
        return {**asdict(self), "bar": bar, "kept": self.kept, "needs": needs}

    def _shown(self, value: float | None) -> str:
        if value is None:
            return "?"
        return f"{100 * value:.1f} %" if self.percent else f"{value:.3g}"


def share(name: str, hits: Iterable[bool], bar: Bar | None = None, *, outside: bool = False) -> Measured:
    """Return the share of hits with its Clopper-Pearson interval."""
    found = list(hits)
    return counted(name, sum(found), len(found), bar, outside=outside)


def counted(name: str, count: int, of: int, bar: Bar | None = None, *, outside: bool = False) -> Measured:
    """Return `count` of `of` as a figure."""
    if not of:
        return Measured(name, None, bar=bar, count=0, of=0, outside=outside)
    low, high = clopper_pearson(count, of)
    return Measured(name, count / of, low, high, count, of, bar, outside=outside)


def mean(name: str, values: Sequence[float], bar: Bar | None = None, *, percent: bool = False) -> Measured:
    """Return the mean with the Student-t interval over flights."""
    if not values:
        return Measured(name, None, bar=bar, of=0, percent=percent)
    middle = fmean(values)
    if len(values) < 2:
        return Measured(name, middle, bar=bar, of=1, percent=percent)
    from scipy import stats

    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Measured(name, middle, middle - half, middle + half, None, len(values), bar, percent)


@cache
def needed(bar: Bar) -> int:
    """Return how many a share is to be of, at the least, so that the interval of the expected one keeps the bar.

    A bar that asks for all or for none is kept by any number: one case to the contrary misses it.
    """
    ends = (bar.value,) if bar.upper is None else (bar.value, bar.upper)
    if bar.sense != "between" and ends[0] in (0.0, 1.0):
        return 1
    few, enough = 1, 2
    while not _tells(bar, enough):
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if _tells(bar, middle) else (middle, enough)
    return enough


def _tells(bar: Bar, of: int) -> bool:
    """Return whether the interval of the expected share of so many keeps the bar, a part of a case rounded against it.

    Between two bars, a share may be a part of a case above its middle or below.
    """
    below, above = math.floor(bar.expected * of), math.ceil(bar.expected * of)
    low, high = clopper_pearson(below, of)[0], clopper_pearson(above, of)[1]
    return (bar.sense == "at most" or bar.holds(low)) and (bar.sense == "at least" or bar.holds(high))


def clopper_pearson(count: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper & Pearson 1934, Biometrika 26)."""
    from scipy import stats

    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(stats.beta.ppf(tail, count, of - count + 1))
    high = 1.0 if count == of else float(stats.beta.ppf(1 - tail, count + 1, of - count))
    return low, high


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """What a suite found."""

    name: str
    question: str
    flights: int
    figures: Sequence[Measured]
    rows: Sequence[Mapping[str, Any]] = ()
    """A table of its own, where each case has a result: traps, baits, rivals."""
    series: Mapping[str, Any] = field(default_factory=dict)
    """What is drawn of it."""

    @property
    def missed(self) -> list[str]:
        """The bars that were missed, in words."""
        return [
            f"{self.name}: {figure.words()}" for figure in self.figures if figure.kept is False and not figure.outside
        ]

    def payload(self) -> dict[str, Any]:
        """Return it for a file."""
        return {
            "question": self.question,
            "flights": self.flights,
            "figures": [figure.payload() for figure in self.figures],
            "rows": [dict(row) for row in self.rows],
            "series": dict(self.series),
        }
