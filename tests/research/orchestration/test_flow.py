"""Prefect shows a study: a flow run, a task run per training run, artifacts; a killed one is closed later."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from research.orchestration.server import PrefectServer, client_environment, ensure_server, stop_server
from tests.studies.synthetic import STUDY, TOPIC


@pytest.fixture(scope="module")
def prefect_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("prefect")
    yield path
    stop_server(path)


@pytest.fixture(scope="module")
def server(prefect_folder: Path) -> PrefectServer:
    os.environ.pop("PREFECT_API_URL", None)
    return ensure_server(prefect_folder, port=0)


def control(server: PrefectServer, prefect_folder: Path, study_folder: Path, mode: str) -> int:
    return controlled(server, prefect_folder, study_folder, mode).returncode


def controlled(
    server: PrefectServer, prefect_folder: Path, study_folder: Path, mode: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **client_environment(prefect_folder, server)}
    command = [sys.executable, "-m", "tests.research.orchestration.flow_process", str(study_folder), mode]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


def ask(server: PrefectServer, what: str) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{server.api}/{what}/filter", data=b'{"limit": 200}', headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        found: list[dict[str, Any]] = json.load(reply)
    return found


def test_a_study_is_a_flow_run_with_a_task_run_per_training_run_and_artifacts(
    server: PrefectServer, prefect_folder: Path, tmp_path: Path
) -> None:
    assert control(server, prefect_folder, tmp_path, "whole") == 0
    (flow_run,) = [run for run in ask(server, "flow_runs") if run["state"]["type"] == "COMPLETED"]
    assert flow_run["name"] == f"{STUDY}: {TOPIC[:80]}"
    tasks = [task for task in ask(server, "task_runs") if task["flow_run_id"] == flow_run["id"]]
    assert len(tasks) == 10
    assert {task["state"]["type"] for task in tasks} == {"COMPLETED"}
    assert sum("group_size=16 seed" in task["name"] for task in tasks) == 5
    keys = {artifact["key"] for artifact in ask(server, "artifacts") if artifact["flow_run_id"] == flow_run["id"]}
    assert {f"{STUDY}-design", f"{STUDY}-verdicts", f"{STUDY}-progress"} <= keys
    assert not (tmp_path / "prefect.json").exists()


def test_a_killed_controllers_flow_run_is_closed_when_the_study_goes_on(
    server: PrefectServer, prefect_folder: Path, tmp_path: Path
) -> None:
    assert control(server, prefect_folder, tmp_path, "killed") == -signal.SIGKILL
    abandoned = json.loads((tmp_path / "prefect.json").read_text())["flow_run"]
    assert state_of(server, abandoned) == "RUNNING"
    assert control(server, prefect_folder, tmp_path, "whole") == 0
    assert state_of(server, abandoned) == "CRASHED"


def test_a_stopped_study_is_a_cancelled_flow_run_and_an_invalid_run_a_failed_task(
    server: PrefectServer, prefect_folder: Path, tmp_path: Path
) -> None:
    assert control(server, prefect_folder, tmp_path, "stopped") == 0
    (flow_run,) = [run for run in ask(server, "flow_runs") if run["state"]["type"] == "CANCELLED"]
    states = [task["state"]["type"] for task in ask(server, "task_runs") if task["flow_run_id"] == flow_run["id"]]
    assert sorted(states) == ["CANCELLED", "COMPLETED", "FAILED"]


def test_a_signal_stops_a_study_inside_its_flow_as_it_does_outside(
    server: PrefectServer, prefect_folder: Path, tmp_path: Path
) -> None:
    ended = controlled(server, prefect_folder, tmp_path, "terminated")
    assert (ended.returncode, ended.stdout) == (0, "stopped\n")


@pytest.mark.slow
def test_a_study_goes_on_when_its_prefect_server_is_killed_and_when_there_is_none_left(tmp_path: Path) -> None:
    folder = tmp_path / "prefect"
    server = ensure_server(folder, port=0)
    for mode in ("orphaned", "whole"):
        ended = controlled(server, folder, tmp_path / mode, mode)
        assert (ended.returncode, ended.stdout) == (0, "concluded\n")
        (line,) = ended.stderr.splitlines()
        assert "goes on without Prefect's view" in line


def state_of(server: PrefectServer, flow_run: str) -> str:
    (found,) = [run for run in ask(server, "flow_runs") if run["id"] == flow_run]
    return str(found["state"]["type"])
