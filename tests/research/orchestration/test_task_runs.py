"""Task runs on a real server have the times of the study's log, whenever they are told and however often."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Running

from research.files import write_json
from research.installation.home import Home, attempt_in
from research.orchestration.prefect_api import FlowRun, create_flow_run
from research.orchestration.server import PrefectServer
from research.orchestration.task_rows import TaskRow
from research.runs.files import AttemptFolder, AttemptProgress
from studies import EventType, StudyState
from studies.records.design import RunSpec
from tests.research.orchestration.shown import Told, artifacts_of, logs_of, task_runs

pytestmark = pytest.mark.slow


@pytest.fixture
def flow_run(client: SyncPrefectClient, tmp_path: Path) -> FlowRun:
    study = StudyState(id=tmp_path.name, topic="which rows")
    return FlowRun(client, create_flow_run(client, Home(tmp_path, ""), study, Running()).id)


def ago(minutes: float) -> str:
    return (NOW - timedelta(minutes=minutes)).isoformat()


NOW = datetime.now(UTC)


def training(key: str) -> TaskRow:
    row = TaskRow(key, f"training {key}", ("s-1", "arm:a"), ()).add_state("PENDING", "Planned", ago(60))
    return row.add_state("RUNNING", "Running", ago(50)).add_state("RUNNING", "Collecting", ago(20))


def test_what_is_told_late_has_its_own_times(client: SyncPrefectClient, flow_run: FlowRun) -> None:
    flow_run.task_runs.put([training("r").add_state("COMPLETED", "Completed", ago(19), "hidden success 0.31 → 0.66")])
    (row,) = task_runs(client, flow_run.id, lambda rows: len(rows) == 1 and done(rows)).values()
    assert (row["state_type"], row["state_name"], row["state"]["message"]) == (
        "COMPLETED", "Completed", "hidden success 0.31 → 0.66",
    )  # fmt: skip
    assert time(row["start_time"]) == time(ago(50))
    assert time(row["end_time"]) == time(row["state"]["timestamp"]) == time(ago(19))
    assert row["total_run_time"] == 31 * 60
    assert row["tags"] == ["s-1", "arm:a"]
    states = client.request("GET", "/task_run_states/", params={"task_run_id": row["id"]}).json()
    assert sorted(((state["name"], time(state["timestamp"])) for state in states), key=lambda one: one[1]) == [
        ("Planned", time(ago(60))), ("Running", time(ago(50))), ("Collecting", time(ago(20))),
        ("Completed", time(ago(19))),
    ]  # fmt: skip


def test_what_is_told_again_changes_nothing(client: SyncPrefectClient, flow_run: FlowRun) -> None:
    flow_run.task_runs.put([training("r")])
    FlowRun(client, flow_run.id).task_runs.put([training("r").add_state("FAILED", "Failed", ago(1), "nan")])
    flow_run.task_runs.put([training("r")])
    name = training("r").name
    row = task_runs(client, flow_run.id, lambda rows: rows.get(name, {}).get("state_name") == "Failed")[name]
    FlowRun(client, flow_run.id).task_runs.put([training("r"), training("other")])
    found = task_runs(client, flow_run.id, lambda rows: len(rows) == 2)
    assert found[name] == row
    states = client.request("GET", "/task_run_states/", params={"task_run_id": row["id"]}).json()
    assert len(states) == 4


def test_a_server_that_is_gone_is_noticed_and_told_all_of_it_again(
    client: SyncPrefectClient, flow_run: FlowRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    request = client.request

    def lost(method: str, path: str, **more: Any) -> Any:
        if path == "/events":
            sent.append(len(more["json"]))
        raise httpx.ConnectError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(client, "request", lost)
        with pytest.raises(httpx.ConnectError):
            flow_run.task_runs.put([training("r")])
    flow_run.task_runs.put([training("r")])
    assert not flow_run.task_runs.needs_resend
    with monkeypatch.context() as patch:
        patch.setattr(client, "read_flow_run", lambda identity: lost("GET", "/flow_runs"))
        with pytest.raises(httpx.ConnectError):
            flow_run.read_state()
    assert flow_run.task_runs.needs_resend

    def counted(method: str, path: str, **more: Any) -> Any:
        sent.append(len(more["json"]) if path == "/events" else 0)
        return request(method, path, **more)

    monkeypatch.setattr(client, "request", counted)
    flow_run.task_runs.put([training("r")])
    flow_run.task_runs.put([training("r")])
    assert sent == [3, 3]  # all of it when it is back, and nothing after that
    assert not flow_run.task_runs.needs_resend


def done(rows: dict[str, dict[str, Any]]) -> bool:
    return all(row["state_type"] == "COMPLETED" for row in rows.values())


def time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def playing(told: Told, spec: RunSpec, step: int, attempt: int = 1) -> AttemptFolder:
    folder = AttemptFolder(attempt_in(told.folder, spec.run_id, attempt))
    progress = AttemptProgress(
        stage="train", step=step, steps=40, train_success=0.5, train_reward=0.25, hidden_success=0.31, seconds=step
    )
    write_json(folder.progress, progress.model_dump(mode="json"))
    return folder


def test_a_training_tells_its_progress_in_its_own_log_and_each_line_once(told: Told, server: PrefectServer) -> None:
    told.synthetic.lock()
    session = told.session()
    spec, *_ = told.synthetic.plan()
    told.synthetic.launch(spec)
    folder = playing(told, spec, 2)
    for _ in range(3):
        session.refresh()
    playing(told, spec, 40)
    session.refresh()
    told.synthetic.end(spec)
    (folder.path / "wandb" / "offline-run-20310304_093000-x").mkdir(parents=True)
    session.refresh()
    told.synthetic.collect(spec)
    session.refresh()
    name = f"{spec.arm} seed {spec.seed}"
    rows = task_runs(told.client, told.identity, lambda rows: rows.get(name, {}).get("state_name") == "Completed")
    row = rows[name]
    assert sorted(logs_of(told.client, row["id"])) == sorted([
        "training begins", "step 2 of 40, reward 0.250, solved 0.500", "hidden success 0.310 at step 2",
        "step 40 of 40, reward 0.250, solved 0.500",
        f"Completed: {row['state']['message']}",
        f"W&B log: attempts/{spec.run_id}-a1/wandb/offline-run-20310304_093000-x",
    ])  # fmt: skip
    query = {"logs": {"flow_run_id": {"any_": [str(told.identity)]}}}
    lines = [line["message"] for line in told.client.request("POST", "/logs/filter", json=query).json()]
    assert any(line.endswith("try 1 started") for line in lines)
    assert not any(line.startswith("step ") for line in lines)  # the study's own lines are not drowned


def test_a_plan_that_is_not_needed_any_more_is_said_so(told: Told) -> None:
    told.synthetic.lock()
    session = told.session()
    spec, other, *_ = told.synthetic.plan()
    told.synthetic.launch(spec)
    told.synthetic.end(spec, status="lost", code="lost", reason="gone")
    session.refresh()
    told.synthetic.append(EventType.RUN_INVALIDATED, run_id=spec.run_id, code="vetoed", reason="nobody wants it")
    told.synthetic.append(EventType.STUDY_STOPPED, reason="enough")
    run = told.identity
    session.close(None)
    again, planned = f"{spec.arm} seed {spec.seed}, try 2", f"{other.arm} seed {other.seed}"
    found = task_runs(told.client, run, lambda rows: all(row["end_time"] is not None for row in rows.values()))
    assert found[again]["state_name"] == "Not needed"
    assert (found[planned]["state_name"], found[planned]["state_type"]) == ("Cancelled", "CANCELLED")


def test_artifacts_are_published_when_they_change_and_not_before(told: Told) -> None:
    told.synthetic.lock()
    session = told.session()
    specs = told.synthetic.plan()
    told.synthetic.run(specs[0])
    session.refresh()
    first = artifacts_of(told.client, told.identity)
    assert {key.removeprefix("s-synthetic-") for key in first} == {"links", "progress"}
    assert all(found["description"] for found in first.values())
    session.refresh()
    assert artifacts_of(told.client, told.identity) == first  # nothing happened, nothing is written
    told.synthetic.run(specs[1])
    session.refresh()
    second = artifacts_of(told.client, told.identity)
    assert {key: found["id"] for key, found in second.items()} == {key: found["id"] for key, found in first.items()}
    changed = {key.removeprefix("s-synthetic-") for key in first if second[key]["data"] != first[key]["data"]}
    assert changed == {"progress"}  # in its own place
