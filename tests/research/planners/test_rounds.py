"""An inquiry of several rounds, flown by the shipped loop on simulated training: chained locks, levels, fresh seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simlab.sim_run import Desk, Flight, FlightResult, fly, fly_killed
from simlab.worlds import MainEffect, Planted

from research.planners.context import PlannerContext, field_specs
from research.planners.protocol import Check, PlannerTurn
from research.planners.rules import RulesPlanner
from research.proposals.actions import Conclude
from studies import EventType, StudyState, fold
from studies.errors import LogCorrupt, ReportError
from studies.log.event import Event, compose_event
from studies.log.study import ASK_RULE
from studies.records.alpha import weights
from studies.records.design import Design
from studies.report.evidence import Evidence
from swarm.job import Job, tunables

pytestmark = pytest.mark.slow

FIELDS = [name for name, mark in tunables().items() if name != "steps" and not isinstance(mark.ladder[0], str)]
TOPIC = "learning rate 3e-3 vs 1e-2 on arith"


def world(effect: float = 0.2) -> Planted:
    job = Job()
    usual = {name: tunables()[name].usual for name in FIELDS}
    return Planted(
        seed=5,
        knobs={name: tunables()[name].ladder for name in FIELDS},
        base={name: usual[name] if getattr(job, name) is None else getattr(job, name) for name in FIELDS},
        effects=(MainEffect("learning_rate", {0.01: effect}),),
        centre=0.5,
        seed_sd=0.03,
        steps=8,
    )


def flight(rounds: int | None = 2, **changes: Any) -> Flight:
    return Flight("inquiry-1", TOPIC, changes.pop("world", world()), asks={"rounds": rounds}, **changes)


@cache
def flown() -> FlightResult:
    return fly(flight(3))


def claims(state: StudyState) -> list[tuple[int, str, str, str]]:
    return [
        (entry.round, verdict.hypothesis, verdict.verdict, entry.design.environment)
        for entry in state.rounds
        for verdict in entry.verdicts
    ]


def test_each_round_is_locked_on_the_lock_of_the_one_before_and_on_what_the_ledgers_give_it() -> None:
    state = flown().state
    assert (flown().refused, state.status, state.round, state.most_rounds) == (None, "concluded", 3, 3)
    places = [entry.design.inquiry for entry in state.rounds]
    assert [found.number for found in places] == [1, 2, 3]
    assert [found.previous for found in places] == ["", *(entry.design_hash for entry in state.rounds_before)]
    shares = weights(3)
    assert places[0].difference == pytest.approx(0.05 * shares[0])
    assert [entry.verdicts[0].verdict for entry in state.rounds_before] == ["supported", "supported"]
    assert places[1].difference == pytest.approx(0.05 * (shares[0] + shares[1]))  # handed on by a claim
    assert places[1].equivalence == pytest.approx(0.05 * shares[1])  # the other ledger has nothing to hand on


def test_every_round_runs_on_seeds_of_its_own_and_every_name_is_used_once() -> None:
    state = flown().state
    seeds = [{run.spec.seed for run in entry.runs.values()} for entry in state.rounds]
    assert sum(map(len, seeds)) == len(set().union(*seeds))
    names = [hypothesis.id for entry in state.rounds for hypothesis in entry.hypotheses]
    assert names == ["h1", "r2h1", "r3h1"]
    assert not flown().duplicates
    assert Counter(run.status for run in state.every_run.values()).keys() <= {"collected"}


def test_nothing_found_widens_the_ladder_and_then_moves_to_the_next_field() -> None:
    told = flight(3, world=world(0.0))
    _, second, third = (entry.design for entry in fly(told).state.rounds)
    [wider], [other] = second.hypotheses, third.hypotheses
    ladder = next(facts.ladder for facts in field_specs(told.job) if facts.name == "learning_rate")
    assert (wider.variable, wider.control, wider.treatment) == ("learning_rate", ladder[0], ladder[-1])
    assert other.variable != "learning_rate"


@pytest.mark.parametrize(
    ("at", "written"),
    [
        pytest.param(at, done, marks=() if (at, done) in ((-1, True), (0, False), (1, True)) else pytest.mark.full)
        for at in range(-3, 5)
        for done in (False, True)
    ],
)
def test_a_controller_killed_around_the_turn_of_a_round_changes_no_verdict(at: int, written: bool) -> None:
    turn = begun_at() - 2  # the first event is nobody's append
    result = fly_killed(flight(2), turn + at, written=written)
    assert claims(result.state) == claims(fold(events()))
    assert not result.duplicates
    turns = [act.turn for act in result.state.planner_acts]
    assert len(set(turns)) == len(turns)


def test_the_number_of_rounds_follows_from_the_budget_where_nobody_says_it() -> None:
    rich, poor = fly(flight(None, budget_s=40 * 3600.0)), fly(flight(None, budget_s=300.0))
    assert rich.state.most_rounds == 4
    assert poor.refused is None
    assert poor.state.most_rounds == 1
    assert poor.state.design.alpha == 0.05  # one round keeps all of the level


def test_an_inquiry_ends_where_the_budget_carries_no_further_question() -> None:
    result = fly(flight(4, budget_s=600.0))
    state = result.state
    assert (result.refused, state.status) == (None, "concluded")
    assert state.round < 4
    [said] = [decision.reason for decision in state.decisions if decision.rule == ASK_RULE]
    assert said.startswith("no further question")


@cache
def events() -> tuple[Event, ...]:
    seen: list[Event] = []

    def look(desk: Desk) -> None:
        seen[:] = desk.log.read(desk.state.id)

    fly(flight(2, hand=look))
    return tuple(seen)


def begun_at() -> int:
    return next(event.seq for event in events() if event.type is EventType.ROUND_BEGUN)


def followed(before: Sequence[Event], kind: EventType, payload: Mapping[str, Any]) -> StudyState:
    at = datetime.fromisoformat(before[-1].ts)
    return fold([*before, compose_event(before[-1].study, kind, payload, after=before[-1], actor="system", at=at)])


def test_a_log_folds_at_every_event_and_keeps_the_rounds_that_are_over() -> None:
    turn = begun_at()
    before, after = fold(events()[: turn - 1]), fold(events()[:turn])
    assert (before.round, after.round) == (1, 2)
    assert after.rounds_before[0].verdicts == before.verdicts
    assert (after.design, after.runs, after.verdicts, after.hypotheses) == (None, {}, (), ())
    assert after.every_run == before.runs


def relocked(change: Callable[[Design, StudyState], dict[str, Any]]) -> dict[str, Any]:
    state = fold(events())
    design = state.design.model_copy(update=change(state.design, state))
    return {"design": design.model_dump(mode="json"), "hash": design.hash(), "file": "design-2.lock"}


def greedy(design: Design, state: StudyState) -> dict[str, Any]:
    return {"inquiry": state.design.inquiry.model_copy(update={"equivalence": 0.05})}


def on_old_seeds(design: Design, state: StudyState) -> dict[str, Any]:
    return {"seeds": (state.rounds_before[0].design.seeds[0], *design.seeds[1:])}


@pytest.mark.parametrize(
    ("instead_of", "payload", "told"),
    [
        (EventType.ROUND_BEGUN, lambda: {"number": 3}, "round 2 of 2"),
        (EventType.ROUND_BEGUN, lambda: {"previous": "0" * 64}, "after the lock"),
        (EventType.DESIGN_LOCKED, lambda: relocked(greedy), "what the ledgers"),
        (EventType.DESIGN_LOCKED, lambda: relocked(on_old_seeds), "an earlier round"),
    ],
)
def test_what_is_no_link_of_the_chain_of_rounds_is_refused(
    instead_of: EventType, payload: Callable[[], dict[str, Any]], told: str
) -> None:
    event = [event for event in events() if event.type is instead_of][-1]
    with pytest.raises(LogCorrupt, match=told):
        followed(events()[: event.seq - 1], event.type, {**event.payload, **payload()})


def test_a_round_is_not_begun_while_a_claim_is_open() -> None:
    early = next(event.seq for event in events() if event.type is EventType.DESIGN_LOCKED)
    turn = events()[begun_at() - 1]
    with pytest.raises(LogCorrupt, match="h1 open"):
        followed(events()[:early], turn.type, turn.payload)


def test_a_round_that_comes_to_no_lock_is_given_up_and_the_one_before_stands() -> None:
    state = followed(events()[: begun_at()], EventType.STUDY_CONCLUDED, {"reason": "no lock"})
    assert (state.status, state.round, len(state.given_up)) == ("concluded", 1, 1)
    assert [verdict.verdict for verdict in state.verdicts] == ["supported"]


def cut_short(desk: Desk, left_s: float, made: int) -> bool:
    """Leave so little of the budget once so many A/A runs of the second round are measured; return whether it was."""
    over = sum(run.status == "collected" for run in desk.state.runs.values())
    if desk.state.round == 1 or desk.state.design is not None or desk.state.noise_plan is None or over < made:
        return False
    amendment = {"kind": "budget", "value": desk.state.worked_s + left_s, "reason": "no more time"}
    desk.write(EventType.DESIGN_AMENDED, {"amendment": amendment})
    return True


def test_a_budget_that_ends_in_the_aa_runs_of_a_later_round_leaves_a_report_and_then_a_conclusion() -> None:
    done: list[str] = []

    def hand(desk: Desk) -> None:
        if not done and cut_short(desk, 1.0, 1):
            done.append("cut")
        elif done == ["cut"] and desk.state.stopped_reason is not None:
            assert desk.state.report is not None
            done.append("resumed")
            desk.write(EventType.STUDY_RESUMED, {})

    state = fly(flight(2, hand=hand, look_s=5.0, report=True)).state
    assert done == ["cut", "resumed"]
    assert (state.status, state.round, len(state.given_up)) == ("concluded", 1, 1)
    assert str(state.concluded_reason).startswith("round 2 came to no")
    assert [verdict.verdict for verdict in state.verdicts] == ["supported"]


class _GivesUp(RulesPlanner):
    name = "llm"
    model = "silent"

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        if digest.rejected is not None:
            return PlannerTurn(Conclude(reason="Nothing more."))
        return RulesPlanner.act(self, digest, check)


def test_a_planner_that_ends_a_later_round_after_its_aa_runs_has_not_declined_the_topic() -> None:
    done: list[bool] = []

    def hand(desk: Desk) -> None:
        if not done and cut_short(desk, 30.0, 5):
            done.append(True)

    state = fly(flight(2, hand=hand, look_s=5.0, planner=lambda clock: _GivesUp())).state
    assert done
    assert (state.status, state.declined, len(state.given_up)) == ("concluded", False, 1)
    assert str(state.concluded_reason).startswith("round 2 came to no")
    assert state.said.text == "Nothing more."


def test_a_late_copy_of_an_earlier_round_s_run_is_kept_with_it() -> None:
    begun = events()[: begun_at()]
    name, run = next(iter(fold(begun).every_run.items()))
    payload = {"run_id": name, "attempt": run.attempts[-1].number, "url": "http://here/1", "standing": "sent"}
    state = followed(begun, EventType.ATTEMPT_COPIED, payload)
    assert state.every_run[name].attempts[-1].standing == "sent"
    assert state.rounds_before[0].runs[name].attempts[-1].url == "http://here/1"


def test_a_budget_that_is_raised_in_a_later_round_holds_for_the_study() -> None:
    raised: list[bool] = []

    def raise_it(desk: Desk) -> None:
        if desk.state.round == 2 and not raised:
            raised.append(True)
            amendment = {"kind": "budget", "value": 80 * 3600.0, "reason": "there is time"}
            desk.write(EventType.DESIGN_AMENDED, {"amendment": amendment})

    state = fly(flight(2, hand=raise_it, look_s=30.0)).state
    assert raised
    assert (state.status, state.budget_s) == ("concluded", 80 * 3600.0)


class _Watched(RulesPlanner):
    def __init__(self) -> None:
        self.shown: list[PlannerContext] = []

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        self.shown.append(digest)
        return super().act(digest, check)


def test_a_round_of_unreadable_files_is_asked_on_about_and_the_planner_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(state: StudyState, folder: Path) -> Evidence:
        raise ReportError("expected the evaluation of run r1; found none")

    monkeypatch.setattr("research.controller.planning.gather", gone)
    planner = _Watched()
    landed = fly(flight(2, planner=lambda clock: planner))
    assert (landed.refused, landed.state.round) == (None, 2)
    told = [
        entry for digest in planner.shown if digest.campaign for entry in digest.campaign.rounds[0].secondary_metrics
    ]
    assert "of run r1; found none" in " ".join(told)
