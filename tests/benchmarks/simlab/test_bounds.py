"""Bounds of small samples are those of the binomial."""

from __future__ import annotations

from tests.benchmarks.simlab.bounds import SURE, least, most
from tests.lazily import lazy

stats = lazy("scipy.stats")


def test_a_correct_system_stays_within_them() -> None:
    for of in (5, 24, 100):
        assert stats.binom.cdf(most(of, 0.05), of, 0.05) >= SURE
        assert stats.binom.sf(least(of, 0.75) - 1, of, 0.75) >= SURE


def test_they_are_no_wider_than_that() -> None:
    assert stats.binom.cdf(most(24, 0.05) - 1, 24, 0.05) < SURE
    assert stats.binom.sf(least(24, 0.75), 24, 0.75) < SURE
