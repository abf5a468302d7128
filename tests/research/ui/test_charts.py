"""Charts: what is kept of a long curve, scales of any numbers, and what a chart says that it leaves out."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, PackageLoader, StrictUndefined

from research.ui.curves import (
    ACROSS,
    Look,
    Series,
    decimate,
    extent,
    fraction,
    interval_bar,
    line_chart,
    ticks,
)

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
ENDS = st.tuples(FINITE, FINITE).map(lambda pair: (min(pair), max(pair)))
POINTS = st.lists(st.tuples(st.integers(0, 10**6).map(float), FINITE), max_size=200).map(lambda p: tuple(sorted(p)))


def column(x: float) -> int:
    return int(x // 1000)


@given(POINTS)
def test_of_each_column_the_lowest_and_the_highest_stay_and_nothing_is_made_up(
    points: tuple[tuple[float, float], ...],
) -> None:
    kept = decimate(points, column)
    assert (kept[:1], kept[-1:]) == (points[:1], points[-1:])
    assert list(kept) == sorted(kept, key=lambda point: point[0])
    assert set(kept) <= set(points)
    for each in {column(x) for x, _ in points}:
        before, after = ([y for x, y in of if column(x) == each] for of in (points, kept))
        assert (min(before), max(before)) == (min(after), max(after))
        assert len(after) <= 4
    assert decimate(kept, column) == kept


@given(ENDS, FINITE)
def test_every_value_lies_within_the_axis(ends: tuple[float, float], value: float) -> None:
    assert 0 <= fraction(value, ends) <= 1
    if ends[0] < ends[1]:
        assert fraction(ends[0], ends) <= fraction(ends[1], ends)


@given(ENDS, st.integers(2, 8))
def test_ticks_lie_between_the_ends_few_and_told_apart(ends: tuple[float, float], most: int) -> None:
    found = [value for value, _ in ticks(ends, most)]
    assert 1 <= len(found) <= most + 1
    assert all(ends[0] <= value <= ends[1] for value in found)
    assert len({text for _, text in ticks(ends, most)}) == len(found)


@pytest.mark.parametrize(("ends", "texts"), [
    ((0.13, 0.87), "0.2 0.4 0.6 0.8"), ((0, 40), "0 10 20 30 40"), ((-0.35, 0.05), "−0.3 −0.2 −0.1 0.0"),
    ((100_000, 100_004), "100,000 100,001 100,002 100,003 100,004"), ((0.0, 4e-9), "0 1e-09 2e-09 3e-09 4e-09"),
    ((0.25, 0.25), "0.25"),
])  # fmt: skip
def test_ticks_are_round_numbers(ends: tuple[float, float], texts: str) -> None:
    assert " ".join(text for _, text in ticks(ends, 4)) == texts


@pytest.mark.parametrize("values", [
    [], [0.5], [0.5, 0.5, 0.5], [-3.0, -1.0], [math.nan], [math.inf, 1.0, -math.inf], [1e308, -1e308], [5e-324, 0.0],
])  # fmt: skip
def test_any_values_can_be_drawn(values: list[float]) -> None:
    chart = line_chart("success", "steps", [Series("a", tuple(enumerate(values)))])
    assert len(chart.lines) == any(map(math.isfinite, values))
    inside(chart.lines[0][1] if chart.lines else "", chart.height)
    strange = sum(not math.isfinite(value) for value in values)
    assert [note for note in chart.notes if note.startswith(str(strange))] == [*chart.notes[:1]] * bool(strange)


@given(st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30), max_size=4))
def test_whatever_was_logged_the_chart_stays_within_its_frame(curves: list[list[tuple[float, float]]]) -> None:
    chart = line_chart("l", "steps", [Series(f"{n}", tuple(points)) for n, points in enumerate(curves)])
    for _, path, _ in chart.lines:
        inside(path, chart.height)
    assert len(chart.rows) == len(chart.lines)


def inside(path: str, height: int) -> None:
    numbers = [float(text) for text in re.findall(r"[-\d.e]+", path)]
    assert all(0 <= x <= ACROSS for x in numbers[::2])
    assert all(0 <= y <= height for y in numbers[1::2])


def test_a_curve_is_decimated_alike_whatever_else_is_shown() -> None:
    long = Series("long", tuple((float(x), math.sin(x)) for x in range(5000)))
    short = Series("short", ((0.0, -1.0), (10.0, 1.0)))
    alone, beside = (line_chart("l", "steps", shown, x_range=(0, 5000)) for shown in ([long], [short, long]))
    assert alone.lines[0][1].count("L") < 4 * 251
    assert alone.lines[0] == beside.lines[1]


def test_arms_differ_by_more_than_their_colour_also_past_the_last_colour() -> None:
    looks = [Look.at(place) for place in range(6)]
    assert len({look.mark for look in looks}) == len({look.dash for look in looks}) == 6


def test_the_table_has_values_that_the_curve_has() -> None:
    chart = line_chart("l", "steps", [Series("a", ((1.0, 0.25), (2.0, 0.5))), Series("b", ((2.0, -1.0),))])
    assert chart.rows == (("a", "1 to 2", "0.25", "0.5", "0.25", "0.5"), ("b", "2 to 2", "−1", "−1", "−1", "−1"))


@given(FINITE, st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair))), st.floats(0, 1e308))
def test_an_interval_lies_on_its_axis(estimate: float, ends: tuple[float, float], margin: float) -> None:
    bar = interval_bar(estimate, *ends, margin=margin, predicted=(-1.0, 1.0), level=0.95)
    assert bar["estimate"] is not None
    assert 0 <= bar["estimate"] <= 100
    for place, width in filter(None, (bar["interval"], bar["margin"], bar["predicted"])):
        assert 0 <= place <= place + width <= 100.02


def test_bars_that_share_an_axis_have_zero_in_one_place() -> None:
    ends = extent((-0.1, 0.3))
    assert interval_bar(0.1, 0.0, 0.2, ends=ends)["zero"] == interval_bar(-0.05, -0.1, 0.0, ends=ends)["zero"]


def test_what_was_not_observed_has_no_mark() -> None:
    bar = interval_bar(None, predicted=(0.02, 0.2))
    assert (bar["estimate"], bar["interval"]) == (None, None)
    assert bar["predicted"] is not None


def test_drawings_have_a_label_a_table_and_no_style_and_names_are_escaped() -> None:
    environment = Environment(
        loader=PackageLoader("research.ui", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    macros = environment.get_template("charts.html.jinja").module
    runs = [Series(f"<b>{n}", ((1.0, 0.5), (2.0, 0.7)), "<i>arm", Look.at(n), running=bool(n)) for n in range(2)]
    drawn = macros.lines(line_chart("success", "steps", runs))  # type: ignore[attr-defined]
    drawn += macros.interval(interval_bar(0.1, 0.0, 0.2, margin=0.05, predicted=(0.0, 0.1)))  # type: ignore[attr-defined]
    assert "style" not in drawn
    assert "<b>" not in drawn
    assert "<i>" not in drawn
    assert drawn.count('role="img" aria-label=') == 2
    assert '<details id="chart-success-table">' in drawn
