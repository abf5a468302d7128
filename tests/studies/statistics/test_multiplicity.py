from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.statistics.comparison import count_rejections, effective_level
from studies.statistics.sequential import dunnett_critical, dunnett_p
from tests.lazily import lazy

stats = lazy("scipy.stats")
NUMBERS = st.lists(st.integers(2, 12), min_size=1, max_size=4)
P = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(P, st.sampled_from([0.01, 0.05, 0.2]))
def test_a_family_is_below_the_effective_level_exactly_when_it_is_chosen(p: list[float], alpha: float) -> None:
    level = effective_level(p, alpha)
    assert sum(value <= level * (1 + 1e-12) for value in p) == count_rejections(p, alpha)


@given(P, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_chosen_are_benjamini_and_hochbergs(p: list[float], alpha: float) -> None:
    theirs = sum(value <= alpha for value in stats.false_discovery_control(p))
    near = sum(abs(value - alpha) < 1e-12 for value in stats.false_discovery_control(p))
    assert abs(count_rejections(p, alpha) - theirs) <= near


@given(P)
def test_a_larger_alpha_chooses_no_fewer(p: list[float]) -> None:
    levels = [effective_level(p, alpha) for alpha in (0.001, 0.01, 0.05, 0.2)]
    assert levels == sorted(levels)
    assert 0.05 / len(p) - 1e-12 <= levels[2] <= 0.05 + 1e-12


def test_levels_of_a_known_case_and_none_of_no_family() -> None:
    """Benjamini & Hochberg 1995, section 4: fifteen endpoints, of which four are chosen at 0.05."""
    found = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    p = [*found, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    assert count_rejections(p, 0.05) == 4
    assert effective_level(p, 0.05) == pytest.approx(4 * 0.05 / 15)
    assert effective_level([0.5], 0.05) == 0.05
    assert effective_level([0.5, 0.6], 0.05) == 0.025
    with pytest.raises(ValueError, match="family"):
        effective_level([], 0.05)


@pytest.mark.parametrize(
    ("arms", "df", "point"),
    [(2, 5, 3.03), (3, 10, 2.76), (4, 20, 2.65), (3, 12, 2.68), (5, 30, 2.66), (9, 60, 2.77), (4, 120, 2.47)],
)
def test_critical_values_are_those_of_dunnetts_table(arms: int, df: int, point: float) -> None:
    """Dunnett 1964, table II: two-sided 5 % points of equal numbers of runs."""
    assert dunnett_critical(0.95, df, 5, [5] * arms) == pytest.approx(point, abs=0.0101)


def test_p_of_unequal_arms_is_scipys_within_its_random_error() -> None:
    rng = random.Random(3)
    control, *arms = ([rng.gauss(mean, 1) for _ in range(n)] for mean, n in ((0, 6), (1, 4), (1, 7), (1, 5)))
    theirs = stats.dunnett(*arms, control=control, rng=1)
    ours = [dunnett_p(float(t), 18, 6, [4, 7, 5]) for t in theirs.statistic]
    assert ours == pytest.approx(list(theirs.pvalue), abs=2e-4)


@given(st.floats(0.05, 6), st.floats(2, 200), st.integers(2, 12), NUMBERS)
def test_p_lies_between_students_and_bonferronis(t: float, df: float, n_control: int, numbers: list[int]) -> None:
    alone = 2 * stats.t.sf(t, df)
    found = dunnett_p(t, df, n_control, numbers)
    assert alone - 1e-7 <= found <= min(1.0, alone * len(numbers)) + 1e-7
    assert found == dunnett_p(-t, df, n_control, list(reversed(numbers)))


@given(st.sampled_from([0.9, 0.95, 0.99, 0.9999]), st.floats(2, 60), st.integers(2, 12), NUMBERS)
def test_p_at_the_critical_value_is_the_level(level: float, df: float, n_control: int, numbers: list[int]) -> None:
    point = dunnett_critical(level, df, n_control, numbers)
    assert dunnett_p(point, df, n_control, numbers) == pytest.approx(1 - level, abs=1e-8)


@pytest.mark.parametrize("df", [1.0, 1.05, 1.5, 2.0])
@pytest.mark.parametrize("level", [1 - 5e-5, 1 - 2e-4, 1 - 5e-4])
def test_a_level_that_the_quadrature_cannot_resolve_has_bonferroni_s_bound(df: float, level: float) -> None:
    """Two runs an arm at an early look leave a Welch test with one degree of freedom."""
    alone, both = (float(stats.t.isf((1 - level) / (2 * arms), df)) for arms in (1, 2))
    assert alone * (1 - 1e-5) <= dunnett_critical(level, df, 2, [2, 2]) <= both * (1 + 1e-6)
