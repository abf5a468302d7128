"""A check of a model folder, made in a process of its own and kept by what the folder holds.

Promises: a folder that is no model is refused before anything is started. What was measured once of the same files and
under the same conditions is there for whoever prices a study; a check that another version wrote is measured anew.
Does not know what is measured: `swarm.backends.checking` does.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from research.errors import ModelFailed
from research.files import write_bytes
from research.installation.backends import require_backend
from research.installation.machine import cores
from research.installation.tiny_model import Note
from research.models.child import watched
from studies.records.base import digest
from swarm.job import Job, PathModel
from swarm.models import ModelCheck, conditions, folder_hash, model_place, require_model_folder

CHECKS = "checks"


def job_on(path: str | Path, **fields: object) -> Job:
    """Return a job that trains the model in a folder; raise InvalidRequest where that is none."""
    require_model_folder(path)
    return Job.model_validate({**fields, "model": PathModel(path=str(Path(path).absolute()))})


def known_check(job: Job, models: Path) -> ModelCheck | None:
    """Return what was measured of the job's model on this machine under the job's conditions, None before that."""
    try:
        return ModelCheck.model_validate_json(_kept(job, models).read_bytes())
    except (OSError, ValidationError):
        return None


def checks_in(models: Path) -> Callable[[Job], ModelCheck | None]:
    """Return what looks up the checks that are kept beside models, for jobs of any model; nothing is measured."""

    def known(job: Job) -> ModelCheck | None:
        return known_check(job, models) if isinstance(job.model, PathModel) else None

    return known


def measured_check(job: Job, models: Path, note: Note) -> ModelCheck:
    """Measure the job's model, keep what was found, and return it; raise ModelFailed where it is refused."""
    require_backend("local")
    assert isinstance(job.model, PathModel)
    whose = folder_hash(model_place(job.model.path, models), models)
    with tempfile.TemporaryDirectory(prefix="ajet-check-") as scratch:
        out = Path(scratch) / "check.json"
        arguments = ("--job", job.model_dump_json(), "--folder-hash", whose, "--out", str(out))
        ended = watched((sys.executable, "-m", "swarm.backends.checking.main", *arguments), note)
        if ended.code or not out.is_file():
            raise ModelFailed(f"the model does not pass: {ended.why}" if ended.code < 0 else ended.why)
        found = ModelCheck.model_validate_json(out.read_bytes())
    write_bytes(_kept(job, models), found.model_dump_json(indent=2).encode())
    return found


def _kept(job: Job, models: Path) -> Path:
    """Return the file of a check: its name is a hash over what the folder holds, the job's conditions and the cores."""
    assert isinstance(job.model, PathModel)
    folder = job.model.sha256 or folder_hash(model_place(job.model.path, models), models)
    parts = {"folder": folder, "conditions": conditions(job), "cores": cores()}
    return models / CHECKS / f"{digest(parts)}.json"
