"""What a flow run does: a study begun or found again; what somebody stopped or paused only a person's wish undoes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State, StateType

from research.controller.interventions import request_pause, request_stop
from research.controller.options import ResearchOptions, begin_study, make_request
from research.controller.session import hold_lease
from research.errors import ResearchError, StudyBusy
from research.installation.home import Home
from research.orchestration import flow, prefect_api
from research.orchestration.deployment import UnownedStudies
from research.orchestration.flow import FlowRunExecution
from research.orchestration.prefect_api import (
    RESEARCH,
    FlowRun,
    FlowRunState,
    RequestedWork,
    SessionEnd,
    ensure_deployment,
)
from research.orchestration.server import PrefectServer
from research.orchestration.worker import skip_running
from studies import EventLog, EventType, StoreError, StudyLog, StudyState, fold
from studies.log.fold import SERVED, WORKED
from studies.log.locks import ControllerLeases, Holder
from tests.research.orchestration.shown import artifacts_of, state_of
from tests.studies.synthetic import Synthetic

STUDY = "group-size-abcd"
DROVE = SessionEnd("left", "it was driven")

Sits = Callable[..., SessionEnd]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in [name for name in os.environ if name.startswith(("AJET_", "OPENAI_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AJET_HOME", str(tmp_path))
    monkeypatch.setenv("AJET_SANDBOX", "process")
    home, form = Home.locate().prepare(), ResearchOptions(topic="group size 4 vs 8 on arith")
    asked = replace(make_request(form, lambda line: None), command=form.command(), served=True)
    with closing(EventLog(home.database)) as log:
        begin_study(home, log, STUDY, asked)
        ControllerLeases(log).take(STUDY, Holder.here(home.path)).give_back()
    return home


@pytest.fixture
def log(home: Home) -> Iterator[EventLog]:
    with closing(EventLog(home.database)) as log:
        yield log


@pytest.fixture
def sits(home: Home, log: EventLog, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> Sits:
    monkeypatch.setattr(flow.FlowRunExecution, "_drive", lambda self, study, *rest: DROVE)
    monkeypatch.setattr(flow, "LOOK_S", 0.01)

    def sit(key: str) -> SessionEnd:
        return flow.FlowRunExecution(home, log, FlowRun(client, hand_over(client, home, key))).work()

    return sit


def state(log: EventLog) -> StudyState:
    return fold(log.read(STUDY))


def taking_up(log: EventLog) -> str:
    """Return a key as the worker makes it for what it found left."""
    home = Home.locate()
    (left,) = UnownedStudies(log, home, Holder.here(home.path)).find()
    return f"{left.id}/{left.head_hash}/{uuid4().hex[:8]}"


def hand_over(client: SyncPrefectClient, home: Home, key: str) -> UUID:
    return prefect_api.schedule_resume(client, home, STUDY, key).id


def asking() -> str:
    """Return a key as `ajet study resume --detach` makes it."""
    return f"{STUDY}/{uuid4().hex[:16]}"


def test_a_study_that_was_left_is_taken_up(log: EventLog, sits: Sits) -> None:
    assert sits(taking_up(log)) == DROVE
    assert (state(log).served, state(log).resumed_count) == (True, 1)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("halt", ["stop", "pause"])
def test_what_waits_undoes_nothing_that_came_after_it_and_a_later_wish_does(
    home: Home, log: EventLog, sits: Sits, client: SyncPrefectClient, asked: bool, halt: str
) -> None:
    key = asking() if asked else taking_up(log)
    if asked:
        hand_over(client, home, key)
    assert request_stop(home, log, STUDY) if halt == "stop" else request_pause(log, STUDY, "lunch")
    assert sits(key).how == ("cancelled" if halt == "stop" else DROVE.how), "what runs is looked after"
    found = state(log)
    assert found.paused_reason == (None if halt == "stop" else "lunch")
    assert ("user" in (found.stopped_reason or "")) == (halt == "stop")
    assert sits(asking()) == DROVE
    assert (state(log).stopped_reason, state(log).paused_reason) == (None, None)


def test_a_study_that_is_left_paused_is_taken_up_and_stays_so(log: EventLog, sits: Sits) -> None:
    request_pause(log, STUDY, "lunch")
    assert sits(taking_up(log)) == DROVE
    assert state(log).paused_reason == "lunch"


def test_a_second_taking_up_lifts_no_pause_of_the_first(home: Home, log: EventLog, sits: Sits) -> None:
    key = taking_up(log)
    with hold_lease(home, log, STUDY, print):
        request_pause(log, STUDY, "lunch")
        assert sits(key).how == "concluded"
        assert state(log).paused_reason == "lunch"
        assert sits(asking()).how == "concluded"
        assert state(log).paused_reason is None


def test_a_study_that_a_terminal_took_meanwhile_is_the_terminals(log: EventLog, sits: Sits) -> None:
    key, begun = taking_up(log), {"command": ["ajet", "study", "resume"], WORKED: 0.0, SERVED: False}
    StudyLog(log, STUDY).change(lambda state: (EventType.STUDY_RESUMED, begun))
    assert sits(key).how == "cancelled"
    assert not state(log).served
    assert sits(asking()) == DROVE
    assert state(log).served


@pytest.mark.parametrize("asked", [True, False])
def test_retry_of_a_flow_run_goes_on_with_a_study_that_was_stopped_since(
    home: Home, log: EventLog, sits: Sits, client: SyncPrefectClient, asked: bool
) -> None:
    run = hand_over(client, home, key := asking() if asked else taking_up(log))
    assert request_stop(home, log, STUDY)
    assert sits(key).how == "cancelled"
    client.set_flow_run_state(run, State(type=StateType.CANCELLED), force=True)
    client.set_flow_run_state(run, State(type=StateType.SCHEDULED, name="AwaitingRetry"))  # as Prefect's page does
    assert sits(key) == DROVE
    assert state(log).stopped_reason is None


def test_a_study_that_is_still_being_stopped_goes_on_once_it_was(home: Home, log: EventLog, sits: Sits) -> None:
    ended = threading.Event()

    def stop() -> None:
        with closing(EventLog(home.database)) as own, hold_lease(home, own, STUDY, print):
            request_stop(home, own, STUDY)
            stopping.set()
            ended.wait(60.0)

    stopping = threading.Event()
    controller = threading.Thread(target=stop)
    controller.start()
    assert stopping.wait(60.0)
    threading.Timer(0.3, ended.set).start()
    assert sits(asking()) == DROVE
    controller.join()
    assert state(log).stopped_reason is None


def test_an_event_log_that_is_away_when_a_process_begins_is_waited_for(
    home: Home, log: EventLog, sits: Sits, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, why = list[str](), "the database starts again"

    def away_at_first(url: str) -> EventLog:
        opened.append(url)
        if len(opened) == 1:
            raise StoreError(why)
        return EventLog(url)

    monkeypatch.setattr(flow, "PAUSE_S", 0.0)
    monkeypatch.setattr(flow, "EventLog", away_at_first)
    flow_run = FlowRun(client, hand_over(client, home, asking()))
    assert flow._execute(home, flow_run) == DROVE
    monkeypatch.setattr(flow, "RETRY_TIMEOUT_S", -1.0)
    opened.clear()
    assert flow._execute(home, flow_run) == SessionEnd("failed", why)


RUN = UUID("051ddaab-9b8d-41c4-8083-782f3c17c0b3")


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("begun", "run", "resumed"),
    [
        pytest.param("group-size-arith-3c17c0b3", RUN, True, id="tried again"),
        pytest.param("group-size-arith-3c17c0b3", UUID(f"{str(RUN)[:28]}00000001"), False, id="of the same schedule"),
        pytest.param("group-size-arith-of-another", RUN, False, id="begun by nobody"),
    ],
)
def test_a_flow_run_goes_on_with_its_own_study_only_though_the_model_that_it_asks_for_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, run: UUID, resumed: bool
) -> None:
    gone = {"topic": "group size 4 vs 8 on arith", "model_path": "/gone/since"}
    asked = SimpleNamespace(
        id=run,
        rename=lambda topic: None,
        read_state=lambda: FlowRunState(None, None),
        read_request=lambda: RequestedWork("ajet-research", gone, datetime.now(UTC)),
    )
    synthetic = Synthetic(tmp_path, study=begun)
    synthetic.create()
    monkeypatch.setattr(FlowRunExecution, "_resume", lambda self, study, wished: SessionEnd("concluded", study))
    sitting = FlowRunExecution(Home.locate({"AJET_HOME": str(tmp_path)}), synthetic.log, cast("FlowRun", asked))
    if resumed:
        assert sitting.work() == SessionEnd("concluded", begun)
        return
    with pytest.raises(ResearchError, match="/gone/since"):
        sitting.work()


def test_a_stop_that_takes_too_long_is_said(
    home: Home, log: EventLog, sits: Sits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "STOPPING_S", 0.0)
    with hold_lease(home, log, STUDY, print):
        request_stop(home, log, STUDY)
        with pytest.raises(StudyBusy, match="drives it"):
            sits(asking())
    assert "user" in (state(log).stopped_reason or "")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_what_the_flow_run_says(
    client: SyncPrefectClient, server: PrefectServer, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file has its name")
    run = hand_over(client, Home(tmp_path, ""), asking())
    named = {"AJET_HOME": str(taken), "PREFECT__FLOW_RUN_ID": str(run), "PREFECT_API_URL": server.api}
    subprocess.run([sys.executable, "-m", "research.orchestration.flow"], env={**os.environ, **named}, check=True)
    found = state_of(client.read_flow_run(run))
    assert found.is_crashed(), "the worker hands it over again"
    assert "was begun: expected" in str(found.message)


def test_a_flow_run_that_is_refused_is_named_by_its_topic_says_why_in_its_log_and_has_one_artifact_of_a_key(
    home: Home, log: EventLog, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow.FlowRunExecution, "_drive", lambda self, study, *rest: DROVE)
    asked = {"topic": "group size 4 vs 8 on arith", "env": "nowhere"}
    made = client.create_flow_run_from_deployment(ensure_deployment(client, home, RESEARCH).id, parameters=asked).id
    flow_run = FlowRun(client, made)
    with pytest.raises(ResearchError) as refused:
        flow.FlowRunExecution(home, log, flow_run).work()
    assert client.read_flow_run(made).name == asked["topic"]
    for data in ("once", "sent again, as the server was busy"):
        flow_run.publish("a-plan", "markdown", data, "what is planned")
    assert artifacts_of(client, made)["a-plan"]["data"] == data
    flow_run.end(SessionEnd("failed", str(refused.value)))
    (line,) = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[made])))
    assert (line.level, line.message) == (40, str(refused.value))


async def test_a_flow_run_that_is_begun_again_while_it_ends_is_left_for_the_next_look() -> None:
    """Prefect's worker ends of one that still holds a place in its limit."""
    ending, fresh = (SimpleNamespace(flow_run=SimpleNamespace(id=number)) for number in (1, 2))
    limiter = SimpleNamespace(statistics=lambda: SimpleNamespace(borrowers=(1,)))

    async def submit(worker: object, found: list[object]) -> list[object]:
        return found

    begin = skip_running(submit)
    assert await begin(SimpleNamespace(_limiter=limiter), flow_run_response=[ending, fresh]) == [fresh]
    assert await begin(SimpleNamespace(_limiter=None), flow_run_response=[ending]) == [ending]
