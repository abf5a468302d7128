"""Explorations, between rounds and as studies: single runs on search tasks that feed no claim and draw on no ledger."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from simlab.sim_run import Desk, Flight, FlightResult, fly, fly_killed
from simlab.sim_sandbox import SimulatedFiles
from simlab.worlds import Played

from research.cli.studies import render_ending
from research.controller.interventions import answer_question
from research.controller.progress import progress_lines
from research.planners.analysis import collect_inputs
from research.planners.context import Check, PlannerContext, PlannerTurn
from research.planners.rules import RulesPlanner
from research.proposals.actions import Constant, Decline, Explore, Propose, ProposeDesign, Tried
from research.runs.files import AttemptSpec
from research.runs.workers import SEARCH_TRANSCRIPTS
from research.scheduler.steps import EXPLORED
from research.shown.study import list_row, summary
from studies import EventType, RunState, StudyLog, StudyState, fold
from studies.errors import LogCorrupt, StudiesError
from studies.log.entries import Decision
from studies.log.event import Event, compose_event
from studies.log.event_log import lock_name
from studies.log.study import BUDGET_RULE
from studies.proof import Proof, verify
from studies.records.alpha import Exploration
from studies.records.design import Arm
from studies.records.procedure import Amendment
from studies.records.runs import screen_metric
from swarm.client.episode import EpisodeResult
from swarm.environments.play import choose_plays
from swarm.job import Job
from tests.research.factories import make_claim
from tests.research.planners.test_rounds import flight as in_rounds
from tests.studies.synthetic import design as synthetic_design

pytestmark = pytest.mark.slow

Alone = tuple[FlightResult, list[Event], Proof, dict[str, Any]]


def explorations(state: StudyState) -> list[RunState]:
    return [run for run in state.every_run.values() if run.spec.phase == "explore"]


def flight(**changes: Any) -> Flight:
    return replace(in_rounds(**changes), name="explored-1")


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
    def __init__(self, *wishes: Explore, times: int = 1, round: int = 2) -> None:
        self.wishes = wishes or (WISH,)
        self.times, self.round = times, round
        self.refused: list[str] = []
        self.told: list[Any] = []
        self.looked: list[Any] = []

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        number = 1 if digest.campaign is None else digest.campaign.round
        if number != self.round or digest.stage != "propose":
            return super().act(digest, check)
        self.told.append(digest.facts().get("explorations", []))
        if digest.tools is not None and len(self.told) > 1:
            rows = digest.tools.answer("runs", {})["rows"]
            self.looked = [
                digest.tools.answer("episodes", {"run": rows[-1][0], "when": when, "which": which, "count": 3})
                for when in ("begin", "middle", "end")
                for which in ("failed", "solved")
            ]
        if digest.explored is None or digest.explored >= self.times:
            return super().act(digest, check)
        for wish in self.wishes:
            if (wrong := check(wish)) is None:
                return PlannerTurn(wish)
            self.refused.append(wrong.message)
        return super().act(digest, check)


def spoken(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Have the evaluators of search tasks keep plays as real ones do."""

    def speak(part: Any) -> Any:
        results = [EpisodeResult(e["task_id"], e["sample"], e["reward"], e["success"], 0) for e in part["episodes"]]
        solved = {e["task_id"]: e["success"] for e in part["episodes"] if e["sample"] == 0}
        kept = [
            {"task_id": task, "messages": [{"role": "user", "content": f"was {solved[task]}"}]}
            for task in choose_plays(results, {}, SEARCH_TRANSCRIPTS)
        ]
        return {**part, "transcripts": kept}

    if order.spec.metric.split != "search":
        return left
    during = {"evaluations": [speak(part) for part in left.during["evaluations"]]} if left.during else None
    return replace(left, initial=speak(left.initial), final=speak(left.final), during=during)


def explored(planner: Explorer) -> FlightResult:
    return fly(flight(planner=lambda clock: planner))


def test_an_exploration_is_run_once_and_no_verdict_follows() -> None:
    result = explored(planner := Explorer())
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


def test_an_exploration_before_the_first_question_is_shown_and_leaves_the_level_whole() -> None:
    longer = WISH.model_copy(update={"tried": WISH.tried[:1], "steps": Job().steps + 3})
    planner, drawn = Explorer(longer, times=2, round=1), list[bool]()

    def hand(desk: Desk) -> None:
        seen = desk.state
        if seen.report is not None:
            drawn.append(verify(seen.id, desk.log.read_unverified(seen.id), desk.folder).holds)
        if seen.design is None or drawn:
            return
        seed = seen.explorations[0].plan.seed
        lock = desk.log.read(seen.id)
        at = next(index for index, event in enumerate(lock) if event.type is EventType.DESIGN_LOCKED)
        design = seen.locked_design.model_copy(update={"seeds": (seed, *seen.locked_design.seeds[1:])})
        spoilt = {"design": design.model_dump(mode="json"), "hash": design.hash(), "file": lock_name(1)}
        now = datetime.fromisoformat(lock[at].ts)
        event = compose_event(seen.id, EventType.DESIGN_LOCKED, spoilt, after=lock[at - 1], actor="system", at=now)
        with pytest.raises(LogCorrupt, match="seed of an exploration"):
            fold([*lock[:at], event])
        drawn.append(True)

    whole = flight(planner=lambda clock: planner, hand=hand, report=True, alter=spoken)
    alone = fly(replace(flight(planner=lambda clock: Explorer(round=1), report=True), asks={"rounds": 1}))
    assert (alone.state.status, alone.report and alone.report.count("No claim rests on them")) == ("concluded", 1)
    result = fly(whole)
    state, plain = result.state, fly(flight()).state
    assert (state.status, result.refused, drawn) == ("concluded", None, [True, True])
    first = state.rounds[0]
    assert [(tried.turn, tried.round) for tried in first.explorations] == [("1/propose/1", 1), ("1/propose/2", 1)]
    runs = explorations(state)
    assert {(run.spec.arm, run.status) for run in runs} == {("group_size=2", "collected"), ("as-it-is", "collected")}
    assert {run.spec.job["steps"] for run in runs} == {longer.steps}
    assert not {run.spec.seed for run in runs} & set(first.locked_design.seeds)
    assert [entry.ledgers for entry in state.rounds] == [entry.ledgers for entry in plain.rounds]
    assert [len(told) for told in planner.told] == [0, 1, 2]
    assert planner.told[1][0]["after_round"] == 0
    assert {shown["split"] for shown in planner.looked} == {"search"}
    assert [shown["after_step"] for shown in planner.looked[::2]] == [0, round(longer.steps / 2), longer.steps]
    for shown, solved in zip(planner.looked, [False, True] * 3, strict=True):
        assert {(play["solved"], play["said"][0]["text"]) for play in shown["quoted"]} == {(solved, f"was {solved}")}
        assert shown["with_words_kept"] == 16
    assert {shown["plays"] for shown in planner.looked[2:4]} == {64}
    assert result.report is not None
    assert result.report.count("No claim rests on them") == 2


def test_code_is_tried_on_what_an_exploration_recorded_which_the_planner_and_the_report_say() -> None:
    shown: list[Any] = []

    class Coder(Explorer):
        def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
            if digest.stage == "design":
                shown.append(digest.facts()["code"])
                return PlannerTurn(ProposeDesign(environment="arith"))
            if digest.stage != "propose" or not digest.explored:
                return super().act(digest, check)
            bad, good = (
                Propose(hypotheses=(make_claim("advantage", "built-in", "own", code=code),))
                for code in ("= reward / (mean - mean)", "= reward - mean")
            )
            shown.append(str(check(bad)))
            return PlannerTurn(good)

    coder = Coder(round=1)
    result = fly(replace(flight(planner=lambda clock: coder, report=True, alter=spoken), asks={"rounds": 1}))
    assert (result.state.status, result.refused) == ("concluded", None)
    assert re.search(r"tried in arith, on recorded plays 1 to \d+: .* has no value", shown[0])
    assert re.fullmatch(r"advantage: tried on \d+ recorded plays \(.*\): advantages -\S+ to 0\.\d+", *shown[1])
    told = [act.note for act in result.state.planner_acts if act.note]
    assert told == [*shown[1], *shown[1]]
    assert result.report is not None
    assert result.report.count(told[0]) == 2


def test_an_exploration_on_several_seeds_makes_each_try_on_all_of_them_and_no_claim_may_have_one() -> None:
    planner = Explorer(WISH.model_copy(update={"seeds": 3}), round=1)
    result = fly(replace(flight(planner=lambda clock: planner, report=True), asks={"rounds": 1}))
    state = result.state
    (tried,) = state.explorations
    assert "more_seeds" not in tried.plan.model_copy(update={"more_seeds": ()}).model_dump()
    assert len(set(tried.plan.seeds)) == 3
    made = {(run.spec.arm, run.spec.seed) for run in explorations(state) if run.status == "collected"}
    assert made == {(arm.name, seed) for arm in tried.plan.arms for seed in tried.plan.seeds}
    assert not {*tried.plan.seeds} & {*state.locked_design.seeds}
    [shown] = planner.told[-1]
    assert [len(entry["success"]) for entry in shown["single_runs_on_search_tasks_which_claim_nothing"]] == [3, 3]
    assert result.report is not None
    assert f", seeds {', '.join(map(str, tried.plan.seeds))} for all" in result.report


class Declining(Explorer):
    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        return PlannerTurn(Decline(reason="Nothing moves.")) if digest.explored else super().act(digest, check)


def test_a_topic_that_is_declined_after_exploring_is_reported_with_what_was_seen_and_verifies() -> None:
    proofs = list[Proof]()

    def hand(desk: Desk) -> None:
        if desk.state.report is not None:
            proofs.append(verify(desk.state.id, desk.log.read_unverified(desk.state.id), desk.folder))

    result = fly(flight(planner=lambda clock: Declining(round=1), report=True, hand=hand))
    assert (result.state.declined, result.state.design, [proof.holds for proof in proofs[-1:]]) == (True, None, [True])
    assert result.report is not None
    assert ("No claim rests on them" in result.report, "Search after" in result.report) == (True, True)


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("after", [-1, 0, 1])
def test_a_controller_killed_around_an_exploration_before_the_first_question_asks_once(
    after: int, written: bool
) -> None:
    result = fly_killed(flight(planner=lambda clock: Explorer(round=1)), 2 + after, written=written)
    assert not result.duplicates
    assert [act.turn for act in result.state.planner_acts][:3] == ["1/propose/1", "1/propose/2", "1/design/2"]
    assert len(explorations(result.state)) == 2


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


def exploring(**changes: Any) -> Flight:
    return replace(flight(**changes), name="explored-2", asks={"explore": True})


@pytest.fixture(scope="module")
def alone() -> Alone:
    """A study that was asked to explore, its log, its proof, and what a script is told of it."""
    events, proofs, told = list[Event](), list[Proof](), dict[str, Any]()

    def look(desk: Desk) -> None:
        events[:] = desk.log.read(desk.state.id)
        if desk.state.report is not None:
            proofs.append(verify(desk.state.id, desk.log.read_unverified(desk.state.id), desk.folder))
            lines = [line for _, line in progress_lines(desk.state)]
            told.update(summary(desk.state, desk.folder), row=list_row(desk.state, desk.folder), lines=lines)

    return fly(exploring(report=True, hand=look)), events, proofs[-1], told


def test_a_study_that_explores_makes_one_run_of_each_arm_and_tests_nothing(alone: Alone) -> None:
    result, events, proof, told = alone
    state = result.state
    assert (state.status, state.concluded_reason, result.refused) == ("concluded", EXPLORED, None)
    assert [(run.spec.arm, run.status, run.spec.metric.split) for run in explorations(state)] == [
        ("learning_rate=0.003", "collected", "search"), ("learning_rate=0.01", "collected", "search"),
    ]  # fmt: skip
    assert len({run.spec.seed for run in explorations(state)}) == 1
    assert len(state.every_run) == 2
    assert not {EventType.DESIGN_LOCKED, EventType.HYPOTHESIS_PROPOSED} & {event.type for event in events}
    assert (proof.holds, state.ledgers.differences.handed_on) == (True, ())
    assert [(entry["arm"], entry["status"]) for entry in told["explored"]] == [
        ("learning_rate=0.003", "collected"), ("learning_rate=0.01", "collected"),
    ]  # fmt: skip
    assert all(0 < entry["after"] == entry["value"] < 1 for entry in told["explored"])
    assert told["next"] == state.asked_next
    assert told["row"][1:4] == ["concluded", "2/2", "nothing tested"]
    assert "explores, which tests nothing: learning_rate=0.003, learning_rate=0.01, one run each" in told["lines"]
    assert result.report is not None
    first = result.report.partition("## ")[0]
    assert "Nothing was tested" in first
    assert "no level is spent" in first
    assert re.search(r"\d+ runs, about", first)  # what a study of it takes
    assert result.report.count("figures/learning-curves.svg") == 1


def test_a_study_that_explores_says_what_is_left_of_it_when_it_was_stopped(alone: Alone, tmp_path: Path) -> None:
    stopped = replace(alone[0].state, concluded_reason=None, stopped_reason="by hand")
    used_up = Decision(stopped.event_count, "", BUDGET_RULE, "stop", "used up")
    for state, said in (
        (stopped, "go on with"),
        (replace(stopped, decisions=[used_up]), "resumed without, it concludes"),
    ):
        with (shown := Console(width=500)).capture() as seen:
            shown.print(render_ending(state, tmp_path))
        assert said in seen.get()


def test_a_study_that_explores_asks_first_where_that_is_wished() -> None:
    asked: list[str] = []

    def hand(desk: Desk) -> None:
        if (question := desk.state.open_question) is not None:
            asked.append(question.question.would)
            answer_question(StudyLog(desk.log, desk.state.id), question.digest, "terminal", granted=True)

    result = fly(replace(exploring(hand=hand), asks={"explore": True, "approve": "plan"}))
    assert asked == ["an exploration, which makes no claim: learning_rate=0.003, learning_rate=0.01, one run each"]
    assert result.state.concluded_reason == EXPLORED


def test_what_the_budget_does_not_carry_of_an_exploration_is_given_up_and_reported() -> None:
    less = Amendment(kind="budget", value=28.0, reason="less", lowers=True)

    def hand(desk: Desk) -> None:
        if any(run.attempts for run in explorations(desk.state)) and not desk.state.amendments:
            desk.write(EventType.DESIGN_AMENDED, {"amendment": less.model_dump(mode="json")})

    result = fly(exploring(parallel=1, hand=hand, report=True))
    codes = [run.invalid and run.invalid[0] for run in explorations(result.state)]
    assert codes == [None, "budget_exhausted"]
    assert result.state.concluded_reason == EXPLORED
    assert result.report is not None
    assert "one run of each setting (1 of 2 were measured), all on one seed" in result.report


def test_a_study_that_explores_takes_no_lock() -> None:
    refused: list[str] = []

    def hand(desk: Desk) -> None:
        if desk.state.explored is None or refused:
            return
        design = synthetic_design()
        with pytest.raises(StudiesError) as error:
            desk.write(
                EventType.DESIGN_LOCKED,
                {"design": design.model_dump(mode="json"), "hash": design.hash(), "file": lock_name(1)},
            )
        refused.append(str(error.value))

    assert fly(exploring(hand=hand)).state.design is None
    assert "asked to explore" in refused[0]


class Reader(Explorer):
    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        if digest.tools is not None and digest.stage == "propose":
            self.given = collect_inputs(digest.tools)
        return super().act(digest, check)


def test_an_analysis_is_given_the_plays_of_search_tasks_and_no_others() -> None:
    planner = Reader(round=1)
    state = fly(flight(planner=lambda clock: planner)).state
    given = planner.given
    explored = {f"plays/{run.run_id}.json" for run in explorations(state)}
    assert explored
    assert {name for name in given if name.startswith("plays/")} == explored
    assert all(json.loads(given[name])["final"]["split"] == "search" for name in explored)
