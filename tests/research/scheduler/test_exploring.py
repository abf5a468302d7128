"""An exploration between rounds: single runs on search tasks that feed no claim and draw on no ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simlab.sim_run import Desk, Flight, FlightResult, fly, fly_killed
from simlab.worlds import MainEffect, Planted

from research.planners.context import Check, PlannerContext, PlannerTurn
from research.planners.rules import RulesPlanner
from research.proposals.actions import Constant, Explore, Tried
from studies import EventType, RunState, StudyState
from studies.errors import StudiesError
from studies.log.event import Event
from studies.records.alpha import Exploration
from studies.records.design import Arm
from studies.records.runs import screen_metric
from swarm.job import Job, tunables

pytestmark = pytest.mark.slow

FIELDS = [name for name, mark in tunables().items() if name != "steps" and not isinstance(mark.ladder[0], str)]


def explorations(state: StudyState) -> list[RunState]:
    return [run for run in state.every_run.values() if run.spec.phase == "explore"]


def flight(**changes: Any) -> Flight:
    job = Job()
    usual = {name: tunables()[name].usual for name in FIELDS}
    world = Planted(
        seed=5, knobs={name: tunables()[name].ladder for name in FIELDS},
        base={name: usual[name] if getattr(job, name) is None else getattr(job, name) for name in FIELDS},
        effects=(MainEffect("learning_rate", {0.01: 0.2}),), centre=0.5, seed_sd=0.03, steps=8,
    )  # fmt: skip
    return Flight("explored-1", "learning rate 3e-3 vs 1e-2 on arith", world, asks={"rounds": 2}, **changes)


def plan_of(state: StudyState) -> Exploration:
    arms = (Arm(name="group_size=2", overrides={"group_size": 2}), Arm(name="as-it-is", overrides={}))
    return Exploration(
        why="to see", environment=state.design.environment, base_job={**state.design.base_job, "steps": 3},
        arms=arms, seed=77, metric=screen_metric(state.design.metric),
    )  # fmt: skip


def payload(plan: Exploration) -> dict[str, Any]:
    return {"plan": plan.model_dump(mode="json"), "hash": plan.hash(), "seconds_per_run": 20.0, "turn": "2/propose/1"}


WISH = Explore(
    environment="arith", steps=3, why="to see",
    tried=(Tried(settings=(Constant(field="group_size", value=2),)), Tried()),
)  # fmt: skip


class Explorer(RulesPlanner):
    def __init__(self, *wishes: Explore, times: int = 1) -> None:
        self.wishes = wishes or (WISH,)
        self.times = times
        self.refused: list[str] = []
        self.told: list[Any] = []

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        if digest.campaign is None or digest.stage != "propose":
            return super().act(digest, check)
        self.told.append(digest.campaign.facts().get("explorations", []))
        if digest.campaign.explored >= self.times:
            return super().act(digest, check)
        for wish in self.wishes:
            if (wrong := check(wish)) is None:
                return PlannerTurn(wish)
            self.refused.append(wrong.message)
        return super().act(digest, check)


def explored(planner: Explorer) -> FlightResult:
    return fly(flight(planner=lambda clock: planner))


@pytest.fixture(scope="module")
def whole() -> tuple[FlightResult, Explorer, list[Event]]:
    planner, events = Explorer(), list[Event]()

    def look(desk: Desk) -> None:
        events[:] = desk.log.read(desk.state.id)

    return fly(flight(planner=lambda clock: planner, hand=look)), planner, events


def test_an_exploration_is_run_once_and_no_verdict_follows(whole: tuple[FlightResult, Explorer, list[Event]]) -> None:
    result, planner, _ = whole
    state = result.state
    assert (state.status, result.refused) == ("concluded", None)
    runs = explorations(state)
    assert sorted(run.spec.arm for run in runs) == ["as-it-is", "group_size=2"]
    assert {run.status for run in runs} == {"collected"}
    assert {run.spec.metric.split for run in runs} == {"search"}
    plain = fly(flight()).state
    for mine, other in zip(state.rounds, plain.rounds, strict=False):
        assert mine.ledgers == other.ledgers
    first = [verdict.inputs_sha256 for verdict in state.rounds[0].verdicts]
    assert first == [verdict.inputs_sha256 for verdict in plain.rounds[0].verdicts]

    [shown] = planner.told[-1]
    scores = shown["single_runs_on_search_tasks_which_claim_nothing"]
    assert [entry["tried"] for entry in scores] == ["group_size=2", "as-it-is"]
    assert all(0 < entry["success"] < 1 for entry in scores)


def test_three_explorations_come_before_a_question_at_most() -> None:
    planner = Explorer(times=9)
    result = explored(planner)
    assert len({run.spec.seed for run in explorations(result.state)}) == 3
    assert "at most 3 explorations" in planner.refused[0]
    assert (result.state.status, result.state.round) == ("concluded", 2)


def test_a_wish_that_cannot_be_had_is_refused_with_the_reason() -> None:
    wrong = [
        (Tried(settings=(Constant(field=name, value=value),)),) for name, value in (("group_size", 0), ("seed", 1))
    ]
    planner = Explorer(
        WISH.model_copy(update={"environment": "chess"}), *(WISH.model_copy(update={"tried": one}) for one in wrong)
    )
    result = explored(planner)
    words = ("expected an environment", "group_size", "seeds are drawn")
    assert [word in why for word, why in zip(words, planner.refused, strict=True)] == [True] * 3
    assert explorations(result.state) == []


@pytest.mark.parametrize(
    ("after", "written"), [(0, True), *(pytest.param(n, bool(n), marks=pytest.mark.full) for n in (0, 1))]
)
def test_a_controller_killed_around_an_exploration_makes_it_once(
    whole: tuple[FlightResult, Explorer, list[Event]], after: int, written: bool
) -> None:
    undisturbed, _, events = whole
    planned = next(event.seq for event in events if event.type is EventType.EXPLORATION_PLANNED)
    assert events[planned].type is EventType.RUN_PLANNED
    result = fly_killed(flight(planner=lambda clock: Explorer()), planned - 2 + after, written=written)
    assert not result.duplicates
    assert [v.verdict for v in result.state.verdicts] == [v.verdict for v in undisturbed.state.verdicts]
    assert len(explorations(result.state)) == 2


def test_an_exploration_that_could_pass_for_evidence_or_comes_while_a_claim_is_open_is_refused() -> None:
    refused: list[str] = []

    def hand(desk: Desk) -> None:
        if desk.state.design is None or desk.state.verdicts or refused:
            return
        plan = plan_of(desk.state)
        hidden = plan.model_copy(update={"metric": desk.state.design.metric})
        for said in (payload(plan) | {"hash": "0" * 64}, payload(hidden), payload(plan)):
            with pytest.raises(StudiesError) as error:
                desk.write(EventType.EXPLORATION_PLANNED, said)
            refused.append(str(error.value))

    fly(replace(flight(hand=hand, look_s=5.0), asks={"rounds": 1}))
    words = ("the exploration's hash", "scored on search", "claims are open")
    assert [word in why for word, why in zip(words, refused, strict=True)] == [True] * 3
