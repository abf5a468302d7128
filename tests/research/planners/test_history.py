"""What a planner is shown of an inquiry: every effect with its interval, ledgers, surprises, within bounds."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.controller.built_designs import build_replication
from research.planners.history import (
    LONGEST,
    MOST_CHARACTERS,
    CampaignFacts,
    ClaimFacts,
    Notebook,
    RoundFacts,
    redact_secrets,
    sanitize_line,
)
from research.proposals.actions import AskUser, Note, Plan, Replicate, Revise
from studies.log.entries import PlannerNote
from studies.records.alpha import AlphaLedgers, RoundOutcome
from studies.records.procedure import PlanNode
from studies.report.answer import NodeOutcome
from tests.golden import assert_golden
from tests.research.designs import claim, design
from tests.research.factories import make_verdict
from tests.studies.synthetic import hypothesis

MISSED = {"within_prediction": False, "estimate": -0.2, "verdict": "refuted"}


def facts(rounds: int, **changes: Any) -> CampaignFacts:
    ledgers = AlphaLedgers.begin(12)
    for _ in range(rounds):
        ledgers = ledgers.after(RoundOutcome(differences=True, equivalences=False))
    entry = ClaimFacts(claim(), make_verdict(**changes))
    told = tuple(RoundFacts(number, design(16), (entry,) * 3, f"Why {number}.") for number in range(1, rounds + 1))
    return CampaignFacts(told, ledgers)


def test_every_claim_has_its_effect_and_interval_and_the_newest_rounds_their_reasons() -> None:
    told = facts(6).facts()
    claims = [entry["claims"][0] for entry in told["rounds_so_far"]]
    assert all((entry["estimate"], entry["low"], entry["high"]) == (0.01, -0.1, 0.12) for entry in claims)
    assert ["reason" in entry for entry in claims] == [False, False, True, True, True, True]
    assert ["asked_because" in entry for entry in told["rounds_so_far"]] == [False, False, True, True, True, True]
    assert_golden(told["left_out"])


def test_a_claim_about_a_trend_is_put_to_the_test_again_over_its_whole_ladder() -> None:
    told = facts(1)
    trend = replace(told.rounds[0].claims[0], claim=hypothesis("h1", 16, variable="group_size", ladder=(4, 8, 16)))
    compiler: Any = SimpleNamespace(requirements=SimpleNamespace(metric=None), base=None)
    asked = replace(told, rounds=(replace(told.rounds[0], claims=(trend,)),))
    (again,) = build_replication(Replicate(claim="h1"), asked, compiler)[0].hypotheses
    assert (again.control, again.treatment, again.ladder) == (4, 16, (4, 8, 16))


def test_a_claim_of_several_fields_is_asked_again_with_a_prediction_of_its_own_or_that_of_then() -> None:
    told = facts(1)
    sides = {"control": {"group_size": 4, "epochs": 1}, "treatment": {"group_size": 16, "epochs": 2}}
    both = hypothesis("h1", sides["treatment"], variable="configuration", moderator="epochs", control=sides["control"])
    asked = replace(told, rounds=(replace(told.rounds[0], claims=(replace(told.rounds[0].claims[0], claim=both),)),))
    compiler: Any = SimpleNamespace(requirements=SimpleNamespace(metric=None), base=None)
    for own in ({}, {"predicted_low": 0.01, "predicted_high": 0.03, "probability": 0.4}):
        (again,) = build_replication(Replicate(claim="h1", **own), asked, compiler)[0].hypotheses
        assert (again.sides, again.moderator) == ((sides["control"], sides["treatment"]), "epochs")
        then = both.prediction
        expected = tuple(own.values()) or (then.low, then.high, then.probability)
        assert (again.predicted_low, again.predicted_high, again.probability) == expected


def test_what_was_evaluated_apart_is_asked_again_so_and_confirms_no_value_as_a_straw_man_does_not() -> None:
    told, compiler = facts(1, verdict="supported", estimate=0.2), SimpleNamespace(base=None)
    compiler.requirements = SimpleNamespace(metric=None)
    turns, held = "environment.max_turns", {"environment.max_turns": 3}
    for changes, knobs, apart, confirmed in (
        ({"variable": turns, "control": 3}, None, True, []), ({"variable": turns, "control": 3}, held, False, [16]),
        ({"unused_control": True}, None, False, []), ({}, None, False, [16]),
    ):  # fmt: skip
        one, own = told.rounds[0], hypothesis("h1", 16, **changes)
        plan = one.design.model_copy(update={"metric": one.design.metric.model_copy(update={"knobs": knobs})})
        known = replace(told, rounds=(replace(one, design=plan, claims=(replace(one.claims[0], claim=own),)),))
        assert build_replication(Replicate(claim="h1"), known, compiler)[1].evaluate_apart == apart
        assert known.list_confirmed(own.variable) == confirmed
    plan = plan.model_copy(update={"metric": plan.metric.model_copy(update={"knobs": held, "also_own": True})})
    known = replace(told, rounds=(replace(one, design=plan),))
    assert build_replication(Replicate(claim="h1"), known, compiler)[1].evaluate_apart == "both"


def test_the_facts_are_bounded_whatever_was_said() -> None:
    long = facts(12 - 1, **MISSED, reason="x" * 400, violations=("y" * 400,))
    rounds = tuple(replace(entry, why="z" * 900) for entry in long.rounds)
    told = replace(long, rounds=rounds).facts()
    assert len(json.dumps(told)) <= MOST_CHARACTERS * 1.2
    assert len([c for entry in told["rounds_so_far"] for c in entry["claims"]]) == 33
    assert "left_out" in told


ODD = st.sampled_from(
    ["\x1b[31m", "\x1b]0;title\x07", "\x1bP1;2q\x1b\\\\", "\x9b2J", "\u202e", "\x00", "\r\n", "\t", "a", "é"]
)


@pytest.mark.parametrize(("text", "expected"), [
    ("look at \x1b[31mseeds\x1b[0m", "look at seeds"), ("\x1b]0;owned\x07stop", "stop"),
    ("a\r\nb\tc", "a b c"), ("\u202egnp.exe", "gnp.exe"), ("a\x00b\x7f", "ab"), ("plain é 群れ", "plain é 群れ"),
])  # fmt: skip
def test_terminal_sequences_and_controls_are_left_out(text: str, expected: str) -> None:
    assert sanitize_line(text) == expected


@given(st.text(max_size=900) | st.lists(ODD, max_size=60).map("".join))
def test_any_text_becomes_one_short_line_that_can_be_stored(text: str) -> None:
    shown = sanitize_line(text)
    assert len(shown) <= LONGEST
    assert not [char for char in shown if unicodedata.category(char).startswith("C")]
    assert sanitize_line(shown) == shown
    json.dumps(shown).encode()


def note(seq: int, **changes: Any) -> PlannerNote:
    parts = {"kind": "note", "text": f"Idea {seq}.", "round": 1, "seq": seq, "ts": "", "turn": "1/propose/1"}
    return PlannerNote(**{**parts, "index": seq, **changes})


BOOK = Notebook((
    note(3), note(4, kind="ask", text="Which?"), note(5),
    note(6, kind="revise", text="Narrower.", about="idea-3", reason="Seen once."),
    note(7, kind="revise", text="", about="idea-5", reason="It was wrong."),
))  # fmt: skip


@pytest.mark.parametrize(("aside", "told"), [
    (Revise(about="idea-9", reason="x"), r"expected an idea of your notebook \(idea-3, idea-5\); found 'idea-9'"),
    (Revise(about="question-4", reason="x"), "expected an idea of your notebook"),
    (Revise(about="idea-5", text="y", reason="x"), "idea-5 was withdrawn before; note a new idea instead"),
    (Revise(about="idea-3", text="Narrower.", reason="x"), "found the same words"),
    (Note(text="Idea 3."), "what your notebook holds already"), (AskUser(text="Which?"), "what was asked already"),
])  # fmt: skip
def test_what_cannot_be_written_down_is_refused_with_a_reason(aside: Note | Revise | AskUser, told: str) -> None:
    assert re.search(told, str(BOOK.find_conflict(aside)))
    for new in (Revise(about="idea-3", text="Narrower still.", reason="x"), Note(text="New."), AskUser(text="Idea 3.")):
        assert BOOK.find_conflict(new) is None


def test_a_branch_leads_to_a_question_of_the_plan_or_of_the_one_before_it() -> None:
    old = Notebook(plan=(NodeOutcome(PlanNode(id="old", question="Asked?"), 1),))
    for book, branch, told in ((old, "old", None), (old, "new", None), (BOOK, "old", "to new or none; found 'old'")):
        node = PlanNode(id="new", question="What now?", if_supported=branch)
        assert str(told) in str(book.find_conflict(Plan(nodes=(node,), text="Why.")))


def test_ideas_are_shown_as_they_stand_now() -> None:
    assert BOOK.facts() == {
        "your_notebook": [
            {"id": "idea-3", "round": 1, "text": "Idea 3.", "now": "Narrower.", "because": "Seen once."},
            {"id": "idea-5", "round": 1, "text": "Idea 5.", "withdrawn_because": "It was wrong."},
        ],
        "you_asked_the_user": [{"id": "question-4", "text": "Which?"}],
    }
    assert Notebook().facts() == {}


def test_values_of_variables_that_are_secrets_by_name_are_struck_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_AUTH_STRING", "HTTP_AUTHORIZATION", "GIT_AUTHOR_NAME"):
        monkeypatch.setenv(name, f"value of {name}")
    told = redact_secrets("value of PREFECT_API_AUTH_STRING, value of HTTP_AUTHORIZATION, value of GIT_AUTHOR_NAME")
    assert told == "***, ***, value of GIT_AUTHOR_NAME"
