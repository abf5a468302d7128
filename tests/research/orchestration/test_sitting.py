"""A study as a flow run on a real server: what is clicked is obeyed at the next look, what happens is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import pytest

from research.home import Home
from research.orchestration.server import PrefectServer
from research.steps import BUDGET_RULE
from research.tick import StudyLoop
from studies import EventLog, EventType, StudyState
from studies.report import build_report
from tests.research.bench import STUDY, Bench
from tests.research.designs import design
from tests.studies.synthetic import STUDY as SYNTHETIC
from tests.studies.synthetic import Synthetic

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

    from research.orchestration.sitting import Sitting

pytestmark = pytest.mark.slow


class Watched:
    """A study of fake attempts under a controller, and its flow run: `tick` and `look` are what goes on by itself."""

    def __init__(self, bench: Bench, client: SyncPrefectClient, log: EventLog) -> None:
        from research.orchestration.sitting import Sitting

        self.bench = bench
        self.client = client
        self.loop: StudyLoop = bench.loop()
        self.sitting: Sitting = Sitting(bench.home, log, self.loop.state(), client)
        self.look()

    def look(self) -> None:
        self.sitting.look()

    def tick(self) -> StudyState:
        self.bench.clock.advance(1)
        return self.loop.tick().state

    @property
    def flow_run(self) -> FlowRun:
        note = json.loads((self.bench.home.study(STUDY) / "prefect.json").read_text())
        return self.client.read_flow_run(UUID(note["flow_run"]))

    def click(self, button: str) -> None:
        """Send what the web page sends."""
        from prefect.client.schemas.objects import State, StateType
        from prefect.states import Suspended

        run = self.flow_run.id
        if button == "resume":
            self.client.resume_flow_run(run)
            return
        state: State[Any] = Suspended(timeout_seconds=300) if button == "pause" else State(type=StateType.CANCELLING)
        result = self.client.set_flow_run_state(run, state)
        assert str(result.status.value) in ("ACCEPT", "REJECT"), result

    def shown(self) -> str:
        state = self.flow_run.state
        assert state is not None
        return str(state.name)


@pytest.fixture
def watched(tmp_path: Path, client: SyncPrefectClient) -> Iterator[Watched]:
    bench = Bench(tmp_path, lambda order: "never", design=design(16))
    with closing(EventLog(bench.home.database, clock=bench.clock)) as log, bench.home.lock(STUDY):
        yield Watched(bench, client, log)


def running(state: StudyState) -> int:
    return sum(run.active is not None for run in state.runs.values())


def state_of(run: FlowRun) -> State[Any]:
    assert run.state is not None
    return run.state


def test_cancel_stops_the_study_within_one_look_and_the_page_says_cancelled(watched: Watched) -> None:
    assert running(watched.tick()) == 2
    watched.look()
    watched.click("cancel")
    assert watched.shown() == "Cancelling"
    watched.look()
    state = watched.tick()
    assert state.stopped_reason == "cancelled in the Prefect UI"
    assert running(state) == 0
    identity = watched.flow_run.id
    watched.sitting.close(None)
    ended = watched.client.read_flow_run(identity)
    assert (state_of(ended).name, state_of(ended).message) == ("Cancelled", "cancelled in the Prefect UI")
    watched.bench.append(EventType.STUDY_RESUMED, command=["ajet", "study", "resume"], worked_s=0.0)
    assert running(watched.tick()) == 2, "`ajet study resume` goes on"


def test_pause_begins_nothing_lets_runs_finish_and_lasts(watched: Watched) -> None:
    watched.tick()
    watched.click("pause")
    watched.look()
    state = state_of(watched.flow_run)
    assert (state.name, state.state_details.pause_reschedule) == ("Paused", False)
    assert state.state_details.pause_timeout is not None
    assert state.state_details.pause_timeout.year > state.timestamp.year + 5, "Prefect fails a pause that expires"
    for handle in watched.bench.sandbox.handles.values():
        handle.ended = handle._end("ok")
    after = watched.tick()
    assert after.paused_reason == "paused in the Prefect UI"
    assert [run.status for run in after.runs.values()].count("collected") == 2
    assert running(after) == 0
    watched.look()
    assert watched.shown() == "Paused", "looks go on while it is paused"


@pytest.mark.parametrize("paused_by", ["page", "terminal"])
@pytest.mark.parametrize("resumed_by", ["page", "terminal"])
def test_a_pause_is_lifted_from_either_side(watched: Watched, paused_by: str, resumed_by: str) -> None:
    from research.control import request_continue, request_pause

    with closing(EventLog(watched.bench.home.database, clock=watched.bench.clock)) as log:
        watched.click("pause") if paused_by == "page" else request_pause(log, STUDY)
        watched.look()
        assert (running(watched.tick()), watched.shown()) == (0, "Paused")
        watched.look()
        watched.click("resume") if resumed_by == "page" else request_continue(log, STUDY)
        watched.look()
        assert (running(watched.tick()), watched.shown()) == (2, "Running")
        watched.look()
        assert watched.shown() == "Running"


def test_a_paused_study_is_cancelled(watched: Watched) -> None:
    watched.click("pause")
    watched.look()
    watched.click("cancel")
    watched.look()
    assert watched.tick().stopped_reason == "cancelled in the Prefect UI"


def test_a_pause_taken_back_before_anybody_looked_leaves_the_study_running(watched: Watched) -> None:
    watched.click("pause")
    watched.click("resume")
    assert watched.shown() == "Resuming", "nobody would take this flow run up"
    watched.look()
    assert (running(watched.tick()), watched.shown()) == (2, "Running")


@pytest.mark.parametrize("paused", [False, True])
def test_a_living_study_is_not_left_failed_by_another_hand(watched: Watched, paused: bool) -> None:
    from prefect.states import Crashed

    if paused:
        watched.click("pause")
        watched.look()
    watched.client.set_flow_run_state(watched.flow_run.id, Crashed(message="no heartbeat"), force=True)
    watched.look()
    assert watched.shown() == ("Paused" if paused else "Running")
    assert (watched.tick().paused_reason is not None) == paused


def test_a_server_whose_database_is_lost_is_told_everything_anew(watched: Watched) -> None:
    watched.tick()
    watched.look()
    before = watched.flow_run
    watched.client.delete_flow_run(before.id)
    watched.look()
    assert watched.flow_run.id != before.id
    assert len(rows_of(watched.client, watched.flow_run.id)) == 3, "planning and two runs"


def test_the_flow_run_of_a_killed_controller_is_closed_by_the_next_one(watched: Watched) -> None:
    from research.orchestration.sitting import Sitting

    killed = watched.flow_run.id
    with closing(EventLog(watched.bench.home.database, clock=watched.bench.clock)) as log:
        watched.bench.append(EventType.STUDY_RESUMED, command=[], worked_s=0.0)
        Sitting(watched.bench.home, log, watched.loop.state(), watched.client).look()
    assert state_of(watched.client.read_flow_run(killed)).name == "Crashed"
    assert watched.flow_run.id != killed


class Told:
    """A synthetic study and the flow run that shows it."""

    def __init__(self, path: Path, client: SyncPrefectClient) -> None:
        self.home = Home.locate({"AJET_HOME": str(path)}).prepare()
        self.folder = self.home.study(SYNTHETIC)
        self.synthetic = Synthetic(self.folder)
        self.client = client
        self.synthetic.create()

    def sitting(self) -> Sitting:
        from research.orchestration.sitting import Sitting

        return Sitting(self.home, self.synthetic.log, self.synthetic.state(), self.client)

    def identity(self) -> UUID:
        return UUID(json.loads((self.folder / "prefect.json").read_text())["flow_run"])


@pytest.fixture
def told(tmp_path: Path, client: SyncPrefectClient) -> Iterator[Told]:
    told = Told(tmp_path, client)
    yield told
    told.synthetic.log.close()


def test_a_whole_study_is_told_with_its_report_and_the_figures_in_it(told: Told, server: PrefectServer) -> None:
    sitting = told.sitting()
    sitting.look()
    run = told.identity()
    told.synthetic.lock()
    specs = told.synthetic.plan()
    for spec in specs[:8]:
        told.synthetic.run(spec)
    sitting.look()
    assert progress_of(server, run) == (80.0, "8 of at most 10 runs done")
    for spec in specs[8:]:
        told.synthetic.run(spec)
    sitting.look()
    assert progress_of(server, run)[0] < 100.0
    told.synthetic.judge()
    report = build_report(told.synthetic.conclude(), told.folder)
    paths = {"markdown": report.markdown, "html": report.html}
    payload = {kind: {"path": path.name, "sha256": "0" * 64} for kind, path in paths.items()}
    told.synthetic.append(EventType.REPORT_BUILT, **payload)
    sitting.close(None)

    ended = told.client.read_flow_run(run)
    assert state_of(ended).is_completed()
    assert ended.deployment_id is not None, "Prefect's page has buttons for a deployment's runs only"
    assert progress_of(server, run)[0] == 100.0
    artifacts = artifacts_of(server, run)
    figures = artifacts[f"{SYNTHETIC}-report"]["data"].count("](data:image/svg+xml;base64,")
    assert figures == report.markdown.read_text().count("](figures/")
    assert figures > 0
    assert {row["state"]["type"] for row in rows_of(told.client, run)} == {"COMPLETED"}
    assert len(rows_of(told.client, run)) == 11
    assert not (told.folder / "prefect.json").exists()


def test_what_the_budget_ends_is_not_shown_as_cancelled(told: Told) -> None:
    sitting = told.sitting()
    sitting.look()
    told.synthetic.lock()
    told.synthetic.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason="900 s are used up")
    told.synthetic.append(EventType.STUDY_STOPPED, reason="budget: 900 s are used up")
    run = told.identity()
    sitting.close(None)
    state = state_of(told.client.read_flow_run(run))
    assert (state.type.value, state.name) == ("COMPLETED", "Budget used up")
    assert "900 s" in str(state.message)


def test_a_refusal_fails_the_flow_run_and_its_planning_with_the_reason(told: Told) -> None:
    sitting = told.sitting()
    told.synthetic.append(EventType.STUDY_STOPPED, reason="too dear: use --budget 2h")
    sitting.look()
    run = told.identity()
    sitting.close(ValueError("too dear: use --budget 2h"))
    state = state_of(told.client.read_flow_run(run))
    assert (state.name, state.message) == ("Failed", "too dear: use --budget 2h")
    (row,) = rows_of(told.client, run)
    assert (row["name"], row["state"]["type"]) == ("planning", "FAILED")


def test_a_resumed_study_tells_of_no_run_that_was_over_before(told: Told) -> None:
    told.synthetic.lock()
    over, adopted, *_ = told.synthetic.plan()
    told.synthetic.run(over)
    told.synthetic.launch(adopted)
    told.synthetic.append(EventType.STUDY_STOPPED, reason="stopped by the user")
    told.synthetic.append(EventType.STUDY_RESUMED, command=[])
    told.sitting().look()
    (row,) = rows_of(told.client, told.identity())
    assert adopted.run_id in row["name"]


def rows_of(client: SyncPrefectClient, flow_run: UUID) -> list[dict[str, Any]]:
    query = {"flow_runs": {"id": {"any_": [str(flow_run)]}}}
    found: list[dict[str, Any]] = client.request("POST", "/task_runs/filter", json=query).json()
    return found


def artifacts_of(server: PrefectServer, flow_run: UUID) -> dict[str, dict[str, Any]]:
    query = {"artifacts": {"flow_run_id": {"any_": [str(flow_run)]}}}
    found = httpx.post(f"{server.api}/artifacts/filter", json=query).raise_for_status().json()
    return {artifact["key"]: artifact for artifact in found}


def progress_of(server: PrefectServer, flow_run: UUID) -> tuple[float, str]:
    (shown,) = [found for key, found in artifacts_of(server, flow_run).items() if key.endswith("-progress")]
    return float(shown["data"]), str(shown["description"])
