"""A question as a form on the study's own flow run, pressed as its page does: both sides agree on the answer."""

from __future__ import annotations

from typing import Any

import pytest

from studies import EventType
from tests.research.bench import STUDY
from tests.research.orchestration.shown import CANCELLED, Asking, state_of

pytestmark = pytest.mark.slow


def test_the_form_shows_what_is_asked_and_waits_for_years(asking: Asking) -> None:
    state = state_of(asking.flow_run)
    assert (state.name, state.state_details.pause_reschedule) == ("Paused", False)
    assert state.state_details.pause_timeout is not None
    assert state.state_details.pause_timeout.year > state.timestamp.year + 5
    text = asking.client.read_flow_run_input(asking.flow_run.id, asking.keys["description"])
    assert "at most 8 runs" in text
    assert f"ajet study approve {STUDY}" in text
    assert '"default": "wait"' in asking.client.read_flow_run_input(asking.flow_run.id, asking.keys["schema"])
    assert asking.state().status == "waiting"


def test_an_approval_in_the_form_begins_what_was_asked(asking: Asking) -> None:
    assert asking.submit(answer="approve", note="within this week") == "ACCEPT"
    asking.refresh()
    (answer,) = asking.state().approvals
    assert (answer.granted, answer.by, answer.note) == (True, "Prefect", "within this week")
    assert (asking.shown(), asking.keys) == ("Running", {})
    assert sum(run.active is not None for run in asking.tick().runs.values()) == 2


@pytest.mark.parametrize("fields", [{}, {"answer": "wait"}, {"note": "hm"}])
def test_whoever_presses_without_choosing_has_answered_nothing_and_may_answer_later(
    asking: Asking, fields: dict[str, Any]
) -> None:
    for _ in range(2):
        assert asking.submit(**fields) == "ACCEPT"
        asking.refresh()
        assert (asking.state().status, asking.shown(), bool(asking.keys)) == ("waiting", "Paused", True)
    asking.submit(answer="approve")
    asking.refresh()
    assert asking.state().approvals[0].granted


def test_what_is_no_answer_is_refused_by_the_server(asking: Asking) -> None:
    assert asking.submit(answer="maybe") == "REJECT"
    assert asking.submit(answer="approve", note="x" * 1001) == "REJECT"
    asking.refresh()
    assert asking.state().status == "waiting"


@pytest.mark.parametrize("how", ["failed", "deleted"])
def test_whatever_else_is_done_to_the_flow_run_puts_the_form_up_again(asking: Asking, how: str) -> None:
    from prefect.client.schemas.objects import State, StateType

    if how == "deleted":
        asking.client.delete_flow_run(asking.flow_run.id)
    else:
        asking.client.set_flow_run_state(asking.flow_run.id, State(type=StateType.FAILED), force=True)
    asking.refresh()
    assert (asking.shown(), asking.state().status) == ("Paused", "waiting")
    asking.submit(answer="approve")
    asking.refresh()
    assert asking.state().approvals[0].by == "Prefect"


def test_cancel_of_a_study_that_asks_stops_it(asking: Asking) -> None:
    asking.click("cancel")
    asking.refresh()
    assert asking.tick().stopped_reason == CANCELLED


@pytest.mark.parametrize(
    ("form", "elsewhere", "granted"),
    [("deny", None, False), (None, True, True), ("approve", False, False)],
    ids=["in the form", "elsewhere", "in both, where the first that is written counts"],
)
def test_an_answer_takes_the_form_down_and_a_denial_stops_the_study(
    asking: Asking, form: str | None, elsewhere: bool | None, granted: bool
) -> None:
    if form is not None:
        asking.submit(answer=form)
    if elsewhere is not None:
        asking.bench.answer(granted=elsewhere)
    asking.refresh()
    (answer,) = asking.state().approvals
    assert answer.granted == granted
    assert asking.tick().stopped_reason == (None if granted else answer.describe())
    asking.refresh()
    assert asking.shown() == "Running", "until its controller ends it"


def test_a_form_that_was_sent_while_no_process_was_there_is_read_by_the_next(asking: Asking) -> None:
    from research.orchestration.prefect_api import FlowRun, SessionEnd
    from research.orchestration.projection import question_of, take_answer
    from studies import EventLog, StudyLog

    flow_run = FlowRun(asking.client, asking.flow_run.id)
    flow_run.end(SessionEnd("rests", "it waits for an answer", question_of(asking.state())))
    assert (asking.shown(), state_of(asking.flow_run).state_details.pause_reschedule) == ("Suspended", True)
    asking.submit(answer="approve", note="from the train")
    assert asking.shown() == "Resuming", "a worker begins a process for it"
    take_answer(flow_run, StudyLog(EventLog(asking.bench.home.database), STUDY))
    assert asking.state().approvals[0].note == "from the train"


def test_what_is_asked_again_has_a_form_of_its_own(asking: Asking) -> None:
    older = asking.keys
    asking.submit(answer="deny")
    asking.refresh()
    asking.bench.append(EventType.STUDY_RESUMED, command=[], worked_s=0.0)
    asking.tick()
    asking.refresh()
    assert (asking.shown(), asking.state().status) == ("Paused", "waiting")
    assert asking.keys
    assert asking.keys != older
