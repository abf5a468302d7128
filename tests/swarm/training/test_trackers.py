"""W&B gets the metrics and nothing else, and its file is whole after finish."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swarm.job import Job, Tracking
from swarm.training.trackers import NullTracker, TrackerThread, make_tracker, run_config

CODE = """
import json, sys
from pathlib import Path
from swarm.job import Job
from swarm.training.trackers import make_tracker
tracker = make_tracker(Job.model_validate_json(sys.argv[1]))
for step in (1, 2, 3):
    tracker.log(step, {"critic/rewards/mean": step / 4})
tracker.finish()
tracker.finish()
"""


def tracked(folder: Path) -> Job:
    config = {"arm": "treatment", "seed": "not the job's"}
    tracking = Tracking(directory=str(folder), run_id="run7", group="study1", name="n", config=config, tags=("a", "b"))
    return Job(backend="fake", seed=11, tracking=tracking)


def inspect(folder: Path) -> list[dict[str, Any]]:
    (log,) = folder.glob("wandb/offline-run-*/run-run7.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400).stdout.splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_finished_run_is_whole_on_disk_without_an_account(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "NETRC": str(tmp_path / "none")}
    job = tracked(tmp_path)
    command = [sys.executable, "-c", CODE, job.model_dump_json()]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    records = inspect(tmp_path)
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [(item["_step"], item["critic/rewards/mean"]) for item in history] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert records[-1]["type"] == "exit"
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    text = json.dumps(run)
    assert all(word in text for word in ("study1", "run7", "treatment", job.digest()))
    assert not {"stats", "output", "output_raw", "metadata"} & {record["type"] for record in records}
    files = tmp_path.glob("wandb/offline-run-*/files/*")
    assert not {"requirements.txt", "output.log", "diff.patch"} & {path.name for path in files}


def test_what_a_sweep_or_launch_says_of_its_run_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", lambda **_: None)
    of_a_run = ("WANDB_SWEEP_ID", "WANDB_LAUNCH", "WANDB_RUN_ID", "WANDB_CONFIG")
    for name in (*of_a_run, "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, "1")
    make_tracker(tracked(tmp_path))
    assert (os.environ.keys() & {*of_a_run, "WANDB_CONFIG_DIR"}) == {"WANDB_CONFIG_DIR"}
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


@pytest.mark.slow
def test_a_run_that_wandb_does_not_take_is_logged_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    modes: list[str] = []

    def init(**given: Any) -> None:
        modes.append(given["mode"])
        if given["mode"] == "online":
            raise wandb.errors.CommError("nobody answers")

    monkeypatch.setattr(wandb, "init", init)
    job = tracked(tmp_path)
    assert job.tracking is not None
    make_tracker(job.model_copy(update={"tracking": job.tracking.model_copy(update={"mode": "online"})}))
    assert modes == ["online", "offline"]


def test_a_variable_that_wandb_refuses_stops_no_offline_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def init(**given: Any) -> None:
        if "WANDB_BASE_URL" in os.environ:
            raise ValueError("no valid URL")

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_BASE_URL", "garbage")
    make_tracker(tracked(tmp_path))
    assert "WANDB_BASE_URL" not in os.environ


def test_the_jobs_own_fields_win_over_the_harnesss_entries(tmp_path: Path) -> None:
    config = run_config(tracked(tmp_path))
    assert (config["arm"], config["seed"], config["group_size"]) == ("treatment", 11, 8)
    assert "tracking" not in config


class Slow:
    """A tracker whose disk is slow until `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.calls: list[object] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self.go.wait(120)
        self.calls.append(step)

    def finish(self) -> None:
        self.calls.append("finish")


async def test_a_slow_tracker_never_holds_up_the_event_loop_and_keeps_order() -> None:
    slow, thread = Slow(), TrackerThread()
    await thread.open(lambda: slow)
    calls = [asyncio.create_task(thread.log(step, {})) for step in (1, 2)]
    calls.append(asyncio.create_task(thread.finish()))
    await asyncio.sleep(0)
    assert slow.calls == []
    slow.go.set()
    await asyncio.gather(*calls)
    assert slow.calls == [1, 2, "finish"]


async def test_an_error_of_the_tracker_reaches_the_caller() -> None:
    thread = TrackerThread()

    def broken() -> NullTracker:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        await thread.open(broken)
    await thread.finish()
