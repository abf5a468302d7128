"""A study as a flow run on a real server: what is clicked is obeyed at the next look, what happens is shown."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from playwright.sync_api import Page
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State, StateType
from prefect.states import Crashed, Scheduled

from research.controller.interventions import request_continue, request_pause
from research.installation.home import Home
from research.orchestration.prefect_api import FlowRun, create_flow_run
from research.orchestration.projection import Projection
from research.orchestration.server import PrefectServer
from studies import EventLog, EventType, StudyState
from tests.research.bench import STUDY
from tests.research.orchestration.shown import (
    CANCELLED,
    PATIENCE_S,
    PAUSED,
    Asking,
    Told,
    Watched,
    artifacts_of,
    state_of,
    task_runs,
    visit,
)
from tests.studies.synthetic import STUDY as SYNTHETIC

pytestmark = pytest.mark.slow


PLANNED = 4
"""Runs of the study of fake attempts that are shown at first: two seeds of both arms."""


def running(state: StudyState) -> int:
    return sum(run.active is not None for run in state.runs.values())


def test_cancel_stops_the_study_within_one_look_and_the_page_says_cancelled(watched: Watched) -> None:
    assert running(watched.tick()) == 2
    watched.refresh()
    watched.click("cancel")
    assert watched.shown() == "Cancelling"
    watched.refresh()
    state = watched.tick()
    assert (state.stopped_reason, running(state)) == (CANCELLED, 0)
    identity = watched.flow_run.id
    watched.session.close(None)
    ended = watched.client.read_flow_run(identity)
    assert (state_of(ended).name, state_of(ended).message) == ("Cancelled", CANCELLED)
    watched.bench.append(EventType.STUDY_RESUMED, command=["ajet", "study", "resume"], worked_s=0.0)
    assert running(watched.tick()) == 2, "`ajet study resume` goes on"
    with watched.another_session() as session:
        session.refresh()
    assert (watched.flow_run.id, watched.shown()) == (identity, "Running")  # in the same flow run
    shown = task_runs(watched.client, identity, lambda rows: rows.get("planning", {}).get("state_name") == "Completed")
    tries = [row["state_name"] for name, row in shown.items() if name.endswith(", try 2")]
    assert tries == ["Retrying", "Retrying"]  # and what was planned is planned again
    assert "Planned" in {row["state_name"] for row in shown.values()}


def test_tags_that_somebody_gave_a_flow_run_stay_when_it_is_taken(client: SyncPrefectClient, tmp_path: Path) -> None:
    study = StudyState(id="a-study", topic="group size 4 vs 8")
    run = create_flow_run(client, Home(tmp_path, ""), study, Scheduled()).id
    client.update_flow_run(run, tags=["nightly", "ajet"])
    FlowRun(client, run).adopt(study)
    assert set(client.read_flow_run(run).tags) == {"nightly", "ajet", "a-study"}


def test_pause_begins_nothing_lets_runs_finish_and_lasts_until_cancel(watched: Watched) -> None:
    watched.tick()
    watched.click("pause")
    watched.refresh()
    state = state_of(watched.flow_run)
    assert (state.name, state.state_details.pause_reschedule) == ("Paused", False)
    assert state.state_details.pause_timeout is not None
    assert state.state_details.pause_timeout.year > state.timestamp.year + 5  # Prefect fails a pause that expires
    for handle in watched.bench.sandbox.handles.values():
        handle.ended = handle._end("ok")
    after = watched.tick()
    assert after.paused_reason == PAUSED
    assert ([run.status for run in after.runs.values()].count("collected"), running(after)) == (2, 0)
    watched.refresh()
    assert watched.shown() == "Paused"  # looks go on while it is paused
    watched.click("cancel")
    watched.refresh()
    assert watched.tick().stopped_reason == CANCELLED


@pytest.mark.parametrize("paused_by", ["page", "terminal"])
@pytest.mark.parametrize("resumed_by", ["page", "terminal"])
def test_a_pause_is_lifted_from_either_side(watched: Watched, paused_by: str, resumed_by: str) -> None:
    with closing(EventLog(watched.bench.home.database, clock=watched.bench.clock)) as log:
        watched.click("pause") if paused_by == "page" else request_pause(log, STUDY)
        watched.refresh()
        assert (running(watched.tick()), watched.shown()) == (0, "Paused")
        watched.refresh()
        watched.click("resume") if resumed_by == "page" else request_continue(log, STUDY)
        watched.refresh()
        assert (running(watched.tick()), watched.shown()) == (2, "Running")
        watched.refresh()
        assert watched.shown() == "Running"


def test_a_pause_taken_back_before_anybody_looked_leaves_the_study_running(watched: Watched) -> None:
    watched.click("pause")
    watched.click("resume")
    assert watched.shown() == "Resuming"  # nobody would take this flow run up
    watched.refresh()
    assert (running(watched.tick()), watched.shown()) == (2, "Running")


@pytest.mark.parametrize("paused", [False, True])
def test_a_living_study_is_not_left_failed_by_another_hand(watched: Watched, paused: bool) -> None:
    if paused:
        watched.click("pause")
        watched.refresh()
    watched.client.set_flow_run_state(watched.flow_run.id, Crashed(message="no heartbeat"), force=True)
    watched.refresh()
    assert watched.shown() == ("Paused" if paused else "Running")
    assert (watched.tick().paused_reason is not None) == paused


def test_a_server_whose_database_is_lost_is_told_everything_anew(watched: Watched) -> None:
    watched.tick()
    watched.refresh()
    before = watched.flow_run
    watched.client.delete_flow_run(before.id)
    watched.refresh()
    assert watched.flow_run.id != before.id
    found = task_runs(watched.client, watched.flow_run.id, lambda rows: len(rows) >= 1 + PLANNED)
    active = [run.spec for run in watched.loop.state().runs.values() if run.active is not None]
    assert {name: row["state_name"] for name, row in found.items() if row["state_name"] != "Planned"} == {
        "planning": "Completed", **{f"{spec.arm} seed {spec.seed}": "Running" for spec in active},
    }  # fmt: skip


def test_a_session_that_ends_late_leaves_the_flow_run_to_the_one_that_took_over(watched: Watched) -> None:
    with watched.another_session() as later:
        later.refresh()
        watched.session.close(KeyboardInterrupt())
        assert watched.shown() == "Crashed"
        later.refresh()
        assert watched.shown() == "Running"


def test_a_whole_study_is_told_to_its_end(told: Told) -> None:
    session, run = told.begin()
    told.synthetic.lock()
    specs = told.synthetic.plan()
    for spec in specs[:8]:
        told.synthetic.run(spec)
    session.refresh()
    assert progress_of(told, run) == (80.0, "8 of at most 10 runs done")
    for spec in specs[8:]:
        told.synthetic.run(spec)
    session.refresh()
    assert progress_of(told, run)[0] < 100.0
    told.synthetic.judge()
    told.synthetic.conclude()
    told.report()
    session.close(None)

    ended = told.client.read_flow_run(run)
    assert state_of(ended).is_completed()
    assert ended.deployment_id is not None  # Prefect's page has buttons for a deployment's runs only
    assert progress_of(told, run)[0] == 100.0
    assert "ajet study report" in artifacts_of(told.client, run)[f"{SYNTHETIC}-links"]["data"]
    rows = task_runs(told.client, run, lambda rows: all(row["state_type"] == "COMPLETED" for row in rows.values()))
    assert len(rows) == 11


def test_progress_that_was_deleted_on_the_page_is_shown_anew(told: Told) -> None:
    session, run = told.begin()
    shown = artifacts_of(told.client, run)[f"{SYNTHETIC}-progress"]
    told.client.request("DELETE", "/artifacts/{id}", path_params={"id": shown["id"]})
    told.synthetic.lock()
    session.refresh()
    assert progress_of(told, run)[1] == "0 of at most 10 runs done"


def test_what_cannot_be_published_leaves_no_flow_run_running(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    session, run = told.begin()
    told.conclude()
    monkeypatch.setattr(Projection, "update", Mock(side_effect=RuntimeError("too large")))
    with pytest.raises(RuntimeError):
        session.close(None)
    assert state_of(told.client.read_flow_run(run)).is_completed()


def progress_of(told: Told, flow_run: UUID) -> tuple[float, str]:
    shown = artifacts_of(told.client, flow_run)[f"{SYNTHETIC}-progress"]
    return float(shown["data"]), str(shown["description"])


def test_what_cannot_be_shown_holds_up_no_answer_and_repeats_no_line(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking.submit(answer="approve")
    monkeypatch.setattr(Projection, "update", Mock(side_effect=RuntimeError("too large")))
    notes = ["no room"]
    with pytest.raises(RuntimeError):
        asking.session.refresh(notes)
    assert not notes
    assert asking.state().open_question is None  # the answer was taken


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
    if how == "deleted":
        asking.client.delete_flow_run(asking.flow_run.id)
    else:
        asking.client.set_flow_run_state(asking.flow_run.id, State(type=StateType.FAILED), force=True)
    asking.refresh()
    assert (asking.shown(), asking.state().status) == ("Paused", "waiting")
    asking.submit(answer="approve")
    asking.refresh()
    assert asking.state().approvals[0].by == "Prefect"


@pytest.mark.parametrize(
    ("form", "elsewhere", "granted"),
    [("approve", None, True), ("deny", None, False), (None, True, True), ("approve", False, False)],
    ids=["yes", "no", "elsewhere", "both: the first counts"],
)
def test_an_answer_takes_the_form_down_and_begins_what_was_asked_or_stops_the_study(
    asking: Asking, form: str | None, elsewhere: bool | None, granted: bool
) -> None:
    if form is not None:
        assert asking.submit(answer=form, note="within this week") == "ACCEPT"
    if elsewhere is not None:
        asking.bench.answer(granted=elsewhere)
    asking.refresh()
    (answer,) = asking.state().approvals
    in_form = elsewhere is None
    assert (answer.granted, answer.by == "Prefect", answer.note == "within this week") == (granted, in_form, in_form)
    state = asking.tick()
    assert (state.stopped_reason, running(state)) == ((None, 2) if granted else (answer.describe(), 0))
    asking.refresh()
    assert asking.shown() == "Running"  # until its controller ends it


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


def click(page: Page, server: PrefectServer, watched: Watched, button: str, confirmed: str) -> None:
    """Choose from the flow run's menu and confirm, as a person would, until a server that may be busy has done it."""
    done = False
    while not done:
        visit(page, server, f"runs/flow-run/{watched.flow_run.id}")
        page.get_by_role("button", name="Open menu").click()
        page.get_by_role("menuitem", name=button, exact=True).click()
        with page.expect_response(lambda reply: reply.url.endswith(("/set_state", "/resume"))) as pressed:
            page.get_by_role("button", name=confirmed, exact=True).click()
        done = pressed.value.ok


def test_the_buttons_are_there_and_are_obeyed(page: Page, server: PrefectServer, watched: Watched) -> None:
    click(page, server, watched, "Pause", "Pause Flow Run")
    watched.refresh()
    assert watched.tick().paused_reason == PAUSED
    click(page, server, watched, "Resume", "Resume")
    watched.refresh()
    assert watched.tick().paused_reason is None
    click(page, server, watched, "Cancel", "Cancel Flow Run")
    watched.refresh()
    assert watched.tick().stopped_reason == CANCELLED


def test_a_question_is_answered_in_its_form(page: Page, server: PrefectServer, asking: Asking) -> None:
    visit(page, server, f"runs/flow-run/{asking.flow_run.id}")
    page.get_by_role("button", name="Open menu").click()
    page.get_by_role("menuitem", name="Resume", exact=True).click()
    form = page.get_by_role("dialog")
    form.get_by_text("at most 8 runs").wait_for()
    form.get_by_label("Select Answer").click()
    page.get_by_role("option", name="approve", exact=True).click()
    form.get_by_label("Note").fill("within this week")
    with page.expect_response(lambda reply: reply.url.endswith("/resume")) as pressed:
        form.get_by_role("button", name="Resume", exact=True).click()
    assert pressed.value.ok, pressed.value.text()
    deadline = time.monotonic() + PATIENCE_S
    while not asking.state().approvals:  # a server that is busy may not have told it by the first look
        assert time.monotonic() < deadline, asking.shown()
        asking.refresh()
    (given,) = asking.state().approvals
    assert (given.granted, given.by, given.note) == (True, "Prefect", "within this week")
    assert asking.shown() == "Running"
