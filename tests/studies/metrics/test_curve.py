from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.metrics import Refused, Results
from studies.metrics.base import Curve, by_episodes, by_seconds

SHARES = st.lists(st.floats(0, 1), min_size=4, max_size=12)


def even(ys: Sequence[float]) -> Curve:
    return Curve(tuple(100.0 * at for at in range(len(ys))), tuple(ys))


def part(version: int, solved: int, of: int = 10) -> dict[str, Any]:
    return {"policy_version": version, "episodes": [{"success": at < solved} for at in range(of)]}


def rows(steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "metrics": {"batch/episodes": 16.0}} for step in range(1, steps + 1)]


@given(SHARES)
def test_the_area_lies_between_the_least_and_the_most_and_below_a_line_is_no_more(ys: list[float]) -> None:
    curve, horizon = even(ys), 100.0 * (len(ys) - 1)
    whole, below = curve.area(horizon), curve.area(horizon, 0.5)
    assert min(ys) - 1e-12 <= whole <= max(ys) + 1e-12
    assert below <= min(whole, 0.5) + 1e-12


@given(SHARES, st.floats(0.05, 0.95))
def test_a_line_is_crossed_where_the_mean_of_three_reaches_it_and_not_before(ys: list[float], line: float) -> None:
    curve = even(ys)
    found = curve.crossing(line)
    means = [ys[0], *(sum(ys[at - 1 : at + 2]) / len(ys[at - 1 : at + 2]) for at in range(1, len(ys)))]
    first = next((at for at, mean in enumerate(means) if mean >= line), None)
    if first is None:
        assert found is None
    else:
        assert 100.0 * max(0, first - 1) - 1e-9 <= found <= 100.0 * first + 1e-9


@given(st.lists(st.floats(0, 1), min_size=4, max_size=12).map(sorted), st.floats(0.05, 0.5), st.floats(0, 0.4))
def test_a_higher_line_is_crossed_no_earlier(ys: list[float], line: float, more: float) -> None:
    low, high = even(ys).crossing(line), even(ys).crossing(line + more)
    assert high is None or (low is not None and low <= high)


def test_a_straight_curve_has_the_area_and_the_crossing_of_a_line() -> None:
    curve = even([0.0, 0.25, 0.5, 0.75, 1.0])
    assert curve.area(400.0) == pytest.approx(0.5)
    assert curve.area(200.0) == pytest.approx(0.25)
    assert curve.area(800.0) == pytest.approx(0.75)
    assert curve.area(400.0, 0.5) == pytest.approx(0.375)
    assert curve.crossing(0.5) == pytest.approx(200.0)
    assert curve.crossing(0.6) == pytest.approx(240.0)


def test_episodes_and_seconds_are_those_of_training_alone() -> None:
    history = rows(4)
    for row in history:
        row["metrics"]["timing_s/step"] = 0.5 * row["step"]
    run = Results(part(0, 0), part(4, 8), [part(1, 2), part(2, 4)], history)
    assert by_episodes(run) == Curve((0.0, 16.0, 32.0, 64.0), (0.0, 0.2, 0.4, 0.8))
    assert by_seconds(run).xs == (0.0, 0.5, 1.5, 5.0)


@pytest.mark.parametrize(
    ("versions", "steps"), [((2, 1), 4), ((1, 1), 4), ((0,), 4), ((1, 4), 4), ((1, 2), 3), ((), 3)]
)
def test_evaluations_out_of_order_or_of_no_step_make_no_curve(versions: tuple[int, ...], steps: int) -> None:
    with pytest.raises(Refused, match="those of 0, "):
        by_episodes(Results(part(0, 0), part(4, 8), [part(version, 2) for version in versions], rows(steps)))


def test_a_training_that_was_ended_before_its_first_evaluation_has_a_curve_of_two_points() -> None:
    curve = by_episodes(Results(part(0, 2), part(2, 8), [], rows(2)))
    assert curve == Curve((0.0, 32.0), (0.2, 0.8))
    assert curve.area(64.0) == pytest.approx(0.65), "what it reached holds up to the horizon"
    assert curve.crossing(0.7) is None


def test_a_step_without_its_count_makes_no_curve() -> None:
    (history := rows(4))[2]["metrics"] = {}
    with pytest.raises(Refused, match="found 1 steps"):
        by_episodes(Results(part(0, 0), part(4, 8), [part(1, 2), part(2, 4)], history))
