"""Decision tables: the six conditions, what is refused, and which rule decides."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from research.proposals.actions import ProposedRule
from research.proposals.decisions import DEFAULT_TABLE, KILL, UNRULED, Condition, decide, rules_for
from research.text import describe
from studies.records.procedure import Rule
from studies.records.verdict import Verdict
from tests.studies.synthetic import hypothesis, judged

ASKED = judged(hypothesis(), {"a": 0.1, "b": 0.2, "c": 0.15}, {"d": 0.5, "e": 0.6}, alpha=0.05)


def verdict(name: str, **numbers: Any) -> Verdict:
    return ASKED.model_copy(update={"verdict": name, "p": 0.2, **numbers})


FUTILE = "verdict == 'inconclusive' and p > 0.5"
AT_A_LOOK = [
    # verdict, looks in all, p, which of the six hold
    ("supported", 2, 0.01, (1, 0, 0, 1, 0, 0)), ("supported", 1, 0.01, (1, 0, 0, 1, 0, 0)),
    ("refuted", 2, 0.01, (1, 0, 0, 0, 1, 0)), ("equivalent", 1, 0.9, (1, 0, 0, 0, 1, 0)),
    ("inconclusive", 2, 0.5, (0, 1, 0, 0, 0, 0)), ("inconclusive", 2, 0.51, (0, 1, 0, 0, 0, 1)),
    ("inconclusive", 1, 0.2, (0, 0, 1, 0, 0, 0)), ("inconclusive", 1, None, (0, 0, 1, 0, 0, 0)),
    ("invalid", 3, None, (0, 1, 0, 0, 0, 0)), ("invalid", 1, 0.9, (0, 0, 1, 0, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "looks", "p", "expected"), AT_A_LOOK)
def test_each_of_six_conditions_holds_of_the_verdicts_that_it_names(
    name: str, looks: int, p: float | None, expected: tuple[int, ...]
) -> None:
    tables = [(Rule(name="only", when=when, then="replicate"),) for when in get_args(Condition)]
    found = [decide(table, verdict(name, p=p), looks) for table in tables]
    assert [rule is not UNRULED for rule in found] == [bool(holds) for holds in expected]


@pytest.mark.parametrize("when", ["", "lo > 0", "verdict == 'inconclusive'", 'verdict == "supported"'])
def test_another_condition_is_refused_in_one_line_with_the_six(when: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ProposedRule.model_validate({"name": "own", "when": when, "then": "settle"})
    line = describe(refused.value)
    assert line.startswith("when: expected ")
    assert line.endswith(f"found {when!r}")
    assert all(repr(condition) in line for condition in get_args(Condition))
    assert "\n" not in line


def test_the_default_goes_on_while_nothing_is_decided_and_looks_are_left() -> None:
    acts = [decide(DEFAULT_TABLE, verdict(name, p=p), looks).then for name, looks, p, _ in AT_A_LOOK]
    assert acts == [("continue" if expected[1] else "settle") for *_, expected in AT_A_LOOK]


def test_a_kill_condition_settles_before_the_table_is_asked() -> None:
    claim = hypothesis().model_copy(update={"kill_if": FUTILE})
    assert decide(rules_for(claim, ()), verdict("inconclusive", p=0.6), 2).name == KILL
    assert decide(rules_for(claim, ()), verdict("inconclusive", p=0.4), 2).name == "look-again"
    assert rules_for(hypothesis(), ()) == DEFAULT_TABLE


def test_what_no_rule_covers_settles_and_is_said() -> None:
    assert decide(DEFAULT_TABLE[:1], verdict("inconclusive"), 2) is UNRULED
    assert UNRULED.then == "settle"


def test_a_rule_that_this_version_does_not_know_does_not_hold_and_ends_nothing() -> None:
    strange = Rule(name="strange", when="lo > 0", then="continue")
    assert decide((strange,), verdict("inconclusive"), 2) is UNRULED
    assert decide((strange, *DEFAULT_TABLE), verdict("inconclusive"), 2).name == "look-again"
