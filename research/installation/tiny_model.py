"""Making the model of a study before its first run, in a process of its own, with progress.

A tiny one is made on the spot, one of a folder is warm-started or only checked. The process is started again, three
times in all, when a signal killed it, as a machine short of memory does.
"""

import hashlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from research.errors import ModelFailed
from research.installation.base_job import python_of, require_unchanged
from sandboxes.spec import describe_signal
from studies.records.statements import model_name
from swarm.job import Job, PathModel, TinyModel
from swarm.models import find_tiny

Note = Callable[[str], None]
"""Takes one line on what is being done, for whoever watches."""

_STEP = re.compile(r"warm start (\d+)/(\d+)")
WEIGHTS = "model.safetensors"
MOST_TRIES = 3
_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)
"""Signals of somebody who wants an end, and not another try."""


def prepare_model(job: Job, models: Path, note: Note) -> Mapping[str, Any]:
    """Make the model of `job` unless it is there; return the payload of `model.prepared` (hash, seconds). Raises
    ModelFailed with the last words of each process that tried, and InvalidRequest for a folder that changed."""
    if isinstance(job.model, PathModel):
        require_unchanged(job.model, models)
        if not job.model.warm_start_steps:
            return {"sha256": job.model.sha256, "seconds": 0.0}
    if job.backend not in ("local", "verl"):
        return {"sha256": None, "seconds": 0.0}
    began, tiny, found = time.monotonic(), isinstance(job.model, TinyModel), None
    if isinstance(job.model, TinyModel) and job.backend == "local":  # verl's torch gives other last bits
        found = find_tiny(job.model, job.environment, models)
    what = "the tiny model" if tiny else f"the warm start of {model_name(job.model.model_dump())}"
    folders = ("--models", str(models), "--environments", str(models.parent / "environments"))
    maker = "swarm.backends.local.warm_start"
    command = (python_of(job.backend), "-m", maker, "--job", job.model_dump_json(), *folders)
    deaths: list[str] = []
    while found is None:
        last = ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip() or last
                if step := _STEP.fullmatch(last):
                    note(f"making {what}: {100 * int(step[1]) // int(step[2])} %")
        if (code := process.returncode) == 0:  # the last line is the model's folder
            found = Path(last)
            break
        deaths.append(f"{describe_exit(code)}, last saying: {last or 'nothing'}")
        if code > 0 or -code in _ASKED_TO_END or len(deaths) == MOST_TRIES:
            tries = f"{len(deaths)} tries: " if len(deaths) > 1 else ""
            raise ModelFailed(f"expected {what} to be made; its process {tries}{'; '.join(deaths)}")
        note(f"making {what} again: its process {deaths[-1]}")
    weights = hashlib.sha256((found / WEIGHTS).read_bytes()).hexdigest()
    return {"sha256": weights, "seconds": round(time.monotonic() - began, 3)}


def describe_exit(code: int) -> str:
    return f"ended with code {code}" if code >= 0 else f"was killed by {describe_signal(-code)}"
