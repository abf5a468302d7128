"""`--approve`: what nobody approved is not begun, waiting costs nothing, and of several answers one counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from research.controller.interventions import answer_question, require_question
from research.errors import BadInput
from research.scheduler.approvals import parse_mode
from research.scheduler.next_step import is_done, next_step
from research.scheduler.steps import Collect
from studies import EventLog, EventType, StudyLog, StudyState, fold
from tests.research.bench import STUDY, Bench, unapproved
from tests.research.designs import design, every_stage, noise_plan

HOUR = 3600.0
STAGES = ["noise", "screen", "look 1", "look 2", "look 3", "replication"]


def plan_bench(path: Path, approve: str = "plan", **fields: Any) -> Bench:
    return Bench(path, design=design(16), approve=approve, **fields)


def until_asked(bench: Bench) -> StudyState:
    return bench.until(lambda state: state.open_question)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "stages"), [("none", []), ("plan", ["noise", "design"]), ("stages", STAGES)])
def test_a_mode_asks_for_what_it_says_and_begins_nothing_before(fast_path: Path, mode: str, stages: list[str]) -> None:
    bench = Bench(fast_path, design=every_stage(), noise=noise_plan(), approve=mode)
    bench.approves = True
    state = bench.drive(bench.loop())
    assert state.status == "concluded"
    assert [each.question.stage for each in state.questions] == stages
    assert [given.asked for given in state.approvals] == list(state.questions)
    unapproved(bench.events())
    assert len(state.runs) == 17  # the same runs as without


def test_nothing_of_a_design_begins_while_its_question_is_open_whoever_looks_and_however_long(fast_path: Path) -> None:
    bench = plan_bench(fast_path, budget_s=600.0)
    state = until_asked(bench)
    for loop in [bench.loop() for _ in range(3)]:
        for _ in range(10):
            bench.clock.advance(24 * HOUR)
            found = loop.tick()
            assert not is_done(found)
            assert found == state  # a killed controller's successor asks nothing anew
        assert loop.budget_left(found) == pytest.approx(600.0 - state.worked_s), "waiting costs nothing"
    assert (state.status, dict(state.runs)) == ("waiting", {})
    bench.answer()
    after = bench.drive(bench.loop())
    assert after.status == "concluded"
    assert after.worked_s < 60.0


def test_a_denial_stops_the_study_with_a_report_of_what_stands_and_resuming_asks_again(fast_path: Path) -> None:
    bench = plan_bench(fast_path, "stages")
    until_asked(bench)
    bench.answer()
    until_asked(bench)
    before = bench.answer(granted=False)
    state = bench.drive(bench.loop())
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
    with pytest.raises(BadInput, match="asks something else"):
        answer_question(StudyLog(bench.log, STUDY), before.asked.digest, "Prefect", granted=True)
    bench.approves = True
    assert bench.drive(bench.loop()).status == "concluded"


@pytest.mark.parametrize("halt", [EventType.STUDY_STOPPED, EventType.STUDY_PAUSED])
def test_a_question_outlives_a_stop_and_a_pause_and_may_be_answered_meanwhile(fast_path: Path, halt: EventType) -> None:
    bench = plan_bench(fast_path)
    state = until_asked(bench)
    bench.append(halt, reason="for the night")
    bench.loop().tick()
    assert fold(bench.events()).open_question == state.open_question
    bench.answer()
    bench.loop().tick()
    assert dict(fold(bench.events()).runs) == {}  # what halted it holds
    bench.append(EventType.STUDY_RESUMED, command=[], worked_s=0.0)
    after = bench.drive(bench.loop())
    assert (after.status, len(after.questions)) == ("concluded", 1)


def test_of_answers_that_come_at_once_exactly_one_counts(fast_path: Path) -> None:
    bench = plan_bench(fast_path)
    digest = require_question(until_asked(bench)).digest
    together = Barrier(8)

    def say(number: int) -> bool:
        with closing(EventLog(bench.home.database)) as log:
            record = StudyLog(log, STUDY)
            record.state()
            together.wait()
            with suppress(BadInput):
                note = answer_question(record, digest, "command", str(number), granted=number % 2 == 0).note
                return note == str(number)
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(say, range(8))) == [False] * 7 + [True]
    state = fold(bench.events())
    assert len(state.approvals) == 1
    with pytest.raises(BadInput, match="question was answered: "):
        require_question(state)
    assert (state.denial is None) == state.approvals[0].granted


def test_a_mode_that_there_is_not_is_refused_and_a_note_is_one_line_of_bounded_length(fast_path: Path) -> None:
    for mode in ("", "yes", "Plan", "stages "):
        with pytest.raises(BadInput, match="--approve plan"):
            parse_mode(mode)
    bench = plan_bench(fast_path)
    until_asked(bench)
    record = StudyLog(bench.log, STUDY)
    digest = require_question(record.state()).digest
    with pytest.raises(BadInput, match="at most 1000 characters; found 1001"):
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
