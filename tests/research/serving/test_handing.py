"""Handing a study over: to a flow run that waits, else to one of its own, and one line where the server refuses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from research.errors import NoWorker
from research.installation.home import Home
from research.orchestration.server import PrefectServer
from research.serving import handing
from research.serving.orphans import Orphans
from research.serving.wishes import undoes
from research.study.stop import request_pause, request_stop
from studies import EventLog, EventType, StudyLog, fold
from studies.log.fold import SERVED
from studies.log.leases import Holder

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate({"AJET_HOME": str(tmp_path)}).prepare()


Telling = Callable[[Home], str]


@pytest.fixture
def tell(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> Telling:
    """Tell the server what the worker of an installation does, and return its place, but make no automation.

    That would act on the flow runs of other tests.
    """
    from research.orchestration.deployments import place_of
    from research.serving.pools import ProcessPool
    from research.serving.registration import register

    monkeypatch.setattr(client, "read_automations_by_name", lambda name: [name])

    def told(home: Home) -> str:
        register(client, home, ProcessPool(place_of(home), home.path))
        return place_of(home)

    return told


@pytest.fixture
def pool(home: Home, tell: Telling) -> None:
    tell(home)


def giving(home: Home, server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> handing.Giving:
    monkeypatch.setattr(handing, "require_worker", lambda home: None)
    monkeypatch.setattr(handing, "ensure_server", lambda folder: server)
    monkeypatch.setattr(handing, "client_environment", lambda folder: {})  # as the client of these tests has it
    return handing.worker_of(home)


@contextmanager
def created(home: Home, study: str) -> Iterator[EventLog]:
    """Have a study that was made for the worker."""
    asked = {"topic": "t", "planner": {}, "settings": {}, "command": [], "versions": {}, "machine": {}, SERVED: True}
    with closing(EventLog(home.database)) as log:
        StudyLog(log, study).append(EventType.STUDY_CREATED, asked)
        yield log


def run_at(address: str) -> UUID:
    return UUID(address.rpartition("/")[2])


def named(name: str) -> State[None]:
    """Return the state of a name, as Prefect's pages or its worker set it."""
    from prefect.client.schemas.objects import State, StateType

    return State[None](type=StateType(name.upper()))


def test_what_a_worker_tells_the_server_stays_where_a_study_is_shown_at_the_same_time(
    home: Home, client: SyncPrefectClient, tell: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.exceptions import ObjectNotFound

    from research.orchestration.deployments import hand_over

    read = client.read_deployment_by_name

    def overtaken(name: str) -> DeploymentResponse:
        monkeypatch.setattr(client, "read_deployment_by_name", read)
        with pytest.raises(ObjectNotFound) as found:
            read(name)
        tell(home)  # between the look for a deployment and making one
        raise found.value

    monkeypatch.setattr(client, "read_deployment_by_name", overtaken)
    run = hand_over(client, home, "s-shown", "s-shown/key")
    assert run.deployment_id is not None
    known = client.read_deployment(run.deployment_id)
    assert "research.serving.sitting" in known.job_variables["command"]
    assert known.work_pool_name is not None


@pytest.mark.usefixtures("pool")
def test_a_study_given_again_is_the_flow_run_that_waits_and_another_once_that_is_over(
    home: Home, server: PrefectServer, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    give = giving(home, server, monkeypatch)
    with created(home, "s-1"):
        first = give("s-1")
    assert client.read_flow_run(run_at(first)).parameters == {"study": "s-1"}
    assert give("s-1") == first
    client.set_flow_run_state(run_at(first), named("Cancelled"))
    second = give("s-1")
    assert second != first
    assert give("s-1") == second


def test_one_that_waits_where_no_worker_looks_is_closed_and_given_anew(
    home: Home, server: PrefectServer, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, tell: Telling
) -> None:
    """A server whose database was lost knows no pool until the worker tells it again."""
    give = giving(home, server, monkeypatch)
    first = give("s-2")
    tell(home)
    assert give("s-2") != first
    found = client.read_flow_run(run_at(first)).state
    assert found is not None
    assert found.is_crashed()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("asked", [True, False])
def test_one_that_waits_since_before_a_pause_is_not_what_lifts_it(
    home: Home, server: PrefectServer, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    from research.serving.waiting import give_once

    study, give = f"s-5-{asked}", giving(home, server, monkeypatch)
    with created(home, study) as log:
        key = f"{study}/{'0' * 16}" if asked else f"{study}/{'0' * 64}/once"
        first = give_once(client, home, study, key, again=asked).id
        assert run_at(give(study)) == first, "it goes on with the study as it is"
        request_pause(log, study, "lunch")
    second = run_at(give(study))
    assert second != first, "the first leaves it paused"
    assert run_at(give(study)) == second
    found = client.read_flow_run(first).state
    assert found is not None
    assert found.is_crashed()


@pytest.mark.usefixtures("pool")
def test_the_worker_gives_nothing_twice_and_nothing_that_was_cancelled_before_it_began(
    home: Home, client: SyncPrefectClient
) -> None:
    from research.serving.waiting import CancelledWhileWaiting, give_once

    first = give_once(client, home, "s-3", "s-3/1", again=False).id
    assert give_once(client, home, "s-3", "s-3/2", again=False).id == first
    client.set_flow_run_state(first, named("Cancelled"))
    with pytest.raises(CancelledWhileWaiting):
        give_once(client, home, "s-3", "s-3/3", again=False)


def test_installations_that_share_a_server_have_pools_and_deployments_of_their_own(
    home: Home, tmp_path: Path, client: SyncPrefectClient, tell: Telling
) -> None:
    from research.serving.waiting import give_once

    other = Home.locate({"AJET_HOME": str(tmp_path / "other")}).prepare()
    other.prefect.mkdir()
    mine, others = tell(home), tell(other)
    assert mine != others
    runs = [client.read_flow_run(give_once(client, at, f"s-of-{n}", f"s-of-{n}", again=False).id) for n, at in
            enumerate((home, other))]  # fmt: skip
    assert [run.work_pool_name for run in runs] == [mine, others]
    assert runs[0].deployment_id != runs[1].deployment_id


@pytest.mark.parametrize("wrong", [{"budget": "soon"}, {"looks": 50}, {"colour": "red"}])
def test_a_form_that_is_wrong_is_refused_by_the_server(
    home: Home, client: SyncPrefectClient, tell: Telling, wrong: dict[str, Any]
) -> None:
    from prefect.exceptions import PrefectHTTPStatusError

    deployment = client.read_deployment_by_name(f"ajet-research/{tell(home)}")
    with pytest.raises(PrefectHTTPStatusError, match=next(iter(wrong))):
        client.create_flow_run_from_deployment(deployment.id, parameters={"topic": "group size 4 vs 8", **wrong})


def test_telling_the_server_again_keeps_a_schedule(home: Home, client: SyncPrefectClient, tell: Telling) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import IntervalSchedule

    deployment = client.read_deployment_by_name(f"ajet-resume/{tell(home)}")
    yearly = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(days=365)), active=False)
    (made,) = client.create_deployment_schedules(deployment.id, [yearly])
    tell(home)
    assert [each.id for each in client.read_deployment_schedules(deployment.id)] == [made.id]


def test_a_server_that_does_not_take_it_is_one_line_with_the_way_on(
    home: Home, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = PrefectServer("http://127.0.0.1:9", reused=True)
    give = giving(home, nobody, monkeypatch)
    with pytest.raises(NoWorker, match="resume s-1 --detach") as refused:
        give("s-1")
    assert "\n" not in refused.value.message


@pytest.mark.usefixtures("pool")
def test_a_cancel_that_no_controller_lived_to_see_stops_the_study(
    home: Home, server: PrefectServer, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from research.serving import worker
    from research.serving.pools import ProcessPool
    from research.serving.waiting import give_once

    monkeypatch.setattr(worker, "ensure_server", lambda folder: server)
    with created(home, "s-6") as log:
        first = give_once(client, home, "s-6", "s-6/1", again=False).id
        for name in ("Pending", "Running", "Cancelling"):  # its controller was killed while it ran
            client.set_flow_run_state(first, named(name), force=True)
        looks = worker.StudyWorker(home, ProcessPool("x", home.path), 2, print, print)
        home.study("s-6").mkdir(parents=True)
        (left,) = Orphans(log, home, Holder.here(home.path)).found()
        looks._hand_over(client, left)
        assert fold(log.read("s-6")).stopped_reason == "cancelled in the Prefect UI"
    found = client.read_flow_run(first).state
    assert found is not None
    assert found.is_cancelled()


@pytest.mark.usefixtures("pool")
def test_whoever_goes_on_with_a_study_while_the_worker_stops_it_for_a_cancel_wished_that_later(
    home: Home, client: SyncPrefectClient
) -> None:
    from research.orchestration.deployments import wish_of
    from research.serving.waiting import give_or_stop

    given: list[FlowRun] = []

    def go_on() -> None:
        from research.orchestration.flow_run import connect

        with connect(str(client.api_url)) as own:
            given.append(give_once(own, home, "s-7", "s-7/again", again=True))

    def stop() -> None:
        person.start()
        person.join(1.0)
        assert not given
        request_stop(home, log, "s-7")

    from research.serving.waiting import give_once

    person = threading.Thread(target=go_on)
    with created(home, "s-7") as log:
        client.set_flow_run_state(give_once(client, home, "s-7", "s-7/1", again=False).id, named("Cancelled"))
        assert not give_or_stop(client, home, "s-7", "s-7/2", stop)
        person.join(60.0)
        assert undoes(log, "s-7", wish_of(given[0]))
