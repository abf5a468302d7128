"""Charts as plain data: coordinates, ticks and words, which `charts.html.jinja` draws as SVG of any width.

Horizontal places are thousandths of the width, vertical ones pixels. A long curve keeps its first and its last point,
and the lowest and the highest of each column: nothing is averaged or drawn by lot, and no other curve changes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from studies.report.elements import ARMS
from studies.report.figure_data import Points
from studies.report.wording import MINUS, format_signed, percent, plural, span

MOST_CURVES: Final = 60
"""Curves of single runs that one chart draws."""
ACROSS: Final = 1000
_COLUMNS: Final = 250
_MOST_LISTED: Final = 8
"""Places on the x axis at which the table beside a chart tells values."""
_ROOM: Final = 10.0
"""Pixels above the highest and below the lowest value."""
_DASHES: Final = ("", "7 3", "2 3", "10 3 2 3", "4 4", "12 4")
_MARKS: Final = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.5-3.5h7v7h-7z", "M0-5l4.5 8h-9z", "M0-5l5 5l-5 5l-5-5z",
    "M0 5l4.5-8h-9z", "M-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
)  # fmt: skip
Range = tuple[float, float]
Ticks = tuple[tuple[float, str], ...]
"""Where values stand at an axis, and what is written there."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve to be drawn; `arm` names it in the legend, and its `place` there decides colour, dashes and marker."""

    name: str
    points: Points
    arm: str = ""
    place: int = 0
    mean: bool = False
    """Whether it is the mean of an arm, which is drawn thick."""
    running: bool = False
    """Whether it goes on, so that its end is marked by a hollow marker."""


@dataclass(frozen=True, slots=True)
class Look:
    """How an arm is drawn: the number of its colour, its dashes and its marker."""

    color: int
    dash: str
    mark: str

    @classmethod
    def at(cls, place: int) -> Look:
        return cls(place % ARMS, _DASHES[place % len(_DASHES)], _MARKS[place % len(_MARKS)])


@dataclass(frozen=True, slots=True)
class Line:
    """A curve as it is drawn; `end` is where its marker stands."""

    of: Series
    look: Look
    path: str
    end: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of lines; `head` and `rows` are its table."""

    id: str
    label: str
    x_name: str
    height: int
    lines: tuple[Line, ...]
    x_ticks: Ticks
    y_ticks: Ticks
    legend: tuple[tuple[Look, str], ...]
    notes: tuple[str, ...]
    """What it leaves out."""
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def fraction(value: float, ends: Range) -> float:
    """Return where a value lies between two ends, from 0 to 1; in the middle where the ends are alike."""
    low, half = ends[0], ends[1] / 2 - ends[0] / 2  # the whole of it may be more than a number holds
    return min(1.0, max(0.0, (value / 2 - low / 2) / half)) if half > 0 else 0.5


def range_of(values: Iterable[float]) -> Range:
    """Return the ends of the finite values; of none (0, 1)."""
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def ticks(ends: Range, about: int) -> tuple[float, ...]:
    """Return about so many round values between two ends, one more at most; an end where there is none."""
    low, half = ends[0], ends[1] / 2 - ends[0] / 2
    if half <= 0 or (power := 10.0 ** math.floor(math.log10(raw := half / about * 2))) <= 0:
        return (low,)
    step = next((power * size for size in (1, 2, 5) if power * size >= raw), 10 * power)
    values = [number * step for number in range(math.ceil(low / step), math.floor(ends[1] / step) + 1)]
    return tuple(sorted({value for value in values if low <= value <= ends[1]})) or (low,)


def tick_texts(values: Sequence[float]) -> tuple[str, ...]:
    """Return values in as few digits as tell them apart, without exponents where they are of a usual size."""
    sizes = [abs(value) for value in values if value]
    usual = all(1e-4 <= size < 1e9 for size in sizes)
    forms = [f",.{digits}f" for digits in range(10)] if usual else [f".{digits}g" for digits in range(1, 18)]
    for form in forms:
        texts = [format(value, form) for value in values]
        near = (math.isclose(float(text.replace(",", "")), value) for text, value in zip(texts, values, strict=True))
        if len(set(texts)) == len(values) and all(near):
            break
    return tuple(text.replace("-", MINUS) for text in texts)


def decimate(points: Points, column: Callable[[float], int]) -> Points:
    """Return, of points that are ordered by x, the first and the last, and the lowest and highest of each column."""
    kept = {0, len(points) - 1} if points else set[int]()
    for _, group in groupby(range(len(points)), key=lambda at: column(points[at][0])):
        members = list(group)
        kept |= {min(members, key=lambda at: points[at][1]), max(members, key=lambda at: points[at][1])}
    return tuple(points[at] for at in sorted(kept))


def line_chart(
    id: str, label: str, x_name: str, series: Sequence[Series], *, x_range: Range | None = None, height: int = 240,
    notes: Sequence[str] = (),
) -> Chart:  # fmt: skip
    """Return a chart of the first `MOST_CURVES` runs and of all means. `x_range` is what the x axis shows at least, so
    that curves are decimated alike whichever of them are shown."""
    runs = [each for each in series if not each.mean]
    drawn = [*runs[:MOST_CURVES], *(each for each in series if each.mean)]
    finite = [tuple(sorted(p for p in each.points if all(map(math.isfinite, p)))) for each in drawn]
    xs = range_of((*(x_range or ()), *(x for points in finite for x, _ in points)))
    ys = range_of(y for points in finite for _, y in points)
    strange = sum(len(each.points) - len(points) for each, points in zip(drawn, finite, strict=True))

    def down(y: float) -> float:
        return round(height - _ROOM - fraction(y, ys) * (height - 2 * _ROOM), 1)

    def line(each: Series, points: Points) -> Line:
        kept = decimate(points, lambda x: int(fraction(x, xs) * _COLUMNS))
        places = [(round(fraction(x, xs) * ACROSS, 1), down(y)) for x, y in kept]
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
        return Line(each, Look.at(each.place), path, places[-1])

    said = [*notes, *([f"{MOST_CURVES} of {len(runs)} runs are drawn"] if len(runs) > MOST_CURVES else [])]
    said += [f"{plural(strange, 'value')} left out: no finite number"] if strange else []
    if empty := [each.name for each, points in zip(drawn, finite, strict=True) if not points]:
        said.append(f"nothing to draw of {plural(len(empty), 'curve')}")
    whole = [(each, points) for each, points in zip(drawn, finite, strict=True) if points]
    x_ticks, y_ticks = ticks(xs, 6), ticks(ys, 5)
    return Chart(
        id, label, x_name, height, tuple(line(*each) for each in whole),
        tuple((fraction(x, xs) * ACROSS, text) for x, text in zip(x_ticks, tick_texts(x_ticks), strict=True)),
        tuple((down(y), text) for y, text in zip(y_ticks, tick_texts(y_ticks), strict=True)),
        _legend([each for each, _ in whole]), tuple(said), *_table(whole, x_name),
    )  # fmt: skip


def _legend(drawn: Sequence[Series]) -> tuple[tuple[Look, str], ...]:
    arms = {each.arm: each.place for each in drawn if each.arm}
    runs, means = Counter(each.arm for each in drawn if not each.mean), {each.arm for each in drawn if each.mean}
    said = {arm: [*([plural(runs[arm], "run")] if runs[arm] else []), *["mean"] * (arm in means)] for arm in arms}
    return tuple((Look.at(place), f"{arm}: {', '.join(said[arm])}") for arm, place in arms.items())


def _table(drawn: Sequence[tuple[Series, Points]], x_name: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return a line for each curve: its values at some places of x, which it has itself, the lowest and the highest."""
    every = sorted({x for _, points in drawn for x, _ in points})
    places = {round((len(every) - 1) * part / (_MOST_LISTED - 1)) for part in range(_MOST_LISTED)} if every else ()
    xs = [every[at] for at in sorted(places)]
    rows = []
    for each, points in drawn:
        of = dict(points)
        values = [of.get(x) for x in xs] + [min(of.values()), max(of.values())]
        texts = ("" if value is None else f"{value:.4g}".replace("-", MINUS) for value in values)
        rows.append((each.name, str(len(points)), *texts))
    head = (f"curve, by {x_name}", "points", *(f"at {text}" for text in tick_texts(xs)), "lowest", "highest")
    return head, tuple(rows)


@dataclass(frozen=True, slots=True)
class IntervalBar:
    """A difference with its interval on an axis, in per cent of the width; spans are (place, width)."""

    label: str
    zero: float
    estimate: float | None
    interval: Range | None
    margin: Range | None
    predicted: Range | None
    ticks: Ticks


def extent(values: Iterable[float | None]) -> Range:
    """Return what an axis of differences shows: zero, the finite values, and some room."""
    low, high = range_of((0.0, *(value for value in values if value is not None)))
    room = 0.04 * ((high - low) or 1.0)
    return (low - room, high + room) if math.isfinite(room) else (low, high)


def interval_bar(
    estimate: float | None, low: float | None = None, high: float | None = None, *, level: float | None = None,
    margin: float | None = None, predicted: Range | None = None, ends: Range | None = None, unit: str = "",
) -> IntervalBar:  # fmt: skip
    """Return the drawing of what was observed, on an axis with the given ends, which are its own unless given."""
    size = (-margin, margin) if margin is not None else ()
    axis = ends or extent((estimate, low, high, *size, *(predicted or ())))

    def along(begin: float, end: float) -> Range:
        at = 100 * fraction(begin, axis)
        return round(at, 2), round(100 * fraction(end, axis) - at, 2)

    observed = (low, high) if low is not None and high is not None else None
    said = ["nothing observed" if estimate is None else f"observed {format_signed(estimate, unit=unit)}"]
    if observed:
        said.append(f"interval {span(*observed, unit=unit)}" + (f" ({percent(level)})" if level else ""))
    said += [f"predicted {span(*predicted, unit=unit)}"] if predicted else []
    said += [f"too small to matter within {span(*size, unit=unit)}"] if size else []
    values = ticks(axis, 3)
    shown = ((along(v, v)[0], text) for v, text in zip(values, tick_texts(values), strict=True))
    return IntervalBar(
        ", ".join(said), along(0.0, 0.0)[0], None if estimate is None else along(estimate, estimate)[0],
        along(*observed) if observed else None, along(*size) if size else None,
        along(*predicted) if predicted else None, tuple(shown),
    )  # fmt: skip
