from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.statistics.aggregates import improvement_interval, iqm, iqm_interval, probability_of_improvement
from tests.lazily import lazy

stats = lazy("scipy.stats")
TASKS = {"easy": [0.9, 0.95, 0.85, 0.9], "hard": [0.1, 0.3, 0.2, 0.15], "odd": [0.5, 0.0, 0.6, 0.55]}
BETTER = {name: [value + 0.2 for value in values] for name, values in TASKS.items()}
RUNS = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=7)


def test_the_iqm_is_the_mean_of_the_middle_half() -> None:
    assert iqm(TASKS) == pytest.approx(np.mean(sorted(chain.from_iterable(TASKS.values()))[3:9]))


def test_one_collapsed_run_in_eight_does_not_move_the_iqm() -> None:
    assert iqm({"a": [0.5] * 7 + [0.0]}) == 0.5


@given(RUNS, RUNS)
def test_probability_of_improvement_is_the_share_of_mann_whitneys_u(a: list[float], b: list[float]) -> None:
    u = stats.mannwhitneyu(b, a).statistic if len(set(a + b)) > 1 else len(a) * len(b) / 2
    there = probability_of_improvement({"t": a}, {"t": b})
    assert there == pytest.approx(u / (len(a) * len(b)))
    assert there + probability_of_improvement({"t": b}, {"t": a}) == pytest.approx(1)


def test_tasks_weigh_the_same_however_many_runs_they_have() -> None:
    a = {"x": [0.0], "y": [1.0] * 9}
    b = {"x": [1.0], "y": [0.0] * 9}
    assert probability_of_improvement(a, b) == 0.5


def test_intervals_hold_their_estimate_and_are_the_same_each_time() -> None:
    first, again = iqm_interval(TASKS), iqm_interval(dict(reversed(TASKS.items())))
    assert first == again
    assert first.low < first.mean < first.high
    gain = improvement_interval(TASKS, BETTER)
    assert 0.5 < gain.low <= gain.mean <= gain.high <= 1


def test_runs_are_drawn_anew_within_their_task_only() -> None:
    apart = {"low": [0.0] * 4, "high": [1.0] * 4}
    assert iqm_interval(apart) == (found := iqm_interval(apart))
    assert (found.low, found.high) == (found.mean, found.mean)


def test_tasks_that_do_not_match_or_have_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(ValueError, match="one run in each"):
        iqm({"a": []})
