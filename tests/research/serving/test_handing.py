"""Flow runs of studies: handed over by a person, settled by the worker where nobody drives, told anew after a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import AwaitingRetry, Crashed, Failed, Running, Scheduled, Suspended

from research.controller.interventions import request_continue, request_pause, request_stop
from research.errors import NotReady
from research.installation.home import Home
from research.orchestration import deployment as handing
from research.orchestration import prefect_api
from research.orchestration.deployment import (
    BEGINNING_S,
    CRASHED_S,
    MOST_FRUITLESS,
    ProcessPool,
    StudyFlowRuns,
    hand_over,
    overrides_stop,
    register,
)
from research.orchestration.prefect_api import (
    ENTRYPOINT,
    RESCHEDULED,
    FlowRun,
    SessionEnd,
    UserAction,
    create_flow_run,
    find_flow_run,
    installation_name,
    retry,
)
from research.orchestration.projection import question_of
from research.orchestration.server import PrefectServer
from research.orchestration.supervision import flow_run_process
from studies import EventLog, EventType, StudyLog, StudyState, fold
from studies.log.fold import SERVED, WORKED
from tests.research.orchestration.shown import CANCELLED, PAUSED, Asking, runs_of, state_of

STUDY = "s-left"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.locate({"AJET_HOME": str(tmp_path)}).prepare()
    home.prefect.mkdir()
    return home


Telling = Callable[[Home], str]


@pytest.fixture
def tell(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> Telling:
    """Tell the server what a worker does, and return its place; an automation would act on other tests' flow runs."""
    monkeypatch.setattr(client, "read_automations_by_name", lambda name: [name])

    def tell(home: Home) -> str:
        register(client, home, ProcessPool(installation_name(home), home.path, 2), limits=True)
        return installation_name(home)

    return tell


class Left:
    """A study of the worker's that nobody drives, and its flow run in whatever state."""

    def __init__(self, home: Home, client: SyncPrefectClient, log: EventLog) -> None:
        self.home = home
        self.client = client
        self.log = log
        self.now = 0.0
        self.flow_runs = StudyFlowRuns(home, log, print, clock=lambda: self.now)
        home.study(STUDY).mkdir(parents=True)
        empty = {name: {} for name in ("planner", "settings", "versions", "machine")}
        StudyLog(log, STUDY).append(EventType.STUDY_CREATED, {**empty, "topic": "t", "command": [], SERVED: True})

    def append(self, kind: EventType, payload: dict[str, Any]) -> None:
        StudyLog(self.log, STUDY).change(lambda state: (kind, payload))

    def study(self) -> StudyState:
        return fold(self.log.read(STUDY))

    def begin(self, state: State[Any]) -> UUID:
        run = create_flow_run(self.client, self.home, self.study(), Scheduled())
        self.client.set_flow_run_state(run.id, state, force=True)
        return run.id

    def look(self, *at: float) -> str:
        """Look at these times; return the state of the study's flow run."""
        for self.now in at:
            self.flow_runs.settle(self.client)
        return str(self.state.name)

    @property
    def run(self) -> UUID:
        run = find_flow_run(self.client, self.home, STUDY)
        assert run is not None
        return run.id

    @property
    def state(self) -> State[Any]:
        run = find_flow_run(self.client, self.home, STUDY)
        assert run is not None
        return state_of(run)


@pytest.fixture
def left(home: Home, client: SyncPrefectClient) -> Iterator[Left]:
    with closing(EventLog(home.database)) as log:
        yield Left(home, client, log)


def named(name: str) -> State[Any]:
    return State[Any](type=StateType(name.upper()))


@pytest.mark.parametrize(
    ("state", "least_s"),
    [(Crashed(), CRASHED_S), (named("Running"), CRASHED_S), (named("Pending"), BEGINNING_S)],
    ids=["crashed", "no process", "taken"],
)
def test_a_flow_run_whose_process_is_gone_is_put_back_in_line_after_a_while(
    left: Left, state: State[Any], least_s: float
) -> None:
    run = left.begin(state)
    assert left.look(0.0, least_s - 1.0) == (state.name or state.type.value.capitalize())
    (left.home.prefect / "sittings").mkdir()
    with flow_run_process(left.home, run):
        assert left.look(least_s + 1.0) != "AwaitingRetry"  # it has a process
    assert (left.look(least_s + 2.0), left.state.message) == ("AwaitingRetry", RESCHEDULED)
    state_id = left.state.id
    left.look(3 * BEGINNING_S)
    assert left.state.id == state_id  # it waits for a worker
    assert len(runs_of(left.client, STUDY)) >= 1


def test_one_that_crashes_again_and_again_is_left_to_a_person(left: Left) -> None:
    run = left.begin(Crashed())
    for _ in range(MOST_FRUITLESS - 1):
        assert left.look(left.now, left.now + CRASHED_S) == "AwaitingRetry"
        left.client.set_flow_run_state(run, Crashed(), force=True)
    assert left.look(left.now, left.now + CRASHED_S) == "Crashed"
    begun = {"command": [], WORKED: 0.0, SERVED: True}
    left.append(EventType.STUDY_RESUMED, begun)
    assert left.look(left.now + 1.0) == "AwaitingRetry"  # something happened to the study
    for _ in range(MOST_FRUITLESS):
        left.append(EventType.STUDY_RESUMED, begun)
    left.client.set_flow_run_state(run, Crashed(), force=True)
    assert left.look(left.now, left.now + CRASHED_S) == "Crashed"  # it is begun and nothing comes of it


def test_one_that_failed_after_some_work_is_tried_again_and_one_that_was_refused_is_not(left: Left) -> None:
    run = left.begin(Failed())
    assert left.look(0.0, CRASHED_S) == "Failed"
    left.append(EventType.STUDY_RESUMED, {"command": [], WORKED: 0.0, SERVED: True})
    left.client.set_flow_run_state(run, Failed(), force=True)
    assert left.look(CRASHED_S, 2 * CRASHED_S) == "AwaitingRetry"
    left.client.set_flow_run_state(run, Failed(), force=True)
    assert left.look(3 * CRASHED_S, 4 * CRASHED_S) == "Failed"  # it was refused since, and would be for ever


@pytest.mark.parametrize("cancel", ["Cancelled", "Cancelling"])
def test_a_cancel_that_no_process_lived_to_see_stops_the_study(left: Left, cancel: str) -> None:
    left.begin(named("Running"))
    left.client.set_flow_run_state(left.run, named(cancel), force=True)
    assert left.look(0.0) == cancel
    assert left.look(BEGINNING_S) == "Cancelled"
    assert left.study().stopped_reason == CANCELLED


def test_a_worker_that_is_killed_while_it_stops_a_study_leaves_its_trainings_to_the_next(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()
    monkeypatch.setattr(handing, "attempts_running", lambda state: iter([state]))
    monkeypatch.setattr(handing, "end_attempts", lambda home, log, record, note: ended.append(record.study))
    left.begin(named("Cancelled"))
    request_stop(left.home, left.log, STUDY, CANCELLED)
    left.look(0.0)
    left.look(1.0)
    assert ended == [STUDY]


@pytest.mark.parametrize("taken", ["Pending", "Running"])
def test_a_form_that_a_worker_took_and_left_before_it_had_a_process_is_put_back_in_line_a_few_times(
    left: Left, tell: Telling, taken: str
) -> None:
    place = tell(left.home)
    deployment = left.client.read_deployment_by_name(f"ajet-research/research@{place}")
    form = {"topic": "group size 4 vs 8"}
    (left.home.prefect / "sittings").mkdir()
    run = left.client.create_flow_run_from_deployment(deployment.id, parameters=form, tags=["ajet"]).id
    of_a_terminal = left.begin(Running())
    shown = list[str]()
    for number in range(MOST_FRUITLESS + 1):
        left.client.set_flow_run_state(run, named(taken), force=True)
        for left.now in (number * 1000.0, number * 1000.0 + BEGINNING_S - 1.0):
            left.flow_runs._put_back(left.client)
            assert state_of(left.client.read_flow_run(run)).name == taken  # its process may be about to begin
        with flow_run_process(left.home, run):
            left.flow_runs._put_back(left.client)
        left.now += 1.0
        left.flow_runs._put_back(left.client)
        assert state_of(left.client.read_flow_run(run)).name == taken  # it had a process until a moment ago
        left.now += BEGINNING_S
        left.flow_runs._put_back(left.client)
        shown.append(str(state_of(left.client.read_flow_run(run)).name))
    assert shown == ["AwaitingRetry"] * MOST_FRUITLESS + ["Crashed"]
    assert state_of(left.client.read_flow_run(of_a_terminal)).name == "Running"


def test_a_suspension_of_prefects_pages_becomes_a_pause_that_lasts_until_it_is_lifted(left: Left) -> None:
    left.begin(Suspended(timeout_seconds=300))
    assert left.look(0.0) == "Suspended"
    assert left.study().paused_reason == PAUSED
    until, lasting = left.state.state_details.pause_timeout, left.state.id
    assert until is not None
    assert until.timestamp() > datetime.now(UTC).timestamp() + 365 * 86_400
    left.look(1.0)
    assert left.state.id == lasting
    request_continue(left.log, STUDY)  # in a terminal
    assert left.look(2.0) == "AwaitingRetry"


def test_a_flow_run_of_a_study_that_is_over_says_so(left: Left) -> None:
    run = left.begin(Suspended())
    request_stop(left.home, left.log, STUDY)
    assert (left.look(0.0), left.state.message) == ("Cancelled", "stopped by the user")
    left.client.set_flow_run_state(run, Running(), force=True)
    left.flow_runs = StudyFlowRuns(left.home, left.log, print, clock=lambda: left.now)
    assert left.look(0.0) == "Running"  # its process may be about to begin
    assert left.look(CRASHED_S) == "Cancelled"


def test_a_study_whose_flow_run_the_server_lost_gets_a_new_one_once_the_worker_is_known_there(
    left: Left, tell: Telling
) -> None:
    left.client.delete_flow_run(left.begin(Running()))
    left.flow_runs.settle(left.client)
    assert find_flow_run(left.client, left.home, STUDY) is None  # no worker would take it from this deployment
    tell(left.home)
    assert (left.look(0.0), left.state.message) == ("Scheduled", RESCHEDULED)
    run, flow_run = left.client.read_flow_run(left.run), FlowRun(left.client, left.run)
    assert (run.work_pool_name, run.work_queue_id is None) == (installation_name(left.home), False)
    assert flow_run.request_time() is None  # nobody asked for it


def test_a_flow_run_of_a_server_that_answered_too_late_is_not_made_twice(
    left: Left, tell: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(left.home)
    create = left.client.create_flow_run_from_deployment

    def answer_late(*given: Any, **named: Any) -> None:
        create(*given, **named)
        raise httpx.ReadTimeout("slow")

    with monkeypatch.context() as slow:
        slow.setattr(left.client, "create_flow_run_from_deployment", answer_late)
        with pytest.raises(httpx.ReadTimeout):
            left.flow_runs.settle(left.client)
    before = [run.id for run in runs_of(left.client, STUDY)]
    assert left.look(0.0) == "Scheduled"
    assert [run.id for run in runs_of(left.client, STUDY)] == before
    assert left.run in before


def test_studies_of_an_earlier_version_that_are_over_are_looked_at_once(left: Left) -> None:
    request_stop(left.home, left.log, STUDY)
    assert [state.id for state in left.flow_runs._unowned.find()] == [STUDY]
    left.flow_runs.settle(left.client)
    assert list(left.flow_runs._unowned.find()) == []


def test_a_suspended_question_that_is_answered_in_a_terminal_goes_on(asking: Asking, client: SyncPrefectClient) -> None:
    home, log = asking.bench.home, EventLog(asking.bench.home.database)
    home.prefect.mkdir(exist_ok=True)
    flow_runs, flow_run = StudyFlowRuns(home, log, print), FlowRun(client, asking.flow_run.id)
    flow_run.end(SessionEnd("rests", "it waits", question_of(asking.state())))
    flow_runs._settle(client, asking.state())
    assert (asking.shown(), bool(asking.keys)) == ("Suspended", True)
    asking.bench.answer(granted=True)
    flow_runs._settle(client, asking.state())
    assert asking.shown() == "AwaitingRetry"


@pytest.fixture
def give(
    home: Home, server: PrefectServer, tell: Telling, client: object, monkeypatch: pytest.MonkeyPatch
) -> handing.ScheduleStudy:
    tell(home)
    monkeypatch.setattr(handing, "require_worker", lambda home: None)
    monkeypatch.setattr(handing, "ensure_server", lambda folder: server)
    monkeypatch.setattr(handing, "client_environment", lambda folder: {})  # as the client of these tests has it
    return handing.worker_scheduler(home)


def run_at(address: str) -> UUID:
    return UUID(address.rpartition("/")[2])


def test_a_study_given_again_is_the_flow_run_that_waits_and_the_same_once_that_is_over(
    left: Left, give: handing.ScheduleStudy
) -> None:
    run = run_at(give(STUDY))
    assert left.client.read_flow_run(run).parameters == {"study": STUDY}
    waiting = left.state.id
    assert (run_at(give(STUDY)), left.state.id) == (run, waiting)
    left.client.set_flow_run_state(run, named("Cancelled"), force=True)
    assert (run_at(give(STUDY)), left.state.name) == (run, "Scheduled")


@pytest.mark.parametrize("by", ["person", "worker"])
def test_one_that_waits_since_before_a_pause_is_put_in_line_anew_which_lifts_it(
    left: Left, give: handing.ScheduleStudy, by: str
) -> None:
    run = left.begin(AwaitingRetry(message=RESCHEDULED) if by == "worker" else AwaitingRetry())
    waiting = left.state.id
    assert (run_at(give(STUDY)), left.state.id) == (run, waiting)  # it goes on with the study as it is
    request_pause(left.log, STUDY, "lunch")
    give(STUDY)
    assert overrides_stop(left.log, STUDY, FlowRun(left.client, run).request_time())


def test_whoever_goes_on_with_a_study_while_the_worker_stops_it_for_a_cancel_wished_that_later(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reason = left.begin(named("Cancelled")), prefect_api.action_reason

    def go_on() -> None:
        with closing(EventLog(left.home.database)) as log:
            hand_over(left.client, left.home, log, STUDY)

    def stop_slowly(action: UserAction) -> str:
        person.start()
        person.join(1.0)
        assert left.state.is_cancelled()  # whoever hands it over waits
        return reason(action)

    person = threading.Thread(target=go_on)
    monkeypatch.setattr(prefect_api, "action_reason", stop_slowly)
    left.look(0.0)
    person.join(60.0)
    assert left.state.is_scheduled()
    assert overrides_stop(left.log, STUDY, FlowRun(left.client, run).request_time())


def test_a_server_that_does_not_take_it_is_one_line_with_the_way_on(
    home: Home, give: handing.ScheduleStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing, "ensure_server", lambda folder: PrefectServer("http://127.0.0.1:9", reused=True))
    with pytest.raises(NotReady, match="resume s-1 --detach") as refused:
        handing.worker_scheduler(home)("s-1")
    assert "\n" not in refused.value.message


@pytest.mark.slow
def test_what_a_worker_tells_the_server_stays_where_a_study_is_shown_at_the_same_time(
    left: Left, client: SyncPrefectClient, tell: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = client.read_deployment_by_name

    def overtaken(name: str) -> DeploymentResponse:
        monkeypatch.setattr(client, "read_deployment_by_name", read)
        with pytest.raises(ObjectNotFound) as missing:
            read(name)
        tell(left.home)  # between the look for a deployment and making one
        raise missing.value

    monkeypatch.setattr(client, "read_deployment_by_name", overtaken)
    run = client.read_flow_run(left.begin(Running()))
    assert run.deployment_id is not None
    deployment = client.read_deployment(run.deployment_id)
    assert deployment.work_pool_name is not None
    create = partial(client.create_flow_run_from_deployment, deployment.id)
    pool = client.read_work_pool(deployment.work_pool_name)
    assert pool.concurrency_limit == 2
    for limits, most in ((False, 2), (True, 4)):
        register(client, left.home, ProcessPool(pool.name, left.home.path, 4), limits=limits)
        assert client.read_work_pool(pool.name).concurrency_limit == most
    assert "research.orchestration.prefect_command" in pool.base_job_template["job_configuration"]["command"]
    for name, value in (("command", "touch /tmp/x"), ("env", {"PYTHONPATH": "/tmp"}), ("working_dir", "/tmp")):
        with pytest.raises(PrefectHTTPStatusError) as refused:
            retry(partial(create, parameters={"study": STUDY}, job_variables={name: value}), print)
        assert refused.value.response.status_code == 422


def test_installations_that_share_a_server_have_pools_and_deployments_of_their_own(
    left: Left, tmp_path: Path, client: SyncPrefectClient, tell: Telling
) -> None:
    other = Home.locate({"AJET_HOME": str(tmp_path / "other")}).prepare()
    other.prefect.mkdir()
    mine, others = tell(left.home), tell(other)
    assert mine != others
    runs = [create_flow_run(client, at, left.study(), Scheduled()) for at in (left.home, other)]
    assert [run.work_pool_name for run in runs] == [mine, others]
    assert runs[0].deployment_id != runs[1].deployment_id


@pytest.mark.parametrize("wrong", [{"budget": "soon"}, {"looks": 50}, {"colour": "red"}])
def test_a_form_that_is_wrong_is_refused_by_the_server(
    home: Home, client: SyncPrefectClient, tell: Telling, wrong: dict[str, Any]
) -> None:
    deployment = client.read_deployment_by_name(f"ajet-research/research@{tell(home)}")
    with pytest.raises(PrefectHTTPStatusError, match=next(iter(wrong))):
        client.create_flow_run_from_deployment(deployment.id, parameters={"topic": "group size 4 vs 8", **wrong})


def test_a_worker_of_another_pool_keeps_a_schedule(home: Home, client: SyncPrefectClient, tell: Telling) -> None:
    place = tell(home)
    deployment = client.read_deployment_by_name(f"ajet-research/research@{place}")
    yearly = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(days=365)), active=False)
    (made,) = client.create_deployment_schedules(deployment.id, [yearly])
    client.update_deployment(deployment.id, DeploymentUpdate(entrypoint="somebody.elses.flow"))
    tell(home)
    assert client.read_deployment(deployment.id).entrypoint == ENTRYPOINT
    register(client, home, ProcessPool(f"{place}-other", home.path.parent, 1), limits=True)
    assert client.read_deployment(deployment.id).work_pool_name == f"{place}-other"
    assert [schedule.id for schedule in client.read_deployment_schedules(deployment.id)] == [made.id]
