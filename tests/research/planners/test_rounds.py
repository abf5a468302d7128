"""An inquiry of several rounds, flown by the shipped loop on simulated training: chained locks, levels, fresh seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simlab.sim_run import Desk, Flight, FlightResult, fly, fly_killed
from simlab.worlds import MainEffect, Planted

from research.controller.closing import Closing
from research.controller.planning import Planning
from research.design.noise_bank import NoiseBank
from research.installation.home import Home
from studies import EventLog, EventType, StudyLog, StudyState, fold
from studies.errors import LogCorrupt
from studies.log.event import Event, compose_event
from studies.records.alpha import weights
from studies.records.design import Design
from swarm.job import Job, tunables
from tests.research.fakes import ANSWERED, PRICING, ScriptedPlanner

pytestmark = pytest.mark.slow

FIELDS = [name for name, mark in tunables().items() if name != "steps" and not isinstance(mark.ladder[0], str)]
TOPIC = "learning rate 3e-3 vs 1e-2 on arith"


def world(effect: float = 0.2) -> Planted:
    base = {name: tunables()[name].usual if (own := getattr(Job(), name)) is None else own for name in FIELDS}
    return Planted(
        seed=5, knobs={name: tunables()[name].ladder for name in FIELDS}, base=base, steps=8,
        effects=(MainEffect("learning_rate", {0.01: effect}),), centre=0.5, seed_sd=0.03,
    )  # fmt: skip


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


def test_each_round_is_locked_on_the_one_before_with_levels_seeds_and_names_of_its_own() -> None:
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
    seeds = [{run.spec.seed for run in entry.runs.values()} for entry in state.rounds]
    assert sum(map(len, seeds)) == len(set().union(*seeds))
    names = [hypothesis.id for entry in state.rounds for hypothesis in entry.hypotheses]
    assert names == ["h1", "r2h1", "r3h1"]
    assert not flown().duplicates
    assert Counter(run.status for run in state.every_run.values()).keys() <= {"collected"}


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


def test_after_a_round_without_a_lock_its_planner_is_asked_for_words_on_the_one_before(tmp_path: Path) -> None:
    planner, home = ScriptedPlanner(), Home.locate({"AJET_HOME": str(tmp_path)}).prepare()
    with closing(EventLog(home.database)) as log:
        for event in events()[: begun_at()]:
            log.append(event)
        record = StudyLog(log, events()[0].study)
        planning = Planning(home, log, record, planner, lambda: PRICING, Job(), noise_bank=lambda log: NoiseBank())
        for _ in range(2):  # as a controller that was killed before its conclusion
            said = Closing(planning).write_final_message(record.state(), 0.0)
            assert said is not None
            assert said.text == ANSWERED
        assert [act.turn for act in record.state().planner_acts][-1] == "2/conclude/1"
        assert len(record.state().planner_acts) == len(fold(events()[: begun_at()]).planner_acts) + 1
    [shown] = planner.shown
    assert [verdict.verdict for verdict in shown.verdicts] == ["supported"]


def cut_short(desk: Desk, left_s: float, made: int) -> bool:
    """Leave so little of the budget once so many runs of the second round's pilot are measured; return whether so."""
    over = sum(run.status == "collected" for run in desk.state.runs.values())
    if desk.state.round == 1 or not desk.state.awaits_sizing or over < made:
        return False
    amendment = {"kind": "budget", "value": desk.state.worked_s + left_s, "reason": "no more time"}
    desk.write(EventType.DESIGN_AMENDED, {"amendment": amendment})
    return True


def test_a_budget_that_ends_in_the_pilot_of_a_later_round_leaves_a_report_and_then_a_conclusion() -> None:
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
    assert (state.status, state.round, state.given_up, state.sizing) == ("concluded", 2, (), None)
    assert [verdict.verdict for verdict in state.rounds_before[0].verdicts] == ["supported"]
    assert [verdict.verdict for verdict in state.verdicts] == ["invalid"]
