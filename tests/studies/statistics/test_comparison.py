from __future__ import annotations

import math
import random
from statistics import fmean, variance

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from studies.records.procedure import Noise
from studies.statistics.comparison import (
    BANK_CAP,
    Comparison,
    Runs,
    compare,
    is_equivalent,
    mean_interval,
    spread,
    two_one_sided,
)
from tests.golden import assert_golden
from tests.lazily import lazy

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


def test_every_arm_and_the_bank_share_one_variance() -> None:
    ours = found("pooled", LOW, HIGH, others=[OTHER], noise=bank(0.02, 6))
    squares = 4 * (variance(LOW) + variance(HIGH) + variance(OTHER)) + 6 * 0.02**2
    assert ours.df == 12 + 6
    assert ours.sd == pytest.approx(math.sqrt(squares / 18))
    assert ours.error == pytest.approx(math.sqrt(squares / 18 * 2 / 5))


@pytest.mark.parametrize(("df", "weight"), [(3, 3), (8, 8), (500, 8)])
def test_the_bank_weighs_no_more_than_the_runs_at_hand(df: int, weight: int) -> None:
    assert found("pooled", LOW, HIGH, noise=bank(0.02, df)).df == 8 + weight


def test_the_bank_weighs_no_more_than_its_cap() -> None:
    rng = random.Random(4)
    a, b = ([rng.gauss(0, 0.02) for _ in range(40)] for _ in range(2))
    assert found("pooled", a, b, noise=bank(0.02, 500)).df == 78 + BANK_CAP


@pytest.mark.parametrize("sd", [0.0002, 2.0])
def test_a_bank_that_contradicts_the_runs_is_not_used(sd: float) -> None:
    assert found("pooled", LOW, HIGH, noise=bank(sd)) == found("pooled", LOW, HIGH)


def test_an_arm_that_contradicts_the_two_or_does_not_vary_is_not_pooled() -> None:
    alone = found("pooled", LOW, HIGH)
    assert found("pooled", LOW, HIGH, others=[[0.0, 1.0, 0.1, 0.9], [0.5] * 5, [0.3]]) == alone


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


def test_runs_are_paired_by_seed_whatever_their_order_and_the_rest_is_left_out() -> None:
    ours = compare("paired", runs("c", LOW, [1, 2, 3, 4, 9]), runs("t", [*HIGH[3::-1], 0.9], [4, 3, 2, 1, 8]))
    assert (ours.n_treatment, ours.df) == (4, 3)
    assert ours.estimate == pytest.approx(fmean(b - a for a, b in zip(LOW[:4], HIGH[:4], strict=True)))


def test_with_fewer_than_two_pairs_welchs_test_is_made_and_the_reason_named() -> None:
    ours = compare("paired", runs("c", LOW, [1, 2, 3, 4, 5]), runs("t", HIGH, [5, 6, 7, 8, 9]))
    assert ours.test == "welch"
    assert_golden(ours.instead)


def test_one_value_is_no_arm() -> None:
    with pytest.raises(ValueError, match="found 1 and 5"):
        compare("welch", runs("c", [0.5]), runs("t", HIGH))


@given(VALUES, VALUES, TESTS, st.integers(-8, 8), st.integers(1, 5))
def test_shift_and_scale_move_the_estimate_and_leave_p(
    a: list[float], b: list[float], test: str, shift: int, scale: int
) -> None:
    def moved(values: list[float]) -> Runs:
        return runs("c", [shift + scale * value for value in values])

    there, back = compare(test, runs("c", a), runs("t", b)), compare(test, moved(a), moved(b))
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert back.estimate == pytest.approx(scale * there.estimate, abs=1e-9)
        assert (back.p, back.test) == (pytest.approx(there.p, abs=1e-7), there.test)


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


def test_the_interval_of_a_mean_is_students() -> None:
    found, half = mean_interval(LOW), stats.t.ppf(0.975, 4) * math.sqrt(variance(LOW) / 5)
    assert [found.low, found.high] == pytest.approx([0.51 - half, 0.51 + half])
    assert mean_interval([0.5]) is None
    assert spread([0.1, 0.1, 0.1]) == 0.0
