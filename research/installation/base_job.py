"""The job under all arms of a study: read from a file, with the model of a folder, and kept in the study's settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from research.base_fields import fixed_fields
from research.errors import BadJob
from research.installation.model_folder import model_folder
from research.spelling import did_you_mean
from studies.records.design import MODEL
from swarm.errors import wrong_value
from swarm.job import Job, PathModel, TinyModel, usual_rate

_FAR: Final = 20
"""A step size that is so many times the usual one, or less than one in so many of it, is told."""
_KEY: Final = "base_job"
_FIXED: Final = "base_fixed"
_OWN: Final[Mapping[str, str]] = {
    "seed": "each run has a seed that is drawn after the lock",
    "tracking": "each run is tracked in its own folder",
    "streams": "each run plays one stream, its environment's",
    "train_agents": "an environment's agent plays, whose calls say no name",
    "start_from": "a study begins with a model: give the folder as that (--model-path)",
    "evaluate_after": "the study's metric says when runs are evaluated (--metric, `ajet metric list`)",
    "eval_every": "the study's metric says when runs are evaluated (--metric, `ajet metric list`)",
    "evaluation_episodes": "the study's metric says on how many episodes (--metric, --episodes)",
}
"""Fields of a job that a study sets, and how."""


def read_job(path: Path) -> Job:
    """Return the job in a file; raise BadJob for a file that cannot be read or holds none."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadJob(f"expected a job file, could not read {path}: {error.strerror}") from error
    if not text.strip():
        raise BadJob(f"expected a job as JSON in {path}; found an empty file; see `ajet job explain`")
    try:
        job = Job.model_validate_json(text)
    except ValidationError as error:
        raise BadJob(f"{path} is no job: {_wrong(error)}; see `ajet job explain`") from error
    json.loads(text, object_pairs_hook=partial(_each_once, path))
    return job


def _wrong(error: ValidationError) -> str:
    """Return what is wrong in one line, with the name that may have been meant; a model's kind is in no path of it."""
    first = error.errors(include_url=False, include_context=False)[0]
    place, said = first["loc"], str(wrong_value(error))
    if len(place) > 2 and place[0] == MODEL:
        said = said.replace(f"{MODEL}.{place[1]}.", f"{MODEL}.", 1)
    if first["type"] != "extra_forbidden":
        return said
    known = Job if len(place) == 1 else PathModel if place[1] == "path" else TinyModel
    return f"{said}{did_you_mean(str(place[-1]), known.model_fields)}"


def _each_once(path: Path, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; raise BadJob for a field that is said twice, as only one could be meant."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise BadJob(f"{path} is no job: expected each field once; found {name} twice; leave one of them out")
    return dict(pairs)


def base_job(
    file: Path | None, folder: str | None, hashes: Path | None = None, backend: str | None = None
) -> Job | None:
    """Return the job under all arms that a file, a model's folder and a backend's name say; None where nobody says any.

    The model's folder is looked at and hashed; hashes of its files are kept in the folder `hashes`. Raises BadJob for
    a file that is no job of a study, and for two folders of a model; BadModel for a folder that holds none.
    """
    if file is None and folder is None and backend is None:
        return None
    said = with_backend(Job() if file is None else _of_a_study(file), backend)
    named = said.model.path if isinstance(said.model, PathModel) else None
    if named is not None and folder is not None:
        raise BadJob(f"expected one model; found {named} in {file} and --model-path {folder}; leave one of them out")
    place = named or folder
    if place is None:
        return said
    found = model_folder(place, hashes)
    if isinstance(said.model, PathModel) and said.model.sha256 not in (None, found.sha256):
        raise BadJob(
            f"expected the model that {file} names (sha256 {str(said.model.sha256)[:12]}); found another in {place} "
            f"({str(found.sha256)[:12]}); restore it, or correct the file"
        )
    if isinstance(said.model, PathModel):  # what else the file says of the model stays, such as its warm start
        found = said.model.model_copy(update={"path": found.path, "sha256": found.sha256})
    return with_fields(said, model=found)


def with_backend(job: Job, backend: str | None) -> Job:
    """Return a job with a backend in place of its own; raise BadJob where it holds fields of another's."""
    return job if backend is None else with_fields(job, backend=backend)


def with_fields(job: Job, **fields: Any) -> Job:
    """Return a job with other fields, and its model's defaults; raise BadJob where they do not fit the job's own."""
    try:
        return Job.model_validate({**job.model_dump(exclude_unset=True), **fields})
    except ValidationError as error:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in fields)
        raise BadJob(f"{names}: {wrong_value(error)}") from error


def far_off(job: Job) -> str | None:
    """Return that a job's step size is far from what is usual for its model, in a sentence; None where it is not."""
    usual = usual_rate(job.model, job.lora_rank)
    if not job.learning_rate or usual / _FAR <= job.learning_rate <= usual * _FAR:
        return None
    return (
        f"learning_rate {job.learning_rate:g} is far from {usual:g}, which is usual for {trained_how(job)} "
        "(docs/models.md)"
    )


def trained_how(job: Job) -> str:
    """Return what of which model a job trains, in words."""
    if not isinstance(job.model, PathModel):
        return "the tiny model"
    return f"{'an adapter' if job.lora_rank else 'all weights'} of a pretrained model"


def _of_a_study(file: Path) -> Job:
    job = read_job(file)
    for name, why in _OWN.items():
        if name in job.model_fields_set:
            raise BadJob(f"expected a job without {name} for a study; found it in {file}; leave it out: {why}")
    return job


def base_settings(job: Job | None) -> dict[str, Any]:
    """Return a base job as a study's settings hold it, with what it fixes, for reports; empty for none."""
    if job is None:
        return {}
    return {_KEY: job.model_dump(mode="json", exclude={"seed", "tracking"}), _FIXED: fixed_fields(job)}


def base_job_of(settings: Mapping[str, Any]) -> Job:
    """Return the job under all arms of a study, which fixes what it did; the default where its settings name none."""
    if settings.get(_KEY) is None:
        return Job()
    held = Job.recorded(settings[_KEY])
    values = {name: getattr(held, name) for name in Job.model_fields}
    return Job.model_construct(_fields_set=set(settings.get(_FIXED, ())), **values)  # a record says every field
