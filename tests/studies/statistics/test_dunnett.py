from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.statistics.dunnett import adjusted_p, critical
from tests.lazily import lazy

stats = lazy("scipy.stats")
TABLE = [
    (2, 5, 3.03), (3, 10, 2.76), (4, 20, 2.65), (3, 12, 2.68), (5, 30, 2.66), (9, 60, 2.77), (4, 120, 2.47),
]  # fmt: skip
"""Arms, degrees of freedom, two-sided 5 % point: Dunnett 1964, table II, equal numbers of runs."""
NUMBERS = st.lists(st.integers(2, 12), min_size=1, max_size=4)


@pytest.mark.parametrize(("arms", "df", "point"), TABLE)
def test_critical_values_are_those_of_dunnetts_table(arms: int, df: int, point: float) -> None:
    assert critical(0.95, df, 5, [5] * arms) == pytest.approx(point, abs=0.0101)


def test_p_of_unequal_arms_is_scipys_within_its_random_error() -> None:
    rng = np.random.default_rng(3)
    control = rng.normal(size=6)
    arms = [rng.normal(loc=1.0, size=n) for n in (4, 7, 5)]
    theirs = stats.dunnett(*arms, control=control, rng=np.random.default_rng(1))
    ours = [adjusted_p(float(t), 18, 6, [4, 7, 5]) for t in theirs.statistic]
    assert ours == pytest.approx(list(theirs.pvalue), abs=2e-4)


@given(st.floats(0.05, 6), st.floats(2, 200), st.integers(2, 12), NUMBERS)
@settings(max_examples=40, deadline=None)
def test_p_lies_between_students_and_bonferronis(t: float, df: float, n_control: int, numbers: list[int]) -> None:
    alone = 2 * stats.t.sf(t, df)
    found = adjusted_p(t, df, n_control, numbers)
    assert alone - 1e-7 <= found <= min(1.0, alone * len(numbers)) + 1e-7
    assert found == adjusted_p(-t, df, n_control, list(reversed(numbers)))


@given(st.sampled_from([0.9, 0.95, 0.99, 0.9999]), st.floats(2, 60), st.integers(2, 12), NUMBERS)
@settings(max_examples=25, deadline=None)
def test_p_at_the_critical_value_is_the_level(level: float, df: float, n_control: int, numbers: list[int]) -> None:
    point = critical(level, df, n_control, numbers)
    assert adjusted_p(point, df, n_control, numbers) == pytest.approx(1 - level, abs=1e-8)


def test_one_arm_is_students_t_however_many_runs_it_has() -> None:
    assert critical(0.95, 8, 5, [5]) == pytest.approx(stats.t.ppf(0.975, 8))
    assert adjusted_p(2.0, 8, 3, [9]) == pytest.approx(2 * stats.t.sf(2.0, 8))


@pytest.mark.parametrize("df", [1.0, 1.05, 1.5, 2.0])
@pytest.mark.parametrize("level", [1 - 5e-5, 1 - 2e-4, 1 - 5e-4])
def test_a_level_that_the_quadrature_cannot_resolve_has_bonferroni_s_bound(df: float, level: float) -> None:
    """Two runs an arm at an early look leave a Welch test with one degree of freedom."""
    alone, both = (float(stats.t.isf((1 - level) / (2 * arms), df)) for arms in (1, 2))
    assert alone * (1 - 1e-5) <= critical(level, df, 2, [2, 2]) <= both * (1 + 1e-6)
