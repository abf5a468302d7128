"""Making the tiny model of a study before its first run, in a process of its own, with progress.

The servers would make it themselves at their first boot; doing it before keeps that time out of the first
runs' and puts the weights' hash into the log. A model from a folder, and the fake backend, need nothing. The
process is started again, three times in all, when a signal killed it, as a machine short of memory does; not when it
failed by itself.
"""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.errors import ModelFailed
from swarm.job import Job, TinyModel

Note = Callable[[str], None]
"""Takes one line on what is being done, for whoever watches."""

_STEP = re.compile(r"warm start (\d+)/(\d+)")
WEIGHTS = "model.safetensors"
MOST_TRIES = 3
_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)
"""Signals of somebody who wants an end, and not another try."""


def prepare_model(job: Job, models: Path, note: Note) -> Mapping[str, Any]:
    """Make the model of `job` unless it is there; return the payload of `model.prepared` (hash, seconds).

    Raises ModelFailed with the last words of each process that tried to make it.
    """
    if not isinstance(job.model, TinyModel) or job.backend == "fake":
        return {"sha256": None, "seconds": 0.0}
    began = time.monotonic()
    folder = _make(job.model, job.environment, models, note)
    weights = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    return {"sha256": weights, "seconds": round(time.monotonic() - began, 3)}


def _make(spec: TinyModel, environment: str, models: Path, note: Note) -> Path:
    arguments = ("--environment", environment, "--models", str(models), "--spec", spec.model_dump_json())
    command = (sys.executable, "-m", "swarm.backends.tiny.model", *arguments)
    deaths: list[str] = []
    while True:
        code, last = _watched(command, note)
        if code == 0:
            return Path(last)
        deaths.append(f"{_end(code)}, last saying: {last or 'nothing'}")
        if code > 0 or -code in _ASKED_TO_END or len(deaths) == MOST_TRIES:
            tries = f"{len(deaths)} tries: " if len(deaths) > 1 else ""
            raise ModelFailed(f"expected the tiny model to be made; its process {tries}{'; '.join(deaths)}")
        note(f"making the tiny model again: its process {deaths[-1]}")


def _watched(command: Sequence[str], note: Note) -> tuple[int, str]:
    """Return how the process ended, and the end of its output."""
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip() or last
            if step := _STEP.fullmatch(last):
                note(f"making the tiny model: {100 * int(step[1]) // int(step[2])} %")
    return process.returncode, last


def _end(code: int) -> str:
    if code > 0:
        return f"ended with code {code}"
    short = " (is the machine short of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code}{short}"
