"""Whether a training collapsed, read off its files alone."""

from __future__ import annotations

from typing import Any

import pytest

from studies.metrics import Asked, Refused, Results, kind_named

KIND = kind_named("collapse")
ASKED = Asked(measures="the number is found", episodes=100, horizon=2560)
METRIC = KIND.define(ASKED)


def part(version: int, solved: int) -> dict[str, Any]:
    return {"policy_version": version, "episodes": [{"success": n < solved, "reward": 0.0} for n in range(100)]}


def run(shares: list[float], end: int, **how: Any) -> Results:
    rows = [
        {"step": n, "metrics": {"batch/episodes": 128.0, "critic/success/mean": share}}
        for n, share in enumerate(shares, 1)
    ]
    return Results(part(0, 30), part(len(shares), end), history=rows, **how)


RISES = [0.2 + 0.03 * n for n in range(20)]
FALLS = [*RISES, *(0.75 - 0.06 * n for n in range(10))]


@pytest.mark.parametrize(
    ("found", "collapsed"),
    [
        (run(RISES, 80), 0.0),
        (run([0.2] * 20, 30), 0.0),
        (run(FALLS, 35), 1.0),
        (run([0.2] * 20, 0), 1.0),
        (run([0.2], 0), 1.0),
        (run(RISES, 80, stopped_by="kl_blow_up"), 1.0),
        (run(RISES, 80, stopped_by="stalled"), 0.0),
    ],
    ids=["rises", "stays", "falls", "ends below", "ends below at once", "is stopped breaking down", "is stopped"],
)
def test_a_training_has_one_or_none(found: Results, collapsed: float) -> None:
    assert KIND.of_run(METRIC, found) == collapsed


def test_a_curve_that_cannot_tell_is_refused() -> None:
    with pytest.raises(Refused, match="expected the success and number of 768 training episodes or more"):
        KIND.of_run(METRIC, run([0.2, 0.3], 40))


def test_trainings_too_short_to_rise_and_fall_are_refused_before_they_are_run() -> None:
    with pytest.raises(Refused, match=r"768 episodes or more.*found 512; train longer"):
        KIND.define(Asked(measures="m", episodes=100, horizon=512))


def test_lower_is_better_and_two_arms_are_two_rates() -> None:
    assert (METRIC.worst, METRIC.best, METRIC.higher_is_better, KIND.rates) == (1.0, 0.0, False, True)
    assert METRIC.cut_at is None
