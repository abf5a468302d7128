"""What a planner is shown of an inquiry: every effect with its interval, ledgers, surprises, within bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from research.planner.inquiry import MOST_CHARACTERS, ClaimFacts, InquiryFacts, RoundFacts
from research.planner.surprises import MOST_SHOWN, surprises
from studies.inquiry.ledger import Ledgers, RoundOutcome
from studies.records.verdict import CollapseRate, Verdict
from tests.research.designs import claim, design
from tests.research.factories import make_verdict

MISSED = {"within_prediction": False, "estimate": -0.2, "verdict": "refuted"}


def judged(**changes: Any) -> Verdict:
    return make_verdict(**changes)


def facts(rounds: int, **changes: Any) -> InquiryFacts:
    ledgers = Ledgers.begin(12)
    for _ in range(rounds):
        ledgers = ledgers.after(RoundOutcome(differences=True, equivalences=False))
    entry = ClaimFacts(claim(), judged(**changes))
    told = tuple(RoundFacts(number, design(16), (entry,) * 3, f"Why {number}.") for number in range(1, rounds + 1))
    return InquiryFacts(told, ledgers)


def test_every_claim_has_its_effect_and_interval_and_the_newest_rounds_their_reasons() -> None:
    told = facts(6).facts()
    claims = [entry["claims"][0] for entry in told["rounds_so_far"]]
    assert all((entry["estimate"], entry["low"], entry["high"]) == (0.01, -0.1, 0.12) for entry in claims)
    assert ["reason" in entry for entry in claims] == [False, False, True, True, True, True]
    assert ["asked_because" in entry for entry in told["rounds_so_far"]] == [False, False, True, True, True, True]
    assert told["left_out"] == "reasons and settings of the first 2 rounds"


def test_both_ledgers_say_what_was_handed_on() -> None:
    told = facts(2).facts()
    assert [entry.get("handed_on") for entry in told["ledger_of_differences"]] == [True, True, None]
    assert [entry.get("handed_on") for entry in told["ledger_of_equivalences"]] == [False, False, None]
    assert told["ledger_of_differences"][1]["of_it_received"] == told["ledger_of_differences"][0]["level"]
    assert told["level_of_differences"] > told["level_of_equivalences"]


def test_what_surprised_is_said_of_claims_and_runs() -> None:
    found = judged(
        **MISSED, violations=("co_tenancy: a backup ran",), counted_as_worst={"group_size=16: training_nan": 2},
        collapses=(CollapseRate(arm="group_size=16", count=1, of=4, low=0.0, high=0.8, upper=0.7),),
    )  # fmt: skip
    assert [entry.what for entry in surprises(3, claim(), found)] == [
        "increase was claimed, and the opposite was found (-0.2)", "predicted +0 to +0.6, found -0.2",
        "1 of 4 trainings of group_size=16 collapsed", "group_size=16: training_nan: 2 counted with the worst value",
        "the linter says: co_tenancy: a backup ran",
    ]  # fmt: skip
    assert list(surprises(3, claim(), judged())) == []
    assert "surprises" not in facts(3).facts()


def test_what_other_measures_say_is_among_the_surprises_in_plain_words() -> None:
    inquiry = facts(2)
    moved = replace(inquiry.rounds[1], beside=("h1: other measures\nof the same runs tell the arms apart",))
    told = replace(inquiry, rounds=(inquiry.rounds[0], moved)).facts()
    assert told["surprises"] == [
        {"round": 2, "claim": "", "what": "h1: other measures of the same runs tell the arms apart"}
    ]


def test_surprises_are_the_latest_and_those_left_out_are_counted() -> None:
    told = facts(6, **MISSED).facts()
    assert len(told["surprises"]) == MOST_SHOWN
    assert {entry["round"] for entry in told["surprises"]} == {4, 5, 6}
    assert told["left_out"].endswith("the first 20 surprises")


def test_the_facts_are_bounded_whatever_was_said() -> None:
    long = facts(12 - 1, **MISSED, reason="x" * 400, violations=("y" * 400,))
    rounds = tuple(replace(entry, why="z" * 900) for entry in long.rounds)
    told = replace(long, rounds=rounds).facts()
    assert len(json.dumps(told)) <= MOST_CHARACTERS * 1.2
    assert len([c for entry in told["rounds_so_far"] for c in entry["claims"]]) == 33
    assert "left_out" in told


def test_the_verdicts_of_all_rounds_bear_out_closing_words() -> None:
    assert len(facts(2).verdicts) == 6
