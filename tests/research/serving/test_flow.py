"""What a flow run does: a study begun or taken up again; what somebody stopped or paused only a wish undoes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import Pause, TerminationSignal
from prefect.states import AwaitingRetry, Running, Scheduled

from research.controller.interventions import answer_question, request_pause, request_stop
from research.controller.options import ResearchOptions, make_request
from research.controller.session import begin_study, hold_lease
from research.installation.home import Home
from research.orchestration import deployment, flow, prefect_api, prefect_command
from research.orchestration.deployment import hand_over
from research.orchestration.flow import FlowRunExecution
from research.orchestration.prefect_api import (
    LEFT,
    RESCHEDULED,
    FlowRun,
    Question,
    SessionEnd,
    create_flow_run,
    ensure_deployment,
    find_flow_run,
    read_note,
)
from research.orchestration.projection import ControllerSession, question_of
from studies import EventLog, EventType, LeaseHeld, StoreError, StudyLog, StudyState, fold
from studies.log.fold import SERVED, WORKED
from studies.log.locks import ControllerLeases, Holder
from studies.records.design import NoisePlan
from studies.records.verdict import ApprovalRequest
from swarm.errors import InvalidRequest
from tests.research.orchestration.shown import artifacts_of, state_of
from tests.studies.synthetic import Synthetic, base_job

STUDY = "group-size-abcd"
DROVE = SessionEnd("concluded", "it was driven")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in [name for name in os.environ if name.startswith(("AJET_", "OPENAI_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AJET_HOME", str(tmp_path))
    monkeypatch.setenv("AJET_SANDBOX", "process")
    home, form = Home.locate().prepare(), ResearchOptions(topic="group size 4 vs 8 on arith")
    home.prefect.mkdir(exist_ok=True)
    request = replace(make_request(form, lambda line: None), command=form.command(), served=True)
    with closing(EventLog(home.database)) as log:
        begin_study(home, log, STUDY, request)
        ControllerLeases(log).take(STUDY, Holder.here(home.path)).give_back()
    return home


@pytest.fixture
def log(home: Home) -> Iterator[EventLog]:
    with closing(EventLog(home.database)) as log:
        yield log


class Line:
    """Puts the study's flow run in line, and does what its process does, but for driving the study."""

    def __init__(self, home: Home, log: EventLog, client: SyncPrefectClient) -> None:
        self.home = home
        self.log = log
        self.client = client

    def put(self, by: str) -> UUID:
        if by == "person":
            return hand_over(self.client, self.home, self.log, STUDY)
        again: State[Any] = AwaitingRetry(message=RESCHEDULED)
        if (run := find_flow_run(self.client, self.home, STUDY)) is None:
            return create_flow_run(self.client, self.home, self.state(), again).id
        self.client.set_flow_run_state(run.id, again, force=True)
        return run.id

    def work(self) -> SessionEnd | None:
        run = find_flow_run(self.client, self.home, STUDY)
        assert run is not None
        return FlowRunExecution(self.home, self.log, FlowRun(self.client, run.id)).work(run.parameters)

    def state(self) -> StudyState:
        return fold(self.log.read(STUDY))


@pytest.fixture
def line(home: Home, log: EventLog, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(FlowRunExecution, "_drive", lambda self, study, *rest: DROVE)
    monkeypatch.setattr(flow, "LOOK_S", 0.01)
    monkeypatch.setattr(deployment, "is_registered", lambda client, home: True)
    monkeypatch.setattr(flow, "ENDING_S", 0.05)
    return Line(home, log, client)


def test_a_study_that_was_left_is_taken_up_in_its_own_flow_run(line: Line) -> None:
    run = line.put("worker")
    assert line.work() == DROVE
    assert (line.state().served, line.state().resumed_count) == (True, 1)
    assert line.put("worker") == line.put("person") == run


@pytest.mark.parametrize("by", ["person", "worker"])
@pytest.mark.parametrize("halt", ["stop", "pause"])
def test_what_waits_undoes_nothing_that_came_after_it_and_a_later_wish_does(line: Line, by: str, halt: str) -> None:
    line.put(by)
    assert request_stop(line.home, line.log, STUDY) if halt == "stop" else request_pause(line.log, STUDY, "lunch")
    assert line.work().how == ("cancelled" if halt == "stop" else DROVE.how)  # what runs is looked after
    halted = line.state()
    assert halted.paused_reason == (None if halt == "stop" else "lunch")
    assert ("user" in (halted.stopped_reason or "")) == (halt == "stop")
    line.put("person")
    assert line.work() == DROVE
    assert (line.state().stopped_reason, line.state().paused_reason) == (None, None)


def ask(line: Line) -> Question:
    plan = NoisePlan(environment="arith", job=base_job(), seeds=(1, 2), metric_key="success", episodes=8)
    question = ApprovalRequest(
        study=STUDY, number=1, stage="noise", lock=plan.hash(), runs=2, seconds=9.0, left_s=9.0, would="A/A runs"
    )
    record = StudyLog(line.log, STUDY)
    assert record.state().open_question is None
    record.append(EventType.NOISE_PLANNED, {"plan": plan.model_dump(mode="json"), "hash": plan.hash()})
    asked = {"question": question.model_dump(mode="json"), "digest": question.hash()}
    record.append(EventType.APPROVAL_ASKED, asked)
    found = question_of(line.state())
    assert found is not None
    return found


@pytest.mark.parametrize("where", ["form", "terminal"])
def test_a_denial_of_a_suspended_study_stops_it_though_the_form_puts_it_in_line(line: Line, where: str) -> None:
    run = line.put("worker")
    question = ask(line)
    FlowRun(line.client, run).end(SessionEnd("rests", "asks", question))
    line.client.resume_flow_run(run, run_input={"answer": "deny"} if where == "form" else {})
    if where == "terminal":  # while the run that was resumed unread waits for a place
        answer_question(StudyLog(line.log, STUDY), question.digest, "command", granted=False)
    assert line.work().how == "cancelled"
    assert "denied" in str(line.state().stopped_reason)
    line.put("person")
    assert line.work() == DROVE
    assert line.state().stopped_reason is None


def test_a_pause_while_a_process_waits_for_the_lease_came_after_the_wish(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = FlowRunExecution._take_lease

    def take_slowly(self: FlowRunExecution, *what: Any) -> Any:
        request_pause(line.log, STUDY, "lunch")
        return take(self, *what)

    monkeypatch.setattr(FlowRunExecution, "_take_lease", take_slowly)
    line.put("person")
    assert line.work() == DROVE
    assert line.state().paused_reason == "lunch"


@pytest.mark.parametrize(
    ("by", "states"),
    [
        pytest.param(
            "person", (Running(), AwaitingRetry(), AwaitingRetry(message=LEFT), Scheduled(name="Late")), id="leaves"
        ),
        *(
            pytest.param("worker", (State(type=before), AwaitingRetry()), id=f"killed {before.value}")
            for before in (StateType.RUNNING, StateType.PAUSED, StateType.PENDING)
        ),
    ],
)
def test_a_process_that_leaves_with_its_worker_wishes_nothing(
    line: Line, by: str, states: tuple[State[Any], ...]
) -> None:
    run = FlowRun(line.client, line.put(by))
    before = run.request_time()
    assert (before is None) == (by == "worker")
    for state in states:
        run.set(state)
    assert run.request_time() == before
    run.set(AwaitingRetry(message="Retry from the UI"))
    after = run.request_time()
    assert after is not None
    assert before is None or after > before


def test_a_worker_that_leaves_lifts_no_pause(line: Line) -> None:
    """Its executor puts the flow run back in line a moment before it asks the process to leave."""
    run = line.put("worker")
    session = ControllerSession(line.home, line.log, line.state(), line.client, executed=True)
    line.client.set_flow_run_state(run, cast("State[Any]", Running()), force=True)
    session.refresh()
    request_pause(line.log, STUDY, "lunch")
    session.refresh()
    assert state_of(line.client.read_flow_run(run)).name == "Paused"
    line.client.set_flow_run_state(run, cast("State[Any]", AwaitingRetry()), force=True)
    session.refresh()
    assert line.state().paused_reason == "lunch"
    assert state_of(line.client.read_flow_run(run)).name == "AwaitingRetry"


@pytest.mark.parametrize("by", ["person", "worker"])
def test_a_study_that_another_controller_drives_is_its_and_a_wish_lifts_its_pause(line: Line, by: str) -> None:
    request_pause(line.log, STUDY, "lunch")
    line.put(by)
    with hold_lease(line.home, line.log, STUDY, print):
        assert line.work() is None
    assert line.state().paused_reason == (None if by == "person" else "lunch")


def test_a_study_that_a_terminal_took_meanwhile_is_the_terminals(line: Line) -> None:
    line.put("worker")
    begun = {"command": ["ajet", "study", "resume"], WORKED: 0.0, SERVED: False}
    StudyLog(line.log, STUDY).change(lambda state: (EventType.STUDY_RESUMED, begun))
    assert line.work().how == "cancelled"
    assert not line.state().served
    line.put("person")
    assert line.work() == DROVE
    assert line.state().served


def test_a_study_that_is_still_being_stopped_goes_on_once_it_was(line: Line) -> None:
    ended, stopping = threading.Event(), threading.Event()

    def stop() -> None:
        with closing(EventLog(line.home.database)) as own, hold_lease(line.home, own, STUDY, print):
            request_stop(line.home, own, STUDY)
            stopping.set()
            ended.wait(60.0)

    controller = threading.Thread(target=stop)
    controller.start()
    assert stopping.wait(60.0)
    line.put("person")
    threading.Timer(0.3, ended.set).start()
    assert line.work() == DROVE
    controller.join()
    assert line.state().stopped_reason is None


def test_a_stop_that_takes_too_long_is_said(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "STOPPING_S", 0.0)
    with hold_lease(line.home, line.log, STUDY, print):
        request_stop(line.home, line.log, STUDY)
        line.put("person")
        with pytest.raises(LeaseHeld, match="drives it"):
            line.work()


def test_a_form_that_names_a_study_takes_it_over_and_closes_its_flow_run(line: Line, client: SyncPrefectClient) -> None:
    older = line.put("worker")
    deployment = ensure_deployment(client, line.home).id
    made = client.create_flow_run_from_deployment(deployment, parameters={"study": STUDY}).id
    assert FlowRunExecution(line.home, line.log, FlowRun(client, made)).work({"study": STUDY[:9]}) == DROVE
    assert read_note(line.home, STUDY) == made
    assert state_of(client.read_flow_run(older)).is_crashed()


def test_an_event_log_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_api, "AGAIN_S", 0.0)
    assert prefect_api.retry(Mock(side_effect=[StoreError("away"), "a log"]), print) == "a log"


RUN = UUID("051ddaab-9b8d-41c4-8083-782f3c17c0b3")


@pytest.mark.parametrize(
    ("begun", "run", "resumed"),
    [
        pytest.param("group-size-arith-3c17c0b3", RUN, True, id="tried again"),
        pytest.param("group-size-arith-3c17c0b3", UUID(f"{str(RUN)[:28]}00000001"), False, id="same schedule"),
        pytest.param("group-size-arith-of-another", RUN, False, id="begun by nobody"),
    ],
)
def test_a_flow_run_goes_on_with_its_own_study_only_though_the_model_that_it_asks_for_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, run: UUID, resumed: bool
) -> None:
    gone = {"topic": "group size 4 vs 8 on arith", "model_path": "/gone/since"}
    synthetic = Synthetic(tmp_path, study=begun)
    synthetic.create()
    monkeypatch.setattr(FlowRunExecution, "_resume", lambda self, study: SessionEnd("concluded", study))
    flow_run = cast("FlowRun", SimpleNamespace(id=run, rename=lambda topic: None))
    execution = FlowRunExecution(Home.locate({"AJET_HOME": str(tmp_path)}), synthetic.log, flow_run)
    if resumed:
        assert execution.work(gone) == SessionEnd("concluded", begun)
        return
    with pytest.raises(InvalidRequest, match="/gone/since"):
        execution.work(gone)


def test_a_flow_run_that_is_refused_is_named_by_its_topic_says_why_in_its_log_and_has_one_artifact_of_a_key(
    home: Home, log: EventLog, client: SyncPrefectClient
) -> None:
    parameters = {"topic": "group size 4 vs 8 on arith", "env": "nowhere", "job": None, "reward": ""}
    made = client.create_flow_run_from_deployment(ensure_deployment(client, home).id, parameters=parameters).id
    flow_run = FlowRun(client, made)
    end = flow._work(FlowRunExecution(home, log, flow_run), parameters)
    assert end.how == "failed"
    assert client.read_flow_run(made).name == parameters["topic"]
    for data in ("once", "sent again"):
        flow_run.publish("a-plan", "markdown", data, "what is planned")
    assert artifacts_of(client, made)["a-plan"]["data"] == data
    flow_run.end(end)
    (line,) = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[made])))
    assert (line.level, line.message) == (40, end.message)


@pytest.mark.parametrize(
    ("error", "how", "why"),
    [
        pytest.param(
            RuntimeError("two\nlines"), "failed", "RuntimeError: two lines (at test_flow.py:", id="unexpected"
        ),
        # Whoever crashed is taken up again; who failed before anything happened waits for a person.
        pytest.param(httpx.ConnectError("refused"), "left", "Prefect did not", id="server away"),
    ],
)
def test_an_error_of_a_process_is_one_line(
    line: Line, monkeypatch: pytest.MonkeyPatch, error: Exception, how: str, why: str
) -> None:
    def fail(self: object, study: str) -> SessionEnd:
        raise error

    monkeypatch.setattr(FlowRunExecution, "_resume", fail)
    execution = FlowRunExecution(line.home, line.log, cast("FlowRun", SimpleNamespace(id=RUN)))
    end = flow._work(execution, {"study": STUDY})
    assert (end.how, end.message.startswith(why), "\n" in end.message) == (how, True, False)


LEAVES = SessionEnd("left", LEFT)


@pytest.mark.parametrize(
    ("before", "end", "terminated", "shown"),
    [
        pytest.param(StateType.RUNNING, DROVE, False, "Completed", id="ends"),
        pytest.param(StateType.RUNNING, SessionEnd("budget", "900 s"), False, "Budget used up", id="budget"),
        pytest.param(StateType.CANCELLING, SessionEnd("cancelled", "enough"), False, "Cancelled", id="saw Cancel"),
        pytest.param(StateType.CANCELLING, SessionEnd("cancelled", "enough"), True, "Cancelling", id="its executor's"),
        pytest.param(StateType.SCHEDULED, DROVE, False, "Scheduled", id="tried again meanwhile"),
        pytest.param(StateType.SCHEDULED, LEAVES, True, "AwaitingRetry", id="leaves"),
        pytest.param(StateType.RUNNING, LEAVES, True, "Running", id="killed"),
        pytest.param(StateType.RUNNING, SessionEnd("rests", "lunch"), False, "Suspended", id="rests"),
    ],
)
def test_how_a_process_leaves_its_flow_run(
    line: Line, before: StateType, end: SessionEnd, terminated: bool, shown: str
) -> None:
    run = FlowRun(line.client, line.put("worker"))
    for state in (Running(), State(type=before)):
        run.set(cast("State[Any]", state))
    begun = run.read().model_copy(update={"state": Running()})
    with pytest.raises(TerminationSignal if terminated else Pause):  # what the engine sees
        flow._report_end(run, begun, end, terminated=terminated)
    assert state_of(run.read()).name == shown


@pytest.mark.parametrize("now", [StateType.CANCELLING, StateType.RUNNING])
async def test_an_executor_obeys_a_cancel_of_now_and_none_of_the_last_minute(now: StateType) -> None:
    cancelled = list[object]()

    async def read(identity: UUID) -> SimpleNamespace:
        return SimpleNamespace(state=State(type=now))

    async def cancel(flow_run: object) -> None:
        cancelled.append(flow_run)

    manager = cast("Any", SimpleNamespace(_client=SimpleNamespace(read_flow_run=read), cancel=cancel))
    await prefect_command.cancel_if_asked(manager, RUN)
    assert bool(cancelled) == (now is StateType.CANCELLING)
