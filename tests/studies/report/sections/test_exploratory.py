"""Numbers beside the verdicts: no claim rests on them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.report.sections.exploratory import beats
from tests.lazily import lazy

stats = lazy("scipy.stats")
RUNS = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=7)


@given(RUNS, RUNS)
def test_that_a_treatment_run_beats_a_control_run_is_the_share_of_mann_whitneys_u(
    a: list[float], b: list[float]
) -> None:
    u = stats.mannwhitneyu(b, a).statistic if len(set(a + b)) > 1 else len(a) * len(b) / 2
    assert beats(a, b) == pytest.approx(u / (len(a) * len(b)))


def test_without_a_run_in_both_arms_there_is_none() -> None:
    assert beats([], [1.0]) is None
    assert beats([1.0], []) is None
