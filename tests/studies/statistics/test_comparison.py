from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, variance

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from studies.records.design import trend_weights
from studies.records.procedure import InterimAnalysis, Noise
from studies.statistics.comparison import (
    BANK_CAP,
    Comparison,
    Runs,
    compare,
    contrast,
    effective_level,
    is_equivalent,
    two_one_sided,
    welch,
)
from studies.statistics.power import PowerDesign, dunnett_critical, dunnett_p, power
from tests.golden import assert_golden
from tests.lazily import lazy
from tests.studies.synthetic import studies

stats, weightstats = lazy("scipy.stats"), lazy("statsmodels.stats.weightstats")
TESTS = st.sampled_from(["welch", "pooled", "paired"])
VALUES = st.lists(st.integers(0, 512).map(lambda n: n / 512), min_size=2, max_size=8)
LOW = [0.50, 0.52, 0.51, 0.49, 0.53]
HIGH = [0.61, 0.64, 0.60, 0.66, 0.63]
NEAR = [0.51, 0.53, 0.50, 0.50, 0.55]
OTHER = [0.57, 0.55, 0.58, 0.54, 0.56]


def runs(prefix: str, values: list[float], seeds: list[int] | None = None) -> Runs:
    names = [f"{prefix}{n}" for n in range(len(values))]
    numbers = seeds or list(range(len(values)))
    return Runs(dict(zip(names, values, strict=True)), dict(zip(names, numbers, strict=True)))


def bank(sd: float = 0.02, df: int = 20) -> Noise:
    return Noise(sd=sd, df=df, episodes=512, basis="made up for a test")


def found(test: str, a: list[float], b: list[float], **options: object) -> Comparison:
    return compare(test, runs("c", a), runs("t", b), **options)


@given(VALUES, VALUES)
def test_welch_is_scipys(a: list[float], b: list[float]) -> None:
    assume(len(set(a)) > 1 and len(set(b)) > 1)
    ours, theirs = found("welch", a, b), stats.ttest_ind(b, a, equal_var=False)
    assert (ours.t, ours.df, ours.p) == pytest.approx((theirs.statistic, theirs.df, theirs.pvalue), abs=1e-9)
    assert ours.interval(0.9) == pytest.approx(tuple(theirs.confidence_interval(0.9)), abs=1e-9)


def test_the_bank_and_arms_that_agree_share_one_variance_up_to_a_cap() -> None:
    ours = found("pooled", LOW, HIGH, others=[OTHER], noise=bank(0.02, 6))
    squares = 4 * (variance(LOW) + variance(HIGH) + variance(OTHER)) + 6 * 0.02**2
    assert ours.df == 12 + 6
    assert ours.sd == pytest.approx(math.sqrt(squares / 18))
    assert ours.error == pytest.approx(math.sqrt(squares / 18 * 2 / 5))
    rng = random.Random(4)
    a, b = ([rng.gauss(0, 0.02) for _ in range(40)] for _ in range(2))
    assert found("pooled", a, b, noise=bank(0.02, 500)).df == 78 + BANK_CAP
    alone = found("pooled", LOW, HIGH)
    assert found("pooled", LOW, HIGH, others=[[0.0, 1.0, 0.1, 0.9], [0.5] * 5, [0.3]]) == alone


@pytest.mark.parametrize(("sd", "df", "weight"), [(0.02, 3, 3), (0.02, 500, 8), (0.0002, 20, 0), (2.0, 20, 0)])
def test_the_bank_weighs_no_more_than_the_runs_at_hand_and_nothing_where_it_contradicts_them(
    sd: float, df: int, weight: int
) -> None:
    assert found("pooled", LOW, HIGH, noise=bank(sd, df)).df == 8 + weight


def test_an_arm_spread_more_widely_than_the_pool_is_judged_by_its_own_variance() -> None:
    wild = [0.2, 0.9, 0.5, 0.7, 0.1]
    ours = found("pooled", LOW, wild, noise=bank())
    theirs = found("welch", LOW, wild)
    assert (ours.test, ours.p, ours.sd) == ("welch", theirs.p, None)
    assert "treatment" in ours.instead
    assert "control" in found("pooled", wild, LOW).instead


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=3, max_size=8))
def test_pairs_are_compared_as_scipys_paired_test_compares_them(pairs: list[tuple[int, int]]) -> None:
    a, b = [x / 100 for x, _ in pairs], [y / 100 for _, y in pairs]
    assume(max(y - x for x, y in pairs) > min(y - x for x, y in pairs))
    theirs = stats.ttest_rel(b, a)
    ours = found("paired", a, b)
    assert (ours.t, ours.df, ours.n_control) == pytest.approx((theirs.statistic, len(a) - 1, len(a)), abs=1e-7)
    assert ours.p == pytest.approx(theirs.pvalue, abs=1e-9)


def test_runs_are_paired_by_seed_and_with_fewer_than_two_pairs_welchs_test_is_made() -> None:
    ours = compare("paired", runs("c", LOW, [1, 2, 3, 4, 9]), runs("t", [*HIGH[3::-1], 0.9], [4, 3, 2, 1, 8]))
    assert (ours.n_treatment, ours.df) == (4, 3)
    assert ours.estimate == pytest.approx(fmean(b - a for a, b in zip(LOW[:4], HIGH[:4], strict=True)))
    ours = compare("paired", runs("c", LOW, [1, 2, 3, 4, 5]), runs("t", HIGH, [5, 6, 7, 8, 9]))
    assert ours.test == "welch"
    assert_golden(ours.instead)
    with pytest.raises(ValueError, match="found 1 and 5"):
        compare("welch", runs("c", [0.5]), runs("t", HIGH))


@given(VALUES, VALUES, TESTS)
def test_the_interval_leaves_out_zero_exactly_when_p_is_below_its_level(
    a: list[float], b: list[float], test: str
) -> None:
    ours = compare(test, runs("c", a), runs("t", b))
    assume(ours is not None)
    for alpha in (0.01, 0.05, 0.3):
        low, high = ours.interval(1 - alpha)
        assume(abs(ours.p - alpha) > 1e-9)
        assert (low > 0 or high < 0) == (ours.p < alpha)


@pytest.mark.parametrize("margin", [0.01, 0.03, 0.1])
def test_p_of_equivalence_is_that_of_statsmodels(margin: float) -> None:
    cases = {
        "welch": weightstats.ttost_ind(NEAR, LOW, -margin, margin, usevar="unequal")[0],
        "pooled": weightstats.ttost_ind(NEAR, LOW, -margin, margin, usevar="pooled")[0],
        "paired": weightstats.ttost_paired(np.array(NEAR), np.array(LOW), -margin, margin)[0],
    }
    for test, theirs in cases.items():
        assert two_one_sided(found(test, LOW, NEAR), margin, 0.05).p == pytest.approx(theirs, rel=1e-9), test


@given(st.floats(-0.2, 0.2), st.floats(0.001, 0.1), st.floats(1, 60), st.floats(0.01, 0.3), st.floats(0.0005, 0.3))
def test_equivalence_holds_exactly_when_both_one_sided_tests_reject(
    estimate: float, error: float, df: float, margin: float, alpha: float
) -> None:
    result = two_one_sided(Comparison("welch", estimate, error, df), margin, alpha)
    if abs(result.p - alpha) > 1e-9:
        assert is_equivalent(result) == (result.p < alpha)
    assert is_equivalent(result) == (-margin < result.low and result.high < margin)


CROSSED = (1.0, -1.0, -1.0, 1.0)
ARM = st.lists(st.floats(-5, 5).map(lambda value: round(value, 3)), min_size=2, max_size=6)


@given(ARM, ARM)
def test_welchs_test_is_the_contrast_of_two_arms(a: list[float], b: list[float]) -> None:
    found = contrast([a, b], (-1, 1))
    if len(set(a)) == len(set(b)) == 1:
        assert found is None
        return
    other = welch(a, b)
    for name in ("estimate", "error", "df", "p"):
        assert math.isclose(getattr(found, name), getattr(other, name), rel_tol=1e-9, abs_tol=1e-12)
    assert (found.n_control, found.n_treatment) == (len(a), len(b))


@given(st.lists(ARM, min_size=4, max_size=4), st.floats(-3, 3), st.floats(-3, 3))
def test_an_interaction_does_not_see_what_either_field_does_by_itself(
    arms: list[list[float]], first: float, second: float
) -> None:
    found = contrast(arms, CROSSED)
    shifts = (0.0, first, second, first + second)
    moved = contrast([[v + by for v in values] for values, by in zip(arms, shifts, strict=True)], CROSSED)
    if found is None or moved is None:
        assert found is moved
        return
    assert math.isclose(found.estimate, moved.estimate, abs_tol=1e-9)
    assert math.isclose(found.error, moved.error, rel_tol=1e-6, abs_tol=1e-9)


def test_degrees_of_freedom_are_satterthwaites() -> None:
    """Worked by hand: v = (2, 0.5, 0.5, 8) / 3 has df = 2 * 11^2 / (4 + 0.25 + 0.25 + 64)."""
    spreads = (2.0, 0.5, 0.5, 8.0)
    arms = [[-math.sqrt(v), 0.0, math.sqrt(v)] for v in spreads]
    found = contrast(arms, CROSSED)
    assert math.isclose(found.error**2, 11 / 3)
    assert math.isclose(found.df, 2 * 11**2 / (4 + 0.25 + 0.25 + 64))


@pytest.mark.parametrize(("arms", "told"), [([[1.0, 2.0]] * 3, "weight"), ([[1.0]] * 4, "2 values")])
def test_what_is_no_contrast_is_refused(arms: list[list[float]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        contrast(arms, CROSSED)


def normal(rng: random.Random, means: Sequence[float], spreads: Sequence[float], seeds: int) -> list[list[float]]:
    return [[rng.gauss(mean, sd) for _ in range(seeds)] for mean, sd in zip(means, spreads, strict=True)]


@pytest.mark.parametrize("spreads", [(1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 4.0), (0.3, 1.0, 2.0, 0.3)])
@pytest.mark.parametrize("seeds", [3, 5])
@studies(100, 4000)
def test_the_level_holds_at_few_runs_and_unlike_noise(spreads: tuple[float, ...], seeds: int, studies: int) -> None:
    """At a true rate of 5.5 % more claims than this come up once in a thousand times."""
    rng = random.Random(11)
    claims = sum(contrast(normal(rng, [0] * 4, spreads, seeds), CROSSED).p <= 0.05 for _ in range(studies))
    assert stats.binom.ppf(0.001, studies, 0.02) <= claims <= stats.binom.ppf(0.999, studies, 0.055)


@studies(100, 4000)
def test_equivalence_holds_its_level_at_the_margin(studies: int) -> None:
    rng = random.Random(12)  # the truth is on the margin
    found = [contrast(normal(rng, (0, 0, 0, 3), [1] * 4, 5), CROSSED) for _ in range(studies)]
    wrong = sum(is_equivalent(two_one_sided(each, 3.0, 0.05)) for each in found)
    assert (studies >= 1000) <= wrong <= stats.binom.ppf(0.999, studies, 0.055)


@pytest.mark.parametrize("weights", [CROSSED, (-1.0, 1.0), trend_weights([1, 2, 4, 8]), trend_weights([0, 1, 10])])
@pytest.mark.parametrize("seeds", [3, 6])
@studies(100, 2000)
def test_power_is_what_is_seen(weights: tuple[float, ...], seeds: int, studies: int) -> None:
    rng, effect = random.Random(13), 3 * math.sqrt(sum(each * each for each in weights) / seeds)
    means = [effect / math.fsum(each * each for each in weights) * weight for weight in weights]
    found = [contrast(normal(rng, means, [1] * len(weights), seeds), weights) for _ in range(studies)]
    seen = sum(each.p <= 0.05 and each.estimate > 0 for each in found) / studies
    shape = PowerDesign("contrast", (InterimAnalysis(seeds=seeds, alpha=0.05),), arms=len(weights), weights=weights)
    assert abs(seen - power(shape, effect, 1.0)) < 3.1 * 0.5 / studies**0.5


ARMS = st.lists(st.integers(2, 12), min_size=1, max_size=4)
P = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(P, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_families_below_the_effective_level_are_those_that_benjamini_and_hochberg_choose(
    p: list[float], alpha: float
) -> None:
    theirs = stats.false_discovery_control(p)
    chosen = sum(value <= effective_level(p, alpha) * (1 + 1e-12) for value in p)
    assert abs(chosen - sum(theirs <= alpha)) <= sum(abs(theirs - alpha) < 1e-12)


def test_levels_of_a_known_case_and_none_of_no_family() -> None:
    """Benjamini & Hochberg 1995, section 4: fifteen endpoints, of which four are chosen at 0.05."""
    found = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    p = [*found, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
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


@given(st.floats(0.05, 6), st.floats(2, 200), st.integers(2, 12), ARMS)
def test_p_lies_between_students_and_bonferronis(t: float, df: float, n_control: int, numbers: list[int]) -> None:
    alone = 2 * stats.t.sf(t, df)
    found = dunnett_p(t, df, n_control, numbers)
    assert alone - 1e-7 <= found <= min(1.0, alone * len(numbers)) + 1e-7
    assert found == dunnett_p(-t, df, n_control, list(reversed(numbers)))


@pytest.mark.parametrize("df", [1.0, 1.05, 1.5, 2.0])
@pytest.mark.parametrize("level", [1 - 5e-5, 1 - 2e-4, 1 - 5e-4])
def test_a_level_that_the_quadrature_cannot_resolve_has_bonferroni_s_bound(df: float, level: float) -> None:
    """Two runs an arm at an early look leave a Welch test with one degree of freedom."""
    alone, both = (float(stats.t.isf((1 - level) / (2 * arms), df)) for arms in (1, 2))
    assert alone * (1 - 1e-5) <= dunnett_critical(level, df, 2, [2, 2]) <= both * (1 + 1e-6)
