"""The decision language: what parses, what is refused, and what holds of fields that are not there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.decisions import (
    DEFAULT_TABLE,
    KILL,
    UNRULED,
    DecisionFields,
    RuleError,
    decide,
    fields_of,
    holds,
    parse,
    rules_for,
)
from studies.records.design_parts import Rule
from tests.studies.synthetic import hypothesis, judged

INCONCLUSIVE = DecisionFields("inconclusive", -0.1, 0.3, 0.1, 0.2, 3, 600.0, 1, 2)
UNMEASURED = DecisionFields("invalid", None, None, None, None, 1, 600.0, 1, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("verdict == 'inconclusive'", True), ("'inconclusive' == verdict", True), ("verdict != 'inconclusive'", False),
        ("verdict in ('supported', 'refuted')", False), ("verdict not in ['supported', 'refuted']", True),
        ("lo < 0 < hi", True), ("lo < 0 < hi < 0.2", False), ("hi - lo < 0.5 and n == 3", True),
        ("2 * est == est + 0.1", True), ("-lo >= 0.1", True), ("not (p < 0.05) or budget_left < 60", True),
        ("look == 1 and looks_left != 2", False),
    ],
)  # fmt: skip
def test_a_predicate_is_true_or_false_of_a_verdict(text: str, expected: bool) -> None:
    assert holds(parse(text), INCONCLUSIVE) is expected


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "1", "lo", "lo = 1", "lo <", "lo.real < 1", "lo[0] < 1", "abs(lo) < 1", "lo < __import__('os')",
        "seed < 3", "lo * hi < 1", "lo / 2 < 1", "lo ** 2 < 1", "lo if hi else est", "lambda: 1", "lo is None",
        "verdict < 'supported'", "verdict == 'better'", "verdict in verdict", "verdict == 1", "lo in (1, 2)",
        "lo < True", "lo < 1e400", "lo < 1" + "0" * 290, "lo < 'a'", "(x := lo) < 1", "lo < 1j", "x" * 301,
        "not " * 60 + "lo < 1",
    ],
)  # fmt: skip
def test_what_is_outside_the_language_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(RuleError) as refused:
        parse(text)
    assert "expected" in str(refused.value)
    assert "found" in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.text(alphabet="lohiestpn<>=.0123456789 ()'andornotverdict,[]{}:@-+*/%", max_size=60))
def test_any_text_is_a_predicate_or_one_refusal(text: str) -> None:
    try:
        predicate = parse(text)
    except RuleError:
        return
    assert holds(predicate, INCONCLUSIVE) in (True, False)


@pytest.mark.parametrize("text", ["lo > 0", "not lo > 0", "lo > 0 or lo <= 0", "est == est + lo", "p != 0.5"])
def test_what_is_unknown_does_not_hold_and_neither_does_its_negation(text: str) -> None:
    assert not holds(parse(text), UNMEASURED)


def test_a_known_part_decides_where_it_can() -> None:
    assert holds(parse("lo > 0 or n < 2"), UNMEASURED)
    assert holds(parse("not (lo > 0 and n > 5)"), UNMEASURED)
    assert not holds(parse("lo > 0 and n < 2"), UNMEASURED)


ATOMS = st.sampled_from(["lo > 0", "hi < 0.2", "est >= 0.1", "n > 3", "verdict == 'invalid'", "p < 0.05"])
TEXTS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda t: f"not ({t})"),
    ),
    max_leaves=5,
)
NUMBERS = st.sampled_from([-0.3, 0.0, 0.05, 0.1, 0.2, 0.7])


@given(TEXTS, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 9), st.sampled_from(["invalid", "supported"]))
def test_where_everything_is_known_it_means_what_python_means(
    text: str, lo: float, hi: float, est: float, n: int, verdict: Any
) -> None:
    fields = DecisionFields(verdict, lo, hi, est, 0.04, n, 60.0, 1, 0)
    names = {"lo": lo, "hi": hi, "est": est, "n": n, "p": 0.04, "verdict": verdict}
    if len(text) <= 300:
        assert holds(parse(text), fields) is eval(text, {"__builtins__": {}}, names)


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
BOUNDS = st.one_of(st.none(), st.floats(-1, 1))


@given(
    rules=st.lists(RULES, max_size=4),
    verdict=st.sampled_from(["supported", "refuted", "equivalent", "inconclusive", "invalid"]),
    numbers=st.fixed_dictionaries(dict.fromkeys(("lo", "hi", "est", "p"), BOUNDS)),
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
