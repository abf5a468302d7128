"""Making the tiny model of a study before its first run, in a process of its own, with progress.

The servers would make it themselves at their first boot; doing it before keeps that time out of the first
runs' and puts the weights' hash into the log. A model from a folder, and the fake backend, need nothing.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from research.errors import ModelFailed
from swarm.job import Job, TinyModel

Note = Callable[[str], None]
"""Takes one line on what is being done, for whoever watches."""

_STEP = re.compile(r"warm start (\d+)/(\d+)")
WEIGHTS = "model.safetensors"


def prepare_model(job: Job, models: Path, note: Note) -> Mapping[str, Any]:
    """Make the model of `job` unless it is there; return the payload of `model.prepared` (hash, seconds).

    Raises ModelFailed with the last words of the process that makes it.
    """
    if not isinstance(job.model, TinyModel) or job.backend == "fake":
        return {"sha256": None, "seconds": 0.0}
    began = time.monotonic()
    folder = _make(job.model, job.environment, models, note)
    weights = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    return {"sha256": weights, "seconds": round(time.monotonic() - began, 3)}


def _make(spec: TinyModel, environment: str, models: Path, note: Note) -> Path:
    arguments = ("--environment", environment, "--models", str(models), "--spec", spec.model_dump_json())
    command = (sys.executable, "-m", "swarm.backends.local.tiny", *arguments)
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip() or last
            if step := _STEP.fullmatch(last):
                note(f"making the tiny model: {100 * int(step[1]) // int(step[2])} %")
    if process.returncode:
        raise ModelFailed(f"expected the tiny model to be made; its process ended with {process.returncode}: {last}")
    return Path(last)
