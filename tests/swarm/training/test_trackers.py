"""Trackers beside W&B: the real libraries where they are installed, stand-ins for what fails in them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.errors import InvalidRequest
from swarm.job import Job
from swarm.training import trackers

METRICS = {"reward/mean": 0.5, "stream/a+b/reward": 1.0}


class Quiet:
    """W&B's place: what is told of the first tracker is tested with its own log."""

    def __init__(self, *_: Any) -> None:
        self.told: list[tuple[int, Mapping[str, float]]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.told.append((step, metrics))

    def finish(self) -> None: ...


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "WandbTracker", Quiet)
    for name in ("TRACKIO_DIR", "MLFLOW_DISABLE_TELEMETRY"):  # set by what is tested; taken back at the end
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/space")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


def tracked(folder: Path, *also: str) -> Job:
    return Job.model_validate({"tracking": {"directory": str(folder), "project": "p", "name": "r", "also": also}})


def log_steps(job: Job) -> Any:
    tracker = trackers.make_tracker(job)
    assert tracker is not None
    for step in (1, 2):
        tracker.log(step, {**METRICS, "reward/mean": step / 4})
    tracker.finish()
    tracker.finish()
    return tracker


def test_mlflow_has_the_metrics_in_its_own_store(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    assert log_steps(tracked(tmp_path, "mlflow")).faults == 0
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [(one.step, one.value) for one in history] == [(1, 0.25), (2, 0.5)]
    assert (run.info.status, run.data.metrics["stream/a_b/reward"], run.data.params["group_size"]) == (
        "FINISHED",
        1.0,
        "8",
    )


def test_trackio_has_the_metrics_in_its_own_store(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    assert log_steps(tracked(tmp_path, "trackio")).faults == 0
    from trackio.sqlite_storage import SQLiteStorage

    assert [(row["step"], row["reward/mean"]) for row in SQLiteStorage.get_logs("p", "r")] == [(1, 0.25), (2, 0.5)]


def test_what_fails_beside_wandb_is_counted_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=fail))  # never opened
    names = ("set_tracking_uri", "set_experiment", "start_run", "log_params")
    opened = dict.fromkeys(names, lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**opened, log_metrics=fail, end_run=fail))
    tracker = log_steps(tracked(tmp_path, "trackio", "mlflow"))
    assert (tracker.faults, [step for step, _ in tracker._first.told]) == (5, [1, 2])


def test_a_tracker_that_is_not_installed_is_said_before_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "trackio" else object())
    trackers.require_trackers(tracked(tmp_path, "mlflow"))
    trackers.require_trackers(Job())
    with pytest.raises(InvalidRequest, match=r"tracking\.also.*pip install trackio"):
        trackers.require_trackers(tracked(tmp_path, "mlflow", "trackio"))
