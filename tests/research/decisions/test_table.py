"""The table's use: the kill condition stands first, the default stops at a verdict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.decisions import DEFAULT_TABLE, KILL, UNRULED, DecisionFields, decide, fields_of, rules_for
from studies.records.design_parts import Rule
from tests.studies.synthetic import hypothesis, judged


def fields(verdict: str, looks_left: int = 1, **numbers: Any) -> DecisionFields:
    known = {"lo": -0.1, "hi": 0.1, "est": 0.0, "p": 0.5, "n": 3, "budget_left": 60.0, "look": 1, **numbers}
    return DecisionFields(verdict=verdict, looks_left=looks_left, **known)


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


def test_what_no_rule_covers_settles_and_is_said() -> None:
    assert decide(DEFAULT_TABLE[:1], fields("inconclusive")) is UNRULED
    assert UNRULED.then == "settle"
    budget = Rule(name="rich", when="budget_left < 1000000", then="settle")
    assert decide((budget,), fields("inconclusive", budget_left=3e7)) is UNRULED


def test_a_rule_that_this_version_cannot_read_does_not_hold_and_ends_nothing() -> None:
    strange = Rule(name="strange", when="median(lo) < 1", then="continue")
    assert decide((strange,), fields("inconclusive")) is UNRULED
    assert decide((strange, *DEFAULT_TABLE), fields("inconclusive")).name == "look-again"


RULES = st.builds(
    Rule,
    name=st.just("any"),
    when=st.sampled_from(
        ["lo > 0", "hi < lo", "budget_left >= 600", "p < 0.05 or n > 3", "not (est > 0)", "hi <", "x"]
    ),
    then=st.sampled_from(["continue", "settle", "replicate"]),
)
NUMBERS = st.one_of(st.none(), st.floats(-1, 1))


@given(
    rules=st.lists(RULES, max_size=4),
    verdict=st.sampled_from(["supported", "refuted", "equivalent", "inconclusive", "invalid"]),
    numbers=st.fixed_dictionaries(dict.fromkeys(("lo", "hi", "est", "p"), NUMBERS)),
    budget_left=st.floats(0, 1e9),
    looks_left=st.integers(0, 3),
)
def test_any_table_has_one_act_for_every_case(
    rules: list[Rule], verdict: str, numbers: dict[str, float | None], budget_left: float, looks_left: int
) -> None:
    decided = decide(rules, fields(verdict, looks_left, budget_left=budget_left, **numbers))
    assert decided in (*rules, UNRULED)


def test_the_fields_are_the_verdicts_own() -> None:
    verdict = judged(hypothesis(), {"a": 0.1, "b": 0.2, "c": 0.15}, {"d": 0.5, "e": 0.6}, alpha=0.05)
    seen = fields_of(verdict, looks=3, budget_left=42.0)
    assert (seen.lo, seen.hi, seen.est, seen.p) == (verdict.low, verdict.high, verdict.estimate, verdict.p)
    assert (seen.n, seen.budget_left, seen.look, seen.looks_left) == (2, 42.0, 1, 2)
