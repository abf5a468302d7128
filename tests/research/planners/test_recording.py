from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from research.design.compiler import accept_hypotheses
from research.errors import NotReady, PlannerFailed
from research.planners.context import PlannerContext, PlannerTurn
from research.planners.endpoint import OpenAiEndpoint, Recorder, Replay
from research.planners.factory import make_planner
from research.planners.history import CampaignFacts, ClaimFacts, RoundFacts
from research.planners.llm import LlmPlanner
from research.planners.rules import RulesPlanner
from research.proposals.actions import Propose, ProposeDesign
from studies.records.alpha import AlphaLedgers, RoundOutcome
from studies.records.design import Design, Hypothesis
from studies.records.procedure import ScreenField
from studies.records.verdict import CollapseRate
from studies.verdicts.rules import brier
from tests.research.planners.scripted_endpoint import Reply, fails, says, scripted_endpoint
from tests.research.planners.test_llm import DESIGN, KEY, PROPOSAL, RECORDS, TOPIC, compiled
from tests.studies.verdicts.test_estimands import MEANS, A, B, contrast_lock, contrasted, crossed, runs

MakeDigest = Callable[..., PlannerContext]


def recorded(replies: list[Reply], file: Path, *digests: PlannerContext) -> list[PlannerTurn]:
    with scripted_endpoint(replies) as endpoint:
        planner = LlmPlanner("scripted", Recorder(OpenAiEndpoint(KEY, endpoint.url), file), patience_s=0.0)
        return [planner.act(digest, compiled()) for digest in digests]


def replayed(file: Path, *digests: PlannerContext) -> list[PlannerTurn]:
    planner = make_planner("llm", None, {"AJET_PLANNER_REPLAY": str(file)})
    assert planner.model == "scripted"
    return [planner.act(digest, compiled()) for digest in digests]


def test_a_conversation_is_replayed_turn_by_turn(digest: MakeDigest, tmp_path: Path) -> None:
    file, due = tmp_path / "said.jsonl", (digest(TOPIC), digest(TOPIC, hypotheses=RECORDS))
    raw = json.dumps(says("non\u2028sense").body, ensure_ascii=False).encode()  # as many servers send it
    replies = [Reply(body=raw), says(PROPOSAL), says(DESIGN)]
    first = recorded(replies, file, *due)
    assert [turn.tries for turn in first] == [2, 1]
    assert replayed(file, *due) == first
    assert replayed(file, *due) == first  # a replay uses nothing up
    later = digest(TOPIC, seconds_left=412.3, seconds_per_run=7.0)
    assert replayed(file, later, due[1]) == first  # time that passes makes no other request


def test_failures_are_replayed_as_such_and_no_key_is_in_a_recording(digest: MakeDigest, tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    with pytest.raises(PlannerFailed, match="429"):
        recorded([fails(429, f"later: {KEY}")], file, digest(TOPIC))
    with pytest.raises(PlannerFailed, match="429"):
        LlmPlanner("scripted", Replay(file), patience_s=0.0).act(digest(TOPIC), compiled())
    recorded([says(f"Your key is {KEY}"), says(PROPOSAL)], file, digest(TOPIC))
    text = file.read_text()
    assert text.count("\n") == 3
    assert [word for word in (KEY, "127.0.0.1") if word in text] == []


def test_a_request_that_was_not_recorded_is_one_clear_line(digest: MakeDigest, tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    recorded([says(PROPOSAL)], file, digest(TOPIC))
    with pytest.raises(PlannerFailed) as caught:
        replayed(file, digest("Does another question help?"))
    message = caught.value.message
    assert "\n" not in message
    assert "the recording said.jsonl; found 1 other exchanges" in message
    with pytest.raises(PlannerFailed, match="replies given before"):
        replayed(file, digest(TOPIC), digest(TOPIC))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"[1, 2]\n", b'{"request": "x"}\n', b"\xff\xfe", b"not json"])
def test_a_file_that_is_no_recording_is_one_clear_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    file.write_bytes(content)
    with pytest.raises(NotReady, match="expected a recording") as caught:
        Replay(file)
    assert "\n" not in caught.value.message


def whole() -> Hypothesis:
    return crossed().model_copy(update={"moderator": ""})


def after(claim: Hypothesis, *played: str) -> PlannerContext:
    """Return what a planner is shown after rounds that found a claim in these environments."""
    verdict = contrasted(crossed(), runs(MEANS))
    assert brier(0.5, verdict.verdict) is not None  # it is a finding
    design: Design = contrast_lock(crossed())
    facts = ClaimFacts(claim, verdict)
    rounds = tuple(
        RoundFacts(number, design.model_copy(update={"environment": name, "hypotheses": (claim,)}), (facts,), "")
        for number, name in enumerate(played, start=1)
    )
    ledgers = AlphaLedgers.begin(4)
    for _ in rounds:
        ledgers = ledgers.after(RoundOutcome(differences=True, equivalences=False))
    digest = PlannerContext(topic="t", seconds_left=7200.0, seconds_per_run=20.0, parallel=2)
    return replace(digest, campaign=CampaignFacts(rounds, ledgers))


@pytest.mark.parametrize("claim", [crossed(), whole()], ids=["interaction", "together"])
def test_a_finding_about_several_fields_is_tried_elsewhere_as_it_was(claim: Hypothesis) -> None:
    digest = after(claim, "guess")
    turn = RulesPlanner().act(digest, lambda action: None)
    (entry,) = turn.action.hypotheses
    assert (entry.sides, entry.moderator) == (({A: 4, B: 0.001}, {A: 16, B: 0.003}), claim.moderator)
    assert "tried in arith" in turn.note
    designing = replace(digest, hypotheses=accept_hypotheses(turn.action, round=2))
    designed = RulesPlanner().act(designing, lambda action: None).action
    assert designed.environment == "arith"


KNOBS = (ScreenField(field=A, values=(2, 4, 8, 16)), ScreenField(field=B, values=(3e-4, 1e-3, 3e-3)))


def searched(digest: PlannerContext, *, found: bool = True) -> PlannerContext:
    """Return the digest with its rounds' arms found by a screen; not `found`: and nothing confirmed."""
    rounds = tuple(replace(entry, searched=KNOBS) for entry in digest.campaign.rounds)
    if not found:
        open_claims = [replace(told, verdict=None) for told in rounds[-1].claims]
        rounds = (*rounds[:-1], replace(rounds[-1], claims=tuple(open_claims)))
    return replace(digest, campaign=replace(digest.campaign, rounds=rounds))


def searching(digest: PlannerContext) -> ProposeDesign:
    assert RulesPlanner().act(digest, lambda action: None).action == Propose(search=True)
    return RulesPlanner().act(replace(digest, search=True), lambda action: None).action


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


def test_the_better_value_of_a_field_is_compared_with_its_untried_neighbours() -> None:
    single = whole().model_copy(update={"variable": A, "control": 4, "treatment": 16})
    turn = RulesPlanner().act(after(single, "guess", "arith"), lambda action: None)
    assert [(entry.variable, entry.control, entry.treatment) for entry in turn.action.hypotheses] == [(A, 16, 8)]
    assert "was the better value" in turn.note


@pytest.mark.parametrize(
    ("fell", "sign", "asked"), [((0, 0), 1, [16]), ((1, 2), 1, []), ((0, 0), -1, [2]), ((2, 1), 1, [16])]
)
def test_no_value_is_asked_for_at_or_beyond_one_that_collapsed_more_often_or_lost(
    fell: tuple[int, int], sign: int, asked: list[int]
) -> None:
    digest = after(whole().model_copy(update={"variable": A, "control": 4, "treatment": 8}), "guess", "arith")
    rates = tuple(CollapseRate(arm="x", count=count, of=5, low=0, high=1, upper=1) for count in fell)
    rounds = []
    for entry in digest.campaign.rounds:
        (told,) = entry.claims
        estimate = sign * abs(told.verdict.estimate)
        verdict = told.verdict.model_copy(update={"collapses": rates, "estimate": estimate})
        rounds.append(replace(entry, claims=(replace(told, verdict=verdict),)))
    turn = RulesPlanner().act(replace(digest, campaign=replace(digest.campaign, rounds=tuple(rounds))), lambda _: None)
    assert [entry.treatment for entry in turn.action.hypotheses if entry.variable == A] == asked


def test_an_unset_value_is_compared_as_what_it_amounts_to() -> None:
    claim = whole().model_copy(update={"variable": "clip_ratio_high", "control": None, "treatment": 0.28})
    turn = RulesPlanner().act(after(claim, "guess", "arith"), lambda action: None)
    assert [entry.treatment for entry in turn.action.hypotheses if entry.variable == claim.variable] == [0.4]
