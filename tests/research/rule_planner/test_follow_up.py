"""What the rules ask after a finding about several fields: the same comparison, with all its arms, somewhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from research.design.compiler import accept_hypotheses
from research.planners.context import Digest
from research.planners.history import ClaimFacts, InquiryFacts, RoundFacts
from research.planners.rules import RulesPlanner
from research.proposals.actions import Propose, ProposeDesign
from studies.records.alpha import Ledgers, RoundOutcome
from studies.records.design import Design, Hypothesis
from studies.records.procedure import Knob
from studies.verdicts.forecasts import brier
from tests.studies.verdicts.test_contrasts import MEANS, A, B, crossed, judged, locked, runs


def whole() -> Hypothesis:
    return crossed().model_copy(update={"moderator": ""})


def after(claim: Hypothesis, *played: str) -> Digest:
    """Return what a planner is shown after rounds that found a claim in these environments."""
    verdict = judged(crossed(), runs(MEANS))
    assert brier(0.5, verdict.verdict) is not None  # it is a finding
    design: Design = locked(crossed())
    facts = ClaimFacts(claim, verdict)
    rounds = tuple(
        RoundFacts(number, design.model_copy(update={"environment": name, "hypotheses": (claim,)}), (facts,), "")
        for number, name in enumerate(played, start=1)
    )
    ledgers = Ledgers.begin(4)
    for _ in rounds:
        ledgers = ledgers.after(RoundOutcome(differences=True, equivalences=False))
    digest = Digest(topic="t", seconds_left=7200.0, seconds_per_run=20.0, parallel=2)
    return replace(digest, inquiry=InquiryFacts(rounds, ledgers))


@pytest.mark.parametrize("claim", [crossed(), whole()], ids=["interaction", "together"])
def test_a_finding_about_several_fields_is_tried_elsewhere_as_it_was(claim: Hypothesis) -> None:
    digest = after(claim, "guess")
    turn = RulesPlanner().act(digest, lambda action: None)
    assert isinstance(turn.action, Propose)
    (entry,) = turn.action.hypotheses
    assert (entry.sides, entry.moderator) == (({A: 4, B: 0.001}, {A: 16, B: 0.003}), claim.moderator)
    assert "tried in arith" in turn.note
    designing = replace(digest, hypotheses=accept_hypotheses(turn.action, round=2))
    designed = RulesPlanner().act(designing, lambda action: None).action
    assert isinstance(designed, ProposeDesign)
    assert designed.environment == "arith"


KNOBS = (Knob(field=A, values=(2, 4, 8, 16)), Knob(field=B, values=(3e-4, 1e-3, 3e-3)))


def searched(digest: Digest, *, found: bool = True) -> Digest:
    """Return the digest with its rounds' arms found by a screen; not `found`: and nothing confirmed."""
    rounds = tuple(replace(entry, searched=KNOBS) for entry in digest.inquiry.rounds)
    if not found:
        open_claims = [replace(told, verdict=None) for told in rounds[-1].claims]
        rounds = (*rounds[:-1], replace(rounds[-1], claims=tuple(open_claims)))
    return replace(digest, inquiry=replace(digest.inquiry, rounds=rounds))


def searching(digest: Digest) -> ProposeDesign:
    assert RulesPlanner().act(digest, lambda action: None).action == Propose(search=True)
    design = RulesPlanner().act(replace(digest, search=True), lambda action: None).action
    assert isinstance(design, ProposeDesign)
    return design


def test_a_search_that_confirmed_something_goes_on_around_it_from_there() -> None:
    design = searching(searched(after(whole(), "guess")))
    assert design.environment == "guess"
    assert [(knob.field, knob.values, knob.control) for knob in design.screen.knobs] == [
        (A, (8, 16), 16),
        (B, (1e-3, 3e-3), 3e-3),
    ]


def test_a_search_that_confirmed_nothing_is_made_once_more_and_no_third_time() -> None:
    once = searched(after(whole(), "guess"), found=False)
    design = searching(once)
    assert [(knob.field, knob.values) for knob in design.screen.knobs] == [(knob.field, knob.values) for knob in KNOBS]
    twice = searched(searched(after(whole(), "guess", "guess"), found=False))
    assert RulesPlanner().act(twice, lambda action: None).action != Propose(search=True)


@pytest.mark.parametrize("claim", [crossed(), whole()], ids=["interaction", "together"])
def test_what_was_tried_elsewhere_is_not_tried_again_and_its_fields_are_no_new_ones(claim: Hypothesis) -> None:
    action = RulesPlanner().act(after(claim, "guess", "arith"), lambda action: None).action
    assert isinstance(action, Propose)
    assert not {name for entry in accept_hypotheses(action) for name in entry.varied} & {A, B}
