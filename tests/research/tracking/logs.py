"""Offline logs that the server's own tracker writes, whole or still growing, for tests of what is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from swarm.job import Job, Tracking

_CODE = """
import sys
from swarm.job import Job
from swarm.training.trackers import make_tracker
tracker = make_tracker(Job.model_validate_json(sys.argv[1]))
for line in sys.stdin:
    step = int(line)
    tracker.log(step, {"critic/rewards/mean": step / 4, "kl": float("nan") if step == 2 else 1 / step})
    print(step, flush=True)
tracker.finish()
"""


class Writing:
    def __init__(self, folder: Path, run_id: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tracking = Tracking(
            directory=str(folder), run_id=run_id, group="s1", name="n", config={"run_id": "r1"}, tags=("s1", "arm")
        )  # fmt: skip
        job = Job(backend="fake", tracking=tracking)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, job.model_dump_json()],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def log(self, *steps: int) -> None:
        for step in steps:
            self._process.stdin.write(f"{step}\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == f"{step}\n"

    def close(self) -> None:
        self._process.communicate(timeout=400)
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=400)


def write(folder: Path, run_id: str, *, steps: int) -> None:
    writing = Writing(folder, run_id)
    writing.log(*range(1, steps + 1))
    writing.close()
