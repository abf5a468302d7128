"""A question as a form of a real Prefect server, pressed as its page does: both sides agree on the answer."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from research.controller.interventions import answer_question, require_question
from studies import EventLog, EventType, StudyLog
from tests.research.bench import STUDY
from tests.research.orchestration.shown import Asking, state_of

pytestmark = pytest.mark.slow


def test_the_form_shows_what_is_asked_and_waits_for_years(asking: Asking) -> None:
    state = state_of(asking.form)
    assert (state.name, state.state_details.pause_reschedule) == ("Paused", False)
    assert state.state_details.pause_timeout is not None
    assert state.state_details.pause_timeout.year > state.timestamp.year + 5
    keys = state.state_details.run_input_keyset
    assert keys is not None
    shown = asking.client.read_flow_run_input(asking.form.id, keys["description"])
    assert "at most 8 runs" in shown
    assert f"ajet study approve {STUDY}" in shown
    assert '"default": "wait"' in asking.client.read_flow_run_input(asking.form.id, keys["schema"])
    assert asking.state().status == "waiting"


def test_an_approval_in_the_form_begins_what_was_asked_and_closes_it(asking: Asking) -> None:
    assert asking.submit(answer="approve", note="within this week") == "ACCEPT"
    asking.refresh()
    (given,) = asking.state().approvals
    assert (given.granted, given.by, given.note) == (True, "Prefect", "within this week")
    name, message = asking.said()
    assert name == "Approved"
    assert "approved in Prefect" in message
    assert "(within this week)" in message
    assert sum(run.active is not None for run in asking.tick().runs.values()) == 2


@pytest.mark.parametrize("fields", [{}, {"answer": "wait"}, {"note": "hm"}])
def test_whoever_presses_without_choosing_has_answered_nothing_and_may_answer_later(
    asking: Asking, fields: dict[str, Any]
) -> None:
    assert asking.submit(**fields) == "ACCEPT"
    asking.refresh()
    assert (asking.state().status, asking.said()[0]) == ("waiting", "Paused")
    asking.submit(answer="approve")
    asking.refresh()
    assert asking.state().approvals[0].granted


def test_what_is_no_answer_is_refused_by_the_server(asking: Asking) -> None:
    assert asking.submit(answer="maybe") == "REJECT"
    assert asking.submit(answer="approve", note="x" * 1001) == "REJECT"
    asking.refresh()
    assert asking.state().status == "waiting"


@pytest.mark.parametrize("how", ["cancelled", "failed", "deleted"])
def test_whatever_else_is_done_to_the_form_puts_it_up_again(asking: Asking, how: str) -> None:
    from prefect.client.schemas.objects import State, StateType

    before = asking.form.id
    if how == "deleted":
        asking.client.delete_flow_run(before)
    else:
        kind = StateType.CANCELLING if how == "cancelled" else StateType.FAILED
        asking.client.set_flow_run_state(before, State(type=kind), force=True)
    asking.refresh()
    assert (asking.said()[0], asking.state().status) == ("Paused", "waiting")
    asking.submit(answer="approve")
    asking.refresh()
    assert asking.state().approvals[0].by == "Prefect"


@pytest.mark.parametrize(
    ("form", "elsewhere", "granted"),
    [("deny", None, False), (None, True, True), ("approve", False, False)],
    ids=["in the form", "elsewhere", "in both, where the first that is written counts"],
)
def test_an_answer_closes_the_form_and_a_denial_stops_the_study(
    asking: Asking, form: str | None, elsewhere: bool | None, granted: bool
) -> None:
    if form is not None:
        asking.submit(answer=form)
    if elsewhere is not None:
        asking.bench.answer(granted=elsewhere)
    asking.refresh()
    (given,) = asking.state().approvals
    assert given.granted == granted
    assert asking.said() == ("Approved" if granted else "Denied", given.describe())
    assert asking.tick().stopped_reason == (None if granted else given.describe())


def test_the_forms_of_two_sessions_are_one(asking: Asking) -> None:
    before = asking.form.id
    asking.client.delete_flow_run(asking.flow_run.id)
    with asking.another_session() as asking.session:
        asking.refresh()
        assert [form.id for form in asking.forms()] == [before]
        asking.submit(answer="approve")
        asking.refresh()
        assert asking.said()[0] == "Approved"


def test_a_form_answered_while_no_controller_worked_is_read_by_the_next(asking: Asking) -> None:
    asking.bench.append(EventType.STUDY_STOPPED, reason="interrupted by the user")
    asking.session.close(None)
    assert asking.said()[0] == "Paused", "the question outlives the session"
    asking.submit(answer="approve", note="from the train")
    with asking.another_session() as session:
        session.refresh()
    assert asking.state().approvals[0].note == "from the train"


def test_a_form_that_a_session_s_end_overtook_is_closed_with_it(asking: Asking) -> None:
    with closing(EventLog(asking.bench.home.database)) as log:
        record = StudyLog(log, STUDY)
        answer_question(record, require_question(record.state()).digest, "terminal", "too dear", granted=False)
    asking.tick()
    asking.session.close(None)
    name, message = asking.said()
    assert name == "Denied"
    assert message.startswith("denied in the")


def test_what_is_asked_again_has_a_form_of_its_own(asking: Asking) -> None:
    asking.submit(answer="deny")
    asking.refresh()
    asking.bench.append(EventType.STUDY_RESUMED, command=[], worked_s=0.0)
    asking.tick()
    asking.refresh()
    older, newer = asking.forms()
    assert (state_of(older).name, state_of(newer).name) == ("Denied", "Paused")
