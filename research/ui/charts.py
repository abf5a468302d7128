"""Charts as plain data: coordinates, ticks and words, which `charts.html.jinja` draws as SVG of any width.

Horizontal places are thousandths of the width, vertical ones pixels. A long curve keeps its first and its last point,
and the lowest and the highest of each column: nothing is averaged or drawn by lot, and no other curve changes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from studies.report.elements import ARMS
from studies.report.figure_data import Points
from studies.report.wording import format_signed, percent, plural, span, true_minus

ACROSS: Final = 1000
_COLUMNS: Final = 250
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


class Look(NamedTuple):
    """How an arm is drawn: the number of its colour, its dashes and its marker."""

    color: int
    dash: str
    mark: str

    @classmethod
    def at(cls, place: int) -> Look:
        return cls(place % ARMS, _DASHES[place % len(_DASHES)], _MARKS[place % len(_MARKS)])


class Series(NamedTuple):
    """One curve to be drawn; `arm` names its look in the legend. A mean is thick; of one that goes on the mark at its
    end is hollow."""

    name: str
    points: Points
    arm: str = ""
    look: Look = Look.at(0)
    mean: bool = False
    running: bool = False


class Chart(NamedTuple):
    """A chart: series, each with its path and the place of its marker; what it leaves out; a line of a table each."""

    id: str
    label: str
    x_name: str
    height: int
    lines: tuple[tuple[Series, str, tuple[float, float]], ...]
    x_ticks: Ticks
    y_ticks: Ticks
    legend: Mapping[str, Look]
    notes: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def fraction(value: float, ends: Range) -> float:
    """Return where a value lies between two ends, from 0 to 1; in the middle where the ends are alike."""
    low, half = ends[0], ends[1] / 2 - ends[0] / 2  # the whole of it may be more than a number holds
    return min(1.0, max(0.0, (value / 2 - low / 2) / half)) if half > 0 else 0.5


def range_of(values: Iterable[float]) -> Range:
    """Return the ends of the finite values; of none (0, 1)."""
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def ticks(ends: Range, about: int) -> Ticks:
    """Return about so many round values between two ends, one more at most, with what tells them apart; an end where
    there is none."""
    low, half = ends[0], ends[1] / 2 - ends[0] / 2
    if half <= 0 or (power := 10.0 ** math.floor(math.log10(raw := half / about * 2))) <= 0:
        return ((low, true_minus(f"{low:.4g}")),)
    step = next((power * size for size in (1, 2, 5) if power * size >= raw), 10 * power)
    numbers = range(math.ceil(low / step), math.floor(ends[1] / step) + 1)
    values = sorted({value for number in numbers if low <= (value := number * step) <= ends[1]}) or [low]
    last, first = (math.floor(math.log10(size) + 1e-9) for size in (step, max(map(abs, values)) or step))
    form = f",.{max(0, -last)}f" if last > -6 and first < 9 else f".{min(17, max(1, first - last + 1))}g"
    return tuple((value, true_minus(format(value, form))) for value in values)


def decimate(points: Points, column: Callable[[float], int]) -> Points:
    """Return, of points that are ordered by x, the first and the last, and the lowest and highest of each column."""
    kept = {0, len(points) - 1} if points else set[int]()
    for _, group in groupby(range(len(points)), key=lambda at: column(points[at][0])):
        members = list(group)
        kept |= {min(members, key=lambda at: points[at][1]), max(members, key=lambda at: points[at][1])}
    return tuple(points[at] for at in sorted(kept))


def line_chart(
    label: str, x_name: str, series: Sequence[Series], *, x_range: Sequence[float] = (), height: int = 240,
    notes: Sequence[str] = (),
) -> Chart:  # fmt: skip
    """Return a chart. `x_range` is what the x axis shows at least, so that curves are decimated alike whichever of them
    are shown."""
    finite = [(each, tuple(sorted(p for p in each.points if all(map(math.isfinite, p))))) for each in series]
    drawn = [(each, points) for each, points in finite if points]
    xs = range_of((*x_range, *(x for _, points in drawn for x, _ in points)))
    ys = range_of(y for _, points in drawn for _, y in points)
    strange = sum(len(each.points) - len(points) for each, points in finite)

    def down(y: float) -> float:
        return round(height - _ROOM - fraction(y, ys) * (height - 2 * _ROOM), 1)

    def curve(each: Series, points: Points) -> tuple[Series, str, tuple[float, float]]:
        kept = decimate(points, lambda x: int(fraction(x, xs) * _COLUMNS))
        places = [(round(fraction(x, xs) * ACROSS, 1), down(y)) for x, y in kept]
        return each, "M" + "L".join(f"{x:g} {y:g}" for x, y in places), places[-1]

    def row(each: Series, points: Points) -> tuple[str, ...]:
        (from_x, first), (to_x, last), ys = points[0], points[-1], [y for _, y in points]
        values = (first, last, min(ys), max(ys))
        return each.name, f"{from_x:,.15g} to {to_x:,.15g}", *(true_minus(f"{value:.4g}") for value in values)

    said = [*notes, *([f"{plural(strange, 'value')}: no finite number"] if strange else [])]
    return Chart(
        "chart-" + "".join(char if char.isalnum() else "-" for char in label), label, x_name, height,
        tuple(curve(*each) for each in drawn), tuple((fraction(x, xs) * ACROSS, text) for x, text in ticks(xs, 6)),
        tuple((down(y), text) for y, text in ticks(ys, 5)), {each.arm: each.look for each, _ in drawn if each.arm},
        tuple(said), tuple(row(*each) for each in drawn),
    )  # fmt: skip


def extent(values: Iterable[float | None]) -> Range:
    """Return what an axis of differences shows: zero, the finite values, and some room."""
    low, high = range_of((0.0, *(value for value in values if value is not None)))
    room = 0.04 * ((high - low) or 1.0)
    return (low - room, high + room) if math.isfinite(room) else (low, high)


def interval_bar(
    estimate: float | None, low: float | None = None, high: float | None = None, *, level: float | None = None,
    margin: float | None = None, predicted: Range | None = None, ends: Range | None = None, unit: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return what `charts.html.jinja` draws of a difference, on an axis with the given ends, which are its own unless
    given: places in per cent of the width, spans as (place, width)."""
    observed = None if low is None or high is None else (low, high)
    size = None if margin is None else (-margin, margin)
    axis = ends or extent((estimate, *(observed or ()), *(size or ()), *(predicted or ())))

    def at(value: float) -> float:
        return round(100 * fraction(value, axis), 2)

    def along(ends: Range | None) -> Range | None:
        return None if ends is None else (at(ends[0]), round(at(ends[1]) - at(ends[0]), 2))

    said = ["nothing observed" if estimate is None else f"observed {format_signed(estimate, unit=unit)}"]
    if observed:
        said.append(f"interval {span(*observed, unit=unit)}" + (f" ({percent(level)})" if level else ""))
    said += [f"predicted {span(*predicted, unit=unit)}"] if predicted else []
    said += [f"too small to matter within {span(*size, unit=unit)}"] if size else []
    return {
        "label": ", ".join(said), "zero": at(0.0), "estimate": None if estimate is None else at(estimate),
        "interval": along(observed), "margin": along(size), "predicted": along(predicted),
        "ticks": tuple((at(value), text) for value, text in ticks(axis, 3)),
    }  # fmt: skip
