"""`--approve`: what nobody approved is not begun, waiting costs nothing, and of several answers one counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from research.controller import interventions
from research.controller.interventions import answer_question, require_question
from research.design.pricing import price_of
from research.errors import BadApproval
from research.scheduler.approvals import parse_mode
from research.scheduler.next_step import next_step
from research.scheduler.steps import AskApproval, Collect, Decide, PlanRun
from studies import EventLog, EventType, StudyLog, StudyState, fold
from tests.research.bench import STUDY, Bench, unapproved
from tests.research.designs import design, every_stage, noise_plan

HOUR = 3600.0
STAGES = ["noise", "screen", "look 1", "look 2", "look 3", "replication"]


def plan_bench(path: Path, *script: Any) -> Bench:
    return Bench(path, *script, design=design(16), approve="plan")


def asked(state: StudyState) -> list[str]:
    return [each.question.stage for each in state.questions]


def until_asked(bench: Bench) -> StudyState:
    return bench.until(lambda state: state.open_question)


def looked_at_again(bench: Bench) -> None:
    until_asked(bench)
    bench.answer()
    until_asked(bench)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "stages"), [("none", []), ("plan", ["noise", "design"]), ("stages", STAGES)])
def test_a_mode_asks_for_what_it_says_and_begins_nothing_before(fast_path: Path, mode: str, stages: list[str]) -> None:
    bench = Bench(fast_path, design=every_stage(), noise=noise_plan(), approve=mode)
    bench.approves = True
    state = bench.drive(bench.loop()).state
    assert state.status == "concluded"
    assert asked(state) == stages
    assert [given.asked for given in state.approvals] == list(state.questions)
    unapproved(bench.events())
    assert len(state.runs) == 19, "the same runs as without"


def test_nothing_of_a_design_begins_while_its_question_is_open_whoever_looks_and_however_long(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16), approve="plan", budget_s=600.0)
    state = until_asked(bench)
    for loop in [bench.loop() for _ in range(3)]:
        for _ in range(10):
            bench.clock.advance(24 * HOUR)
            found = loop.tick()
            assert not found.done
            assert found.state == state, "a killed controller's successor asks nothing anew"
        assert loop.budget_left(found.state) == pytest.approx(600.0 - state.worked_s), "waiting costs nothing"
    assert (state.status, dict(state.runs)) == ("waiting", {})
    bench.answer()
    after = bench.drive(bench.loop()).state
    assert after.status == "concluded"
    assert after.worked_s < 60.0


def test_a_question_says_what_it_is_about_and_what_that_costs(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16), approve="stages")
    first = require_question(until_asked(bench)).question
    assert (first.study, first.number, first.stage, first.runs, first.seconds) == (STUDY, 1, "look 1", 4, 20.0)
    assert "look 1 of 3" in first.would
    assert "group_size=8 vs group_size=16" in first.would
    bench.answer()
    state = until_asked(bench)
    second = require_question(state).question
    assert (second.number, second.stage, second.runs) == (2, "look 2", 2)
    assert second.seconds == price_of(state, "confirm"), "by what its runs took"
    assert second.left_s < first.left_s
    assert second.lock == state.design_hash
    whole = Bench(fast_path / "whole", design=every_stage(), approve="plan")
    question = require_question(state := until_asked(whole)).question
    assert (question.runs, question.seconds) == (state.locked_design.price.runs, state.locked_design.price.total_s)


def test_what_is_not_affordable_is_not_asked_for(fast_path: Path) -> None:
    state = until_asked(plan_bench(fast_path))
    assert isinstance(next_step(state, 0.0, 2), Decide), "the budget is used up, whatever anybody answers"
    assert next_step(state, 600.0, 2) is None


def test_a_denial_stops_the_study_with_a_report_of_what_stands_and_resuming_asks_again(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16), approve="stages")
    looked_at_again(bench)
    before = bench.answer(granted=False)
    state = bench.drive(bench.loop()).state
    assert state.status == "stopped"
    assert state.stopped_reason == before.describe()
    assert "look 2 of 3" in state.stopped_reason
    assert [(verdict.hypothesis, verdict.look) for verdict in state.verdicts] == [("h1", 1)]
    assert state.report is not None
    assert len(state.runs) == 4

    bench.append(EventType.STUDY_RESUMED, command=[], worked_s=0.0)
    again = require_question(until_asked(bench))
    assert (again.question.stage, again.question.number) == ("look 2", 3)
    assert again.digest != before.asked.digest
    with pytest.raises(BadApproval, match="asks something else"):
        answer_question(StudyLog(bench.log, STUDY), before.asked.digest, "Prefect", granted=True)
    bench.approves = True
    assert bench.drive(bench.loop()).state.status == "concluded"


def test_a_denial_before_anything_is_locked_leaves_nothing_to_report(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16), noise=noise_plan(), approve="plan")
    until_asked(bench)
    bench.answer(granted=False)
    result = bench.loop().tick()
    assert result.done
    assert (result.state.status, result.state.report, result.state.design) == ("stopped", None, None)


def test_a_veto_of_all_that_a_question_is_about_makes_it_needless(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16), approve="stages")
    looked_at_again(bench)
    interventions.veto_hypothesis(StudyLog(bench.log, STUDY), "h1", "enough")
    state = bench.drive(bench.loop()).state
    assert state.status == "concluded"
    assert state.open_question is None
    assert len(state.approvals) == 1


@pytest.mark.parametrize("halt", [EventType.STUDY_STOPPED, EventType.STUDY_PAUSED])
def test_a_question_outlives_a_stop_and_a_pause_and_may_be_answered_meanwhile(fast_path: Path, halt: EventType) -> None:
    bench = plan_bench(fast_path)
    state = until_asked(bench)
    bench.append(halt, reason="for the night")
    bench.loop().tick()
    assert fold(bench.events()).open_question == state.open_question
    bench.answer()
    bench.loop().tick()
    assert dict(fold(bench.events()).runs) == {}, "what halted it holds"
    bench.append(EventType.STUDY_RESUMED, command=[], worked_s=0.0)
    after = bench.drive(bench.loop()).state
    assert (after.status, len(after.questions)) == ("concluded", 1)


def test_a_run_that_fails_is_tried_again_without_another_question(fast_path: Path) -> None:
    bench = Bench(fast_path, lambda order: "failed" if order.attempt == 1 else "ok", design=design(16), approve="plan")
    bench.approves = True
    state = bench.drive(bench.loop()).state
    assert {len(run.attempts) for run in state.runs.values()} == {2}
    assert asked(state) == ["design"]


def test_a_verdict_formed_again_needs_no_second_approval(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16), approve="stages")
    looked_at_again(bench)
    bench.answer()
    state = until_asked(bench)
    assert require_question(state).question.stage == "look 3"
    earlier = replace(state, verdicts=(), interim=(), decided={}, open_question=None)
    assert not isinstance(next_step(earlier, 600.0, 2), AskApproval | PlanRun), "look 1 is judged anew"


def test_of_answers_that_come_at_once_exactly_one_counts(fast_path: Path) -> None:
    bench = plan_bench(fast_path)
    digest = require_question(until_asked(bench)).digest
    together = Barrier(8)

    def say(number: int) -> bool:
        with closing(EventLog(bench.home.database)) as log:
            record = StudyLog(log, STUDY)
            record.state()
            together.wait()
            try:
                return answer_question(record, digest, "command", str(number), granted=number % 2 == 0).note == str(
                    number
                )
            except BadApproval:
                return False

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(say, range(8))) == [False] * 7 + [True]
    state = fold(bench.events())
    assert len(state.approvals) == 1
    with pytest.raises(BadApproval, match="question was answered: "):
        require_question(state)
    assert (state.denial is None) == state.approvals[0].granted


@pytest.mark.parametrize("mode", ["", "yes", "Plan", "stages "])
def test_a_mode_that_there_is_not_is_refused(mode: str) -> None:
    with pytest.raises(BadApproval, match="expected --approve plan, stages"):
        parse_mode(mode)


def test_a_note_is_one_line_of_bounded_length(fast_path: Path) -> None:
    bench = plan_bench(fast_path)
    until_asked(bench)
    record = StudyLog(bench.log, STUDY)
    digest = require_question(record.state()).digest
    with pytest.raises(BadApproval, match="at most 1000 characters; found 1001"):
        answer_question(record, digest, "command", "x" * 1001, granted=True)
    assert answer_question(record, digest, "command", "in\nsteps", granted=True).note == "in steps"


def test_what_runs_is_finished_and_collected_while_a_question_is_open(fast_path: Path) -> None:
    bench = plan_bench(fast_path)
    bench.approves = True
    bench.drive(bench.loop())
    events = bench.events()
    ended = next(event.seq for event in events if event.type is EventType.ATTEMPT_ENDED)
    state = fold(events[:ended])
    waiting = replace(state, approvals=(), open_question=state.questions[0])
    assert isinstance(next_step(waiting, 600.0, 2), Collect)
    assert next_step(replace(waiting, runs={}), 600.0, 2) is None


def test_time_in_which_something_runs_is_charged_while_a_question_is_open(fast_path: Path) -> None:
    bench = plan_bench(fast_path, lambda order: "never")
    until_asked(bench)
    bench.answer()
    loop = bench.loop()
    state = loop.tick().state
    again = state.questions[0].question.model_copy(update={"number": 2, "stage": "another"})
    bench.append(EventType.APPROVAL_ASKED, question=again.model_dump(mode="json"), digest=again.digest())
    for _ in range(10):
        bench.clock.advance(10.0)
        loop.tick()
    assert loop.state().open_question is not None
    assert loop.budget_left(state) == pytest.approx(600.0 - state.worked_s - 100.0)
