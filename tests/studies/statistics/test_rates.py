from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.statistics.rates import rate_difference, rate_interval
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
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((p, centre - half, centre + half), abs=1e-12)


@given(COUNTS)
def test_jeffreys_interval_is_the_posterior_of_its_prior(counts: tuple[int, int]) -> None:
    k, n = counts
    found = rate_interval(k, n, by="jeffreys", level=0.9)
    low, high = stats.beta.ppf([0.05, 0.95], k + 0.5, n - k + 0.5)
    assert found is not None
    if 0 < k < n:
        assert (found.low, found.high) == pytest.approx((low, high))


def test_a_rate_of_nothing_is_missing_and_an_impossible_count_refused() -> None:
    assert rate_interval(0, 0) is None
    assert rate_difference((0, 0), (1, 2)) is None
    with pytest.raises(ValueError, match="between 0 and its 3 trials; found 4"):
        rate_interval(4, 3)


def test_a_difference_of_collapse_rates_has_fishers_p_and_an_interval_around_it() -> None:
    found = rate_difference((1, 20), (8, 20))
    assert found is not None
    assert found.estimate == pytest.approx(0.35)
    assert found.p == pytest.approx(0.019656, abs=1e-6)  # 2 x 2 table by the hypergeometric distribution
    assert found.low < found.estimate < found.high
    assert found.low > 0


def test_five_runs_an_arm_do_not_tell_five_from_forty_per_cent_apart() -> None:
    found = rate_difference((0, 5), (2, 5))
    assert found is not None
    assert found.p > 0.4
