"""The table's use: the kill condition stands first, the default stops at a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from research.decisions import DEFAULT_TABLE, KILL, Fields, RuleError, decide, fields_of, rules_for
from studies import judge
from tests.studies.synthetic import hypothesis


def fields(verdict: str, looks_left: int = 1, **numbers: Any) -> Fields:
    known = {"lo": -0.1, "hi": 0.1, "est": 0.0, "p": 0.5, "n": 3, "budget_left": 60.0, "look": 1, **numbers}
    return Fields(verdict=verdict, looks_left=looks_left, **known)


@pytest.mark.parametrize(
    ("verdict", "looks_left", "act"),
    [
        ("supported", 1, "settle"), ("refuted", 1, "settle"), ("equivalent", 1, "settle"),
        ("inconclusive", 1, "continue"), ("invalid", 1, "continue"),
        ("inconclusive", 0, "settle"), ("invalid", 0, "settle"),
    ],
)  # fmt: skip
def test_the_default_goes_on_while_nothing_is_decided_and_looks_are_left(
    verdict: str, looks_left: int, act: str
) -> None:
    assert decide(DEFAULT_TABLE, fields(verdict, looks_left)).then == act


def test_a_kill_condition_settles_before_the_table_is_asked() -> None:
    claim = hypothesis().model_copy(update={"kill_if": "hi < 0.2"})
    assert decide(rules_for(claim, ()), fields("inconclusive")).name == KILL
    assert decide(rules_for(claim, ()), fields("inconclusive", hi=0.3)).name == "look-again"
    assert rules_for(hypothesis(), ()) == DEFAULT_TABLE


def test_a_table_that_says_nothing_of_a_case_is_an_error_and_no_guess() -> None:
    with pytest.raises(RuleError, match="found none"):
        decide(DEFAULT_TABLE[:1], fields("inconclusive"))


def test_the_fields_are_the_verdicts_own() -> None:
    verdict = judge(hypothesis(), {"a": 0.1, "b": 0.2, "c": 0.15}, {"d": 0.5, "e": 0.6}, alpha=0.05)
    seen = fields_of(verdict, looks=3, budget_left=42.0)
    assert (seen.lo, seen.hi, seen.est, seen.p) == (verdict.low, verdict.high, verdict.estimate, verdict.p)
    assert (seen.n, seen.budget_left, seen.look, seen.looks_left) == (2, 42.0, 1, 2)
