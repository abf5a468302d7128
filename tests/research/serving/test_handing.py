"""Handing a study over, by a person or the worker: to a flow run that waits, else to one of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Pending

from research.controller.interventions import request_pause, request_stop
from research.errors import NotReady
from research.installation.home import Home
from research.orchestration import deployment as handing
from research.orchestration import worker
from research.orchestration.deployment import (
    BEGINNING_S,
    MOST_FRUITLESS,
    CancelledWhileWaiting,
    ProcessPool,
    StalledFlowRuns,
    UnownedStudies,
    overrides_stop,
    register,
    reschedule_or_stop,
    schedule_once,
)
from research.orchestration.prefect_api import connect, installation_name, request_time, retry, schedule_resume
from research.orchestration.server import PrefectServer
from research.orchestration.supervision import flow_run_process
from studies import EventLog, EventType, StudyLog, fold
from studies.log.fold import SERVED
from studies.log.locks import Holder
from tests.research.orchestration.shown import CANCELLED, runs_of, state_of


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate({"AJET_HOME": str(tmp_path)}).prepare()


Telling = Callable[[Home], str]


@pytest.fixture
def tell(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> Telling:
    """Tell the server what a worker does, and return its place; an automation would act on other tests' flow runs."""
    monkeypatch.setattr(client, "read_automations_by_name", lambda name: [name])

    def told(home: Home) -> str:
        register(client, home, ProcessPool(installation_name(home), home.path))
        return installation_name(home)

    return told


@pytest.fixture
def pool(home: Home, tell: Telling) -> None:
    tell(home)


@pytest.fixture
def give(home: Home, server: PrefectServer, client: object, monkeypatch: pytest.MonkeyPatch) -> handing.ScheduleStudy:
    monkeypatch.setattr(handing, "require_worker", lambda home: None)
    monkeypatch.setattr(handing, "ensure_server", lambda folder: server)
    monkeypatch.setattr(handing, "client_environment", lambda folder: {})  # as the client of these tests has it
    return handing.worker_scheduler(home)


@contextmanager
def created(home: Home, study: str) -> Iterator[EventLog]:
    asked = {"topic": "t", "planner": {}, "settings": {}, "command": [], "versions": {}, "machine": {}, SERVED: True}
    with closing(EventLog(home.database)) as log:
        StudyLog(log, study).append(EventType.STUDY_CREATED, asked)
        yield log


def run_at(address: str) -> UUID:
    return UUID(address.rpartition("/")[2])


def named(name: str) -> State[None]:
    """Return the state of a name, as Prefect's pages or its worker set it."""
    return State[None](type=StateType(name.upper()))


@pytest.mark.slow
def test_what_a_worker_tells_the_server_stays_where_a_study_is_shown_at_the_same_time(
    home: Home, client: SyncPrefectClient, tell: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = client.read_deployment_by_name

    def overtaken(name: str) -> DeploymentResponse:
        monkeypatch.setattr(client, "read_deployment_by_name", read)
        with pytest.raises(ObjectNotFound) as found:
            read(name)
        tell(home)  # between the look for a deployment and making one
        raise found.value

    monkeypatch.setattr(client, "read_deployment_by_name", overtaken)
    run = schedule_resume(client, home, "s-shown", "s-shown/key")
    assert run.deployment_id is not None
    known = client.read_deployment(run.deployment_id)
    assert known.work_pool_name is not None
    create = partial(client.create_flow_run_from_deployment, known.id)
    fixed = client.read_work_pool(known.work_pool_name).base_job_template["job_configuration"]
    assert "research.orchestration.flow" in fixed["command"]
    for name, value in (("command", "touch /tmp/x"), ("env", {"PYTHONPATH": "/tmp"}), ("working_dir", "/tmp")):
        with pytest.raises(PrefectHTTPStatusError) as refused:
            retry(partial(create, parameters={"study": "s-shown"}, job_variables={name: value}), print)
        assert refused.value.response.status_code == 422


@pytest.mark.usefixtures("pool")
def test_a_study_given_again_is_the_flow_run_that_waits_and_another_once_that_is_over(
    home: Home, client: SyncPrefectClient, give: handing.ScheduleStudy
) -> None:
    with created(home, "s-1"):
        first = give("s-1")
    assert client.read_flow_run(run_at(first)).parameters == {"study": "s-1"}
    assert give("s-1") == first
    client.set_flow_run_state(run_at(first), named("Cancelled"))
    second = give("s-1")
    assert second != first
    assert give("s-1") == second


def test_one_that_waits_where_no_worker_looks_is_closed_and_given_anew(
    home: Home, client: SyncPrefectClient, give: handing.ScheduleStudy, tell: Telling
) -> None:
    """A server whose database was lost knows no pool until the worker tells it again."""
    first = give("s-2")
    tell(home)
    assert give("s-2") != first
    assert state_of(client.read_flow_run(run_at(first))).is_crashed()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("asked", [True, False])
def test_one_that_waits_since_before_a_pause_is_not_what_lifts_it(
    home: Home, client: SyncPrefectClient, give: handing.ScheduleStudy, asked: bool
) -> None:
    study = f"s-5-{asked}"
    with created(home, study) as log:
        key = f"{study}/{'0' * 16}" if asked else f"{study}/{'0' * 64}/once"
        first = schedule_once(client, home, study, key, again=asked).id
        assert run_at(give(study)) == first, "it goes on with the study as it is"
        request_pause(log, study, "lunch")
    second = run_at(give(study))
    assert second != first, "the first leaves it paused"
    assert run_at(give(study)) == second
    assert state_of(client.read_flow_run(first)).is_crashed()


@dataclass
class Left:
    client: SyncPrefectClient
    home: Home
    study: str = field(default_factory=lambda: f"left-{uuid4().hex[:8]}")

    def look(self, key: str = "") -> UUID:
        return schedule_once(self.client, self.home, self.study, f"{self.study}{key}", again=False).id

    def runs(self) -> list[UUID]:
        return [run.id for run in runs_of(self.client, self.study)]

    def state(self, run: UUID) -> State[Any]:
        return state_of(self.client.read_flow_run(run))

    def set(self, run: UUID, state: State[None]) -> None:
        self.client.set_flow_run_state(run, state, force=True)


@pytest.fixture
def left(pool: None, client: SyncPrefectClient, home: Home) -> Left:
    return Left(client, home)


def test_the_worker_gives_nothing_twice_and_nothing_that_was_cancelled_before_it_began(left: Left) -> None:
    first = left.look("/1")
    assert left.look("/2") == first
    left.set(first, named("Pending"))
    assert left.look("/3") == first
    left.set(first, named("Cancelled"))
    with pytest.raises(CancelledWhileWaiting):
        left.look("/4")
    assert left.runs() == [first]


def test_one_whose_process_was_killed_before_it_had_the_study_is_followed_by_so_many_others(left: Left) -> None:
    for number in range(1, MOST_FRUITLESS + 2):
        left.look()
        assert len(left.runs()) == min(number, MOST_FRUITLESS)
        left.set(left.runs()[-1], named("Crashed"))


def test_one_that_a_worker_took_and_left_before_it_began_is_put_back_in_line(left: Left) -> None:
    now = [0.0]
    looking = StalledFlowRuns(left.home, clock=lambda: now[0])
    run = left.look()
    left.set(run, Pending(name="Submitting"))
    (left.home.prefect / "sittings").mkdir()
    with flow_run_process(left.home, run):
        for now[0] in (0.0, 2 * BEGINNING_S):
            looking.reschedule(left.client)
    for now[0] in (2 * BEGINNING_S, 3 * BEGINNING_S - 1):
        looking.reschedule(left.client)
        left.look()
        assert left.state(run).is_pending(), "it had a process until a moment ago"
    now[0] = 3 * BEGINNING_S
    looking.reschedule(left.client)
    assert left.state(run).is_scheduled()
    assert left.runs() == [run]


def test_a_sleep_of_the_machine_and_another_clock_of_the_server_begin_nothing_twice(left: Left) -> None:
    """Begun twice, Prefect's worker would end, as the flow run has its place in the worker's limit still."""
    run = left.look()
    left.set(run, Pending(timestamp=datetime.now(UTC) - timedelta(hours=8)))
    looking = StalledFlowRuns(left.home)
    looking.reschedule(left.client)
    looking.reschedule(left.client)
    left.look()
    assert left.state(run).is_pending()
    assert left.runs() == [run]


def test_installations_that_share_a_server_have_pools_and_deployments_of_their_own(
    home: Home, tmp_path: Path, client: SyncPrefectClient, tell: Telling
) -> None:
    other = Home.locate({"AJET_HOME": str(tmp_path / "other")}).prepare()
    other.prefect.mkdir()
    mine, others = tell(home), tell(other)
    assert mine != others
    runs = [client.read_flow_run(schedule_once(client, at, f"s-of-{n}", f"s-of-{n}", again=False).id) for n, at in
            enumerate((home, other))]  # fmt: skip
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
    deployment = client.read_deployment_by_name(f"ajet-resume/resume@{place}")
    yearly = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(days=365)), active=False)
    (made,) = client.create_deployment_schedules(deployment.id, [yearly])
    tell(home)
    register(client, home, ProcessPool(f"{place}-other", home.path.parent))
    assert client.read_deployment(deployment.id).work_pool_name == f"{place}-other"
    assert [each.id for each in client.read_deployment_schedules(deployment.id)] == [made.id]


def test_a_server_that_does_not_take_it_is_one_line_with_the_way_on(
    home: Home, give: handing.ScheduleStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing, "ensure_server", lambda folder: PrefectServer("http://127.0.0.1:9", reused=True))
    with pytest.raises(NotReady, match="resume s-1 --detach") as refused:
        handing.worker_scheduler(home)("s-1")
    assert "\n" not in refused.value.message


@pytest.mark.usefixtures("pool")
def test_a_cancel_that_no_controller_lived_to_see_stops_the_study(
    home: Home, server: PrefectServer, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ensure_server", lambda folder: server)
    with created(home, "s-6") as log:
        first = schedule_once(client, home, "s-6", "s-6/1", again=False).id
        for name in ("Pending", "Running", "Cancelling"):  # its controller was killed while it ran
            client.set_flow_run_state(first, named(name), force=True)
        looks = worker.StudyWorker(home, ProcessPool("x", home.path), 2, print, print)
        home.study("s-6").mkdir(parents=True)
        (left,) = UnownedStudies(log, home, Holder.here(home.path)).find()
        looks._reschedule(client, left)
        assert fold(log.read("s-6")).stopped_reason == CANCELLED
    assert state_of(client.read_flow_run(first)).is_cancelled()


@pytest.mark.usefixtures("pool")
def test_whoever_goes_on_with_a_study_while_the_worker_stops_it_for_a_cancel_wished_that_later(
    home: Home, client: SyncPrefectClient
) -> None:
    given: list[FlowRun] = []

    def go_on() -> None:
        with connect(str(client.api_url)) as own:
            given.append(schedule_once(own, home, "s-7", "s-7/again", again=True))

    def stop() -> None:
        person.start()
        person.join(1.0)
        assert not given
        request_stop(home, log, "s-7")

    person = threading.Thread(target=go_on)
    with created(home, "s-7") as log:
        client.set_flow_run_state(schedule_once(client, home, "s-7", "s-7/1", again=False).id, named("Cancelled"))
        assert not reschedule_or_stop(client, home, "s-7", "s-7/2", stop)
        person.join(60.0)
        assert overrides_stop(log, "s-7", request_time(given[0]))
