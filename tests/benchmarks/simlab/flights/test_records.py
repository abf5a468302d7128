"""A claim is scored against the truth that its verdict names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simlab.flights.records import FlownClaim

CLAIM = FlownClaim(
    "f", "h1", "group_size", truth=0.0, truth_kept=0.0, truth_all=-0.05, scope="not_collapsed", promised=0.1, power=0.8,
    sign=1, verdict="supported", estimate=0.05, low=0.01, high=0.09, level=0.95, n=(5, 5), collapsed=(0, 1), look=1,
    probability=0.5, brier=None, within_prediction=None, violations=(), exploratory=False,
)  # fmt: skip


def test_a_claim_on_trainings_that_do_not_collapse_is_false_where_those_do_not_differ() -> None:
    assert CLAIM.false
    assert not replace(CLAIM, truth=0.05).false
    assert replace(CLAIM, verdict="refuted").false_of_all is False


@pytest.mark.parametrize(("verdict", "said"), [("supported", 1), ("refuted", -1), ("inconclusive", 0), ("invalid", 0)])
def test_what_is_said_is_what_is_claimed(verdict: str, said: int) -> None:
    assert replace(CLAIM, verdict=verdict).said == said


def test_an_equivalence_that_is_said_not_to_be_zero_says_that_there_is_a_difference() -> None:
    small = replace(CLAIM, verdict="equivalent")
    assert not small.difference
    assert small.said == 1
    assert small.false
    assert not replace(small, low=-0.01).false
    assert replace(small, low=-0.09, high=-0.01).said == -1


def test_an_equivalence_is_false_from_the_margin_on() -> None:
    same = replace(CLAIM, verdict="equivalent", low=-0.01)
    assert not same.falsely_equivalent
    assert replace(same, truth=-0.1).falsely_equivalent
    assert not replace(same, truth=0.099).falsely_equivalent
