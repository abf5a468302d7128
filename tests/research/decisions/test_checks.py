"""A table's defects are found before the lock, and a table without defects decides every case in one way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from research.decisions import DEFAULT_TABLE, Fields, RuleError, check_condition, check_table, decide, holds, parse
from studies.procedure import Rule


def rule(name: str, when: str, then: Any = "settle") -> Rule:
    return Rule(name=name, when=when, then=then)


def kinds(*rules: Rule, looks: int = 2, **options: Any) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for defect in check_table(rules, direction="increase", looks=looks, **options):
        found.setdefault(defect.kind, []).append(defect.rules)
    return found


OTHERWISE = rule("otherwise", "verdict != 'inconclusive'")


@pytest.mark.parametrize("looks", [1, 2, 3])
@pytest.mark.parametrize("direction", ["increase", "decrease"])
def test_the_default_table_has_no_defect_but_a_rule_for_looks_that_do_not_exist(looks: int, direction: Any) -> None:
    found = check_table(DEFAULT_TABLE, direction=direction, looks=looks)
    assert [(defect.kind, defect.rules) for defect in found] == ([("dead", ("look-again",))] if looks == 1 else [])


def test_a_rule_that_cannot_hold_is_dead() -> None:
    found = kinds(rule("a", "lo > 0 and hi < 0"), rule("b", "verdict == 'refuted' and lo > 0"), rule("c", "3 < n < 4"))
    assert found["dead"] == [("a",), ("b",), ("c",)]


def test_the_direction_decides_which_side_a_verdict_lies_on() -> None:
    rules = (rule("a", "verdict == 'refuted' and lo > 0"), rule("b", "not (verdict == 'refuted' and lo > 0)"))
    assert not check_table(rules, direction="decrease", looks=1)


def test_a_rule_behind_a_wider_one_is_unreachable_but_not_a_narrower_one_before_it() -> None:
    wide, narrow = rule("wide", "est > 0.1"), rule("narrow", "est > 0.2")
    assert kinds(wide, narrow)["unreachable"] == [("narrow",)]
    assert "unreachable" not in kinds(narrow, wide)


def test_rules_that_say_different_things_of_one_case_overlap_and_an_example_shows_it() -> None:
    rules = (rule("wait", "looks_left > 0 and est < 0.1", "continue"), rule("stop", "hi < 0.2"))
    (overlap,) = (d for d in check_table(rules, direction="increase", looks=2) if d.kind == "overlapping")
    assert overlap.example is not None
    assert all(holds(parse(each.when), overlap.example) for each in rules)


def test_rules_that_say_the_same_may_overlap() -> None:
    assert "overlapping" not in kinds(rule("a", "est > 0"), rule("b", "hi > 0"))


def test_a_case_left_to_no_rule_is_named() -> None:
    assert "open" in kinds(rule("a", "est > 0"), rule("b", "est < 0"))
    assert "open" in kinds(rule("a", "est > 0"), rule("b", "est <= 0")), "an invalid verdict may have no estimate"
    rest = rule("c", "verdict == 'invalid'")
    assert "open" not in kinds(rule("a", "est > 0"), rule("b", "est <= 0"), rest)


def test_no_rule_may_gather_seeds_that_do_not_exist_or_are_not_needed() -> None:
    always = rule("more", "verdict == 'inconclusive'", "continue")
    assert kinds(always, OTHERWISE)["after the last look"] == [("more",)]
    eager = rule("more", "looks_left > 0", "continue")
    assert kinds(eager, rule("last", "looks_left == 0"))["after a verdict"] == [("more",)]


def test_replicating_needs_a_replication() -> None:
    rules = (rule("again", "verdict == 'supported'", "replicate"), rule("end", "verdict != 'supported'"))
    assert kinds(*rules) == {"no replication": [("again",)]}
    assert kinds(*rules, replication=True) == {}


def test_a_table_is_short_and_its_names_differ() -> None:
    with pytest.raises(RuleError, match="different names"):
        check_table((OTHERWISE, OTHERWISE), direction="increase", looks=1)
    with pytest.raises(RuleError, match="found none"):
        check_table((), direction="increase", looks=1)


def test_a_kill_condition_that_can_never_hold_is_told() -> None:
    assert check_condition("hi < 0.02", direction="increase", looks=3) is None
    assert check_condition("p > 1", direction="increase", looks=3) is not None


ATOMS = st.sampled_from([
    "lo > 0", "hi < 0.2", "est >= 0.1", "n > 3", "verdict == 'invalid'", "verdict == 'supported'", "looks_left > 0",
    "budget_left < 600", "hi - lo < 0.2", "p < 0.05",
])  # fmt: skip
TEXTS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda t: f"not ({t})"),
    ),
    max_leaves=3,
)


@st.composite
def verdicts(draw: st.DrawFn) -> Fields:
    lo, est, hi = sorted(draw(st.lists(st.sampled_from([-0.4, -0.1, 0.0, 0.1, 0.15, 0.3]), min_size=3, max_size=3)))
    side = "supported" if lo > 0 else "refuted" if hi < 0 else "inconclusive"
    verdict = draw(st.sampled_from([side, "equivalent", "invalid"]))
    known = verdict != "invalid" or draw(st.booleans())
    look, n, p = draw(st.integers(1, 2)), draw(st.integers(0, 8)), draw(st.sampled_from([0.0, 0.04, 0.3, 1.0]))
    numbers = (lo, hi, est, p) if known else (None, None, None, None)
    return Fields(verdict, *numbers, n, draw(st.sampled_from([0.0, 300.0, 900.0])), look, 2 - look)


@settings(max_examples=40)
@given(st.lists(TEXTS, min_size=1, max_size=3), st.lists(verdicts(), min_size=20, max_size=20))
def test_what_is_proven_of_a_table_holds_for_every_verdict(texts: list[str], cases: list[Fields]) -> None:
    acts = ("settle", "continue", "settle")
    rules = [rule(f"r{i}", text, act) for i, (text, act) in enumerate(zip(texts, acts, strict=False))]
    found = check_table(rules, direction="increase", looks=2)
    dead = {name for defect in found if defect.kind in ("dead", "unreachable") for name in defect.rules}
    overlapping = {defect.rules for defect in found if defect.kind == "overlapping"}
    for fields in cases:
        holding = [each for each in rules if holds(parse(each.when), fields)]
        assert holding or any(defect.kind == "open" for defect in found)
        if holding:
            assert decide(rules, fields) is holding[0]
            assert holding[0].name not in dead
        for one in holding:
            for other in holding:
                if rules.index(one) < rules.index(other) and one.then != other.then:
                    assert (one.name, other.name) in overlapping


@settings(max_examples=40)
@given(TEXTS, verdicts())
def test_an_example_of_a_defect_is_a_real_one(text: str, fields: Fields) -> None:
    assume(holds(parse(text), fields))
    only = rule("only", text)
    found = check_table((only,), direction="increase", looks=2)
    assert all(defect.kind != "dead" for defect in found)
    for defect in found:
        if defect.kind == "open" and defect.example is not None:
            assert not holds(parse(text), defect.example)
