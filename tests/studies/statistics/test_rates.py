from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.statistics import proportions as exact
from studies.statistics.proportions import rate_interval
from tests.lazily import lazy

stats = lazy("scipy.stats")
COUNTS = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(COUNTS)
def test_wilsons_interval_is_the_textbooks(counts: tuple[int, int]) -> None:
    k, n = counts
    z, p = float(stats.norm.ppf(0.975)), k / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    found = rate_interval(k, n)
    assert (found.mean, found.low, found.high) == pytest.approx((p, centre - half, centre + half), abs=1e-12)


def test_a_rate_of_nothing_is_missing_and_an_impossible_count_refused() -> None:
    assert rate_interval(0, 0) is None
    for limits in (rate_interval, exact.exact_limits):
        with pytest.raises(ValueError, match="3 trials; found 4"):
            limits(4, 3)


def chance(count: int, of: int, rate: float) -> float:
    return math.comb(of, count) * rate**count * (1 - rate) ** (of - count)


@pytest.mark.parametrize(
    ("control", "treatment", "p"),
    # one-sided p of R's package Exact, as scipy's tests quote them; the last is told the other way round there
    [((2, 10), (7, 9), 0.009886142), ((5, 25), (16, 41), 0.05827348), ((31, 63), (74, 117), 0.0355640643)],
)
def test_the_p_is_twice_the_published_one_sided_p(
    control: tuple[int, int], treatment: tuple[int, int], p: float
) -> None:
    assert exact.boschloo(control, treatment) == pytest.approx(2 * p, rel=1e-6)


@pytest.mark.slow
def test_every_table_of_few_runs_has_scipys_p() -> None:
    for a, b in product(range(3), range(4)):
        found = stats.boschloo_exact([[a, b], [2 - a, 3 - b]], n=64).pvalue
        assert exact.boschloo((a, 2), (b, 3)) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize(("n", "m"), [(2, 7), (4, 4), (6, 3), pytest.param(7, 7, marks=pytest.mark.full)])
def test_equal_rates_are_told_apart_with_a_probability_of_at_most_alpha(n: int, m: int) -> None:
    p = {(a, b): exact.boschloo((a, n), (b, m)) for a, b in product(range(n + 1), range(m + 1))}
    for alpha, percent in product((0.01, 0.05, 0.2), range(1, 100)):
        told_apart = [chance(a, n, percent / 100) * chance(b, m, percent / 100) for a, b in p if p[a, b] <= alpha]
        assert sum(told_apart) <= alpha + 1e-9


@given(st.integers(1, 8), st.data())
def test_naming_the_arms_the_other_way_round_changes_nothing(n: int, data: st.DataObject) -> None:
    a, b = data.draw(st.integers(0, n)), data.draw(st.integers(0, n))
    assert exact.boschloo((a, n), (b, n)) == pytest.approx(exact.boschloo((b, n), (a, n)), rel=1e-9)
    low, high = exact.difference((a, n), (b, n))
    assert (-high, -low) == pytest.approx(exact.difference((b, n), (a, n)), abs=1e-12)
    assert low <= (b - a) / n <= high


def test_the_interval_is_newcombes_tenth_method() -> None:
    # Newcombe 1998, table II: 56 of 70 less 48 of 80, 0.0524 to 0.3339 on Wilson's limits
    wilson = [rate_interval(count, of) for count, of in ((48, 80), (56, 70))]
    limits = [exact.RateLimits(found.mean, found.low, found.high) for found in wilson if found is not None]
    assert exact.newcombe(*limits) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_limits_are_clopper_and_pearsons() -> None:
    found = exact.exact_limits(0, 5)
    assert (found.rate, found.low, found.high) == pytest.approx((0.0, 0.0, 1 - 0.025 ** (1 / 5)))
    assert (exact.exact_limits(10, 10).low, exact.exact_limits(10, 10).high) == pytest.approx((0.6915029, 1.0))


def test_power_is_what_enumeration_gives() -> None:
    n, rates = 6, (0.1, 0.7)
    seen = sum(
        chance(a, n, rates[0]) * chance(b, n, rates[1])
        for a, b in product(range(n + 1), repeat=2)
        if b > a and exact.boschloo((a, n), (b, n)) <= 0.05
    )
    assert exact.power_of_rates(*rates, n) == pytest.approx(seen, abs=1e-9)
    assert exact.power_of_rates(*reversed(rates), n) == pytest.approx(seen, abs=1e-9)


@pytest.mark.parametrize("rates", [(0.0, 0.6), (0.0, 0.4), (0.2, 0.8)])
def test_the_seeds_are_the_fewest_that_keep_the_promise(rates: tuple[float, float]) -> None:
    found = exact.seeds_for_rates(*rates)
    assert found == next(n for n in range(2, 60) if exact.power_of_rates(*rates, n) >= 0.8)


def test_a_difference_that_no_affordable_study_sees_says_so() -> None:
    assert exact.seeds_for_rates(0.1, 0.15, most=40) is None
    with pytest.raises(ValueError, match="two different"):
        exact.seeds_for_rates(0.2, 0.2)


def test_three_seeds_see_nothing_but_nearly_all_against_none() -> None:
    seen = [exact.min_detectable_rate(seeds) for seeds in (2, 3, 8)]
    assert seen[0] is None
    assert seen[1] == pytest.approx(0.8 ** (1 / 3), abs=1e-6)
    assert exact.power_of_rates(0.0, seen[2], 8) == pytest.approx(0.8, abs=1e-6)


def test_a_margin_holds_from_the_alpha_on_whose_interval_lies_inside_it() -> None:
    alpha = exact.equivalence_p((0, 30), (1, 30), 0.3)
    low, high = exact.difference((0, 30), (1, 30), 1 - 2 * alpha)
    assert max(-low, high) == pytest.approx(0.3, abs=1e-6)
    assert exact.equivalence_p((0, 5), (5, 5), 0.3) == pytest.approx(0.5)
