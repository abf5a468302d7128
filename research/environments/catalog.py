"""Built-in, installed, custom, by address; references as typed.

What was measured of an environment, alone or with a model, for prices, headroom and planners:

    measured/NAME@HASH/none.json             by its own code: oracle, demonstrations, empty and random answers
    measured/NAME@HASH/MODEL-HASH-HASH.json  with a model: tiny, path or fake (which has none, nor a first hash)

A file is replaced by the next measurement under the same conditions (the second hash); it says nothing of other ones.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from research.environments.reference import find_entry_points
from research.files import write_json
from research.installation.home import Home
from swarm.environments.adapters import ADAPTERS
from swarm.environments.building import SPLITS
from swarm.environments.custom import MARK, CustomEnvironment
from swarm.environments.registry import environments
from swarm.errors import InvalidRequest
from swarm.job import Job, ModelSpec, PathModel, TinyModel
from swarm.models import conditions, folder_hash

NO_MODEL: Final = "none"
_DIGITS = 16
_SAMPLING: Final = frozenset({"backend", "max_tokens", "temperature", "foreign_sampling"})
"""Fields of a job that decide what its untrained model says, beside those that speed depends on."""
_WARM_START: Final = "warm_start_steps"


class MeasuredEnvironment(BaseModel):
    """Figures of one environment on this machine; None for what was not measured."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    environment: str
    """Its full name: built in, or with the hash of what it consists of."""
    model: str = NO_MODEL
    """Key of the model (`model_key`)."""
    measured_at: str
    """UTC, in ISO 8601."""
    job: Mapping[str, Any] = {}
    """Job fields that were not at their defaults, but for environment and model, and what `conditions_of` names."""
    faults: tuple[str, ...] | None = None
    """What its check without a model found; None with a model, and where a version that kept none wrote it."""
    calls_per_episode: float | None = None
    """Model calls; without a model those of demonstrations, else of the oracle, else of random answers."""
    environment_seconds_per_episode: float | None = None
    """Seconds of the environment's own code."""
    prompt_tokens: float | None = None
    """Per episode: ids that its prompts add, each counted once."""
    sampled_tokens: float | None = None
    """Per episode."""
    cut_short: float | None = None
    """Share of answers that ended at the job's `max_tokens`."""
    seconds_per_episode: float | None = None
    """Wall seconds of an evaluation over its episodes, with `concurrency` at once."""
    concurrency: int | None = None
    """Episodes at once in that evaluation."""
    runs_at_once: int | None = None
    """Runs among which the server shared the machine's cores, as those of a study do; None where it had them all."""
    seconds_per_trained_episode: float | None = None
    """Wall seconds of a training step over its episodes: played and learned."""
    startup_s: float | None = None
    """Seconds from starting a server to its serving the model, which was made before."""
    base_success: float | None = None
    """Share of search episodes that the untrained model solves."""
    base_success_n: int = 0
    """Episodes behind `base_success`."""
    equal_groups: float | None = None
    """Share of groups, of `group_size` episodes of one task, whose rewards are all equal: they teach nothing."""
    equal_groups_n: int = 0
    """Groups behind `equal_groups`."""
    group_size: int | None = None
    """Episodes of one such group."""


def model_key(model: ModelSpec) -> str:
    """Return what a model is known by among measurements: the hash of how it is made, or of its folder's files."""
    match model:
        case TinyModel():
            return f"tiny-{_hash(model.value())[:_DIGITS]}"
        case PathModel():
            return f"path-{(model.sha256 or folder_hash(Path(model.path)))[:_DIGITS]}"


def conditions_of(job: Job) -> dict[str, Any]:
    """Return what of a job decides what its untrained model says and how fast, beside environment and model."""
    said = {**conditions(job), **job.model_dump(mode="json", include=set(_SAMPLING))}
    return said | ({_WARM_START: job.model.warm_start_steps} if isinstance(job.model, PathModel) else {})


def differences(known: MeasuredEnvironment, job: Job) -> tuple[str, ...]:
    """Return in words in which conditions a job is not as what was measured; empty where it holds for the job."""
    wanted, made = conditions_of(job), _conditions(known)
    return tuple(f"{name} {made[name]}, not {wanted[name]}" for name in wanted if made[name] != wanted[name])


def unusual_conditions(known: MeasuredEnvironment) -> dict[str, Any]:
    model = PathModel(path="") if known.model.startswith("path-") else TinyModel()
    usual = {_WARM_START: 0, **conditions_of(Job(model=model))}
    return {name: value for name, value in _conditions(known).items() if value != usual[name]}


def find_measurements(home: Home, environment: str) -> tuple[MeasuredEnvironment, ...]:
    """Return all that was measured of an environment, without a model first; what cannot be read is left out."""
    measured = _read_measurements(home, environment).values()
    return tuple(sorted(measured, key=lambda known: (known.model != NO_MODEL, known.model, known.measured_at)))


def find_all_measurements(home: Home) -> tuple[MeasuredEnvironment, ...]:
    files = (file for file in resources.files("research.environments").iterdir() if file.name.endswith(".json"))
    shipped = [MeasuredEnvironment.model_validate_json(file.read_bytes()) for file in files]
    folders = sorted(folder.name for folder in home.measured.glob("*") if folder.is_dir())
    return (*shipped, *(known for name in folders for known in find_measurements(home, name)))


def save_measurement(home: Home, measured: MeasuredEnvironment) -> Path:
    """Write a measurement in place of an earlier one under the same conditions; return its file."""
    alone = measured.model == NO_MODEL
    name = measured.model if alone else f"{measured.model}-{_hash(_conditions(measured))[:_DIGITS]}"
    earlier = (
        path for path, known in _read_measurements(home, measured.environment).items()
        if known.model == measured.model and (alone or _conditions(known) == _conditions(measured))
    )  # fmt: skip
    path = next(earlier, home.measured / measured.environment / f"{name}.json")
    write_json(path, measured.model_dump(mode="json"))
    return path


def _read_measurements(home: Home, environment: str) -> dict[Path, MeasuredEnvironment]:
    measured = {}
    for path in sorted((home.measured / environment).glob("*.json")):
        with suppress(OSError, ValidationError):
            measured[path] = MeasuredEnvironment.model_validate_json(path.read_bytes())
    return measured


def _conditions(known: MeasuredEnvironment) -> dict[str, Any]:
    """Return the conditions of a measurement; one that its file does not say is None, and no job's."""
    return {**{name: known.job.get(name) for name in conditions_of(Job())}, _WARM_START: known.job.get(_WARM_START, 0)}


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def catalogue(home: Home) -> dict[str, Any]:
    return {
        "built_in": [
            {"name": name, "title": each.title, "tasks": {split: len(each.tasks(split)) for split in SPLITS}}
            for name, each in environments().items()
            if MARK not in name
        ],
        "installed": [{"name": name, "object": entry.value} for name, entry in find_entry_points().items()],
        "brought": [_custom_entry(folder, home) for folder in sorted(home.environments.glob(f"[!.]*{MARK}*"))],
        "addresses": [
            {"scheme": scheme, "example": adapter.example, "requirement": adapter.requirement,
             "here": importlib.util.find_spec(adapter.package) is not None
             or (home.packages / scheme / adapter.package).is_dir()}
            for scheme, adapter in ADAPTERS.items()
        ],
    }  # fmt: skip


def _custom_entry(folder: Path, home: Home) -> dict[str, Any]:
    try:
        manifest = CustomEnvironment.open(folder).manifest
    except InvalidRequest as error:
        return {"name": folder.name, "fault": str(error)}
    measured = find_measurements(home, manifest.full_name)
    return {
        "name": manifest.full_name, "title": manifest.title, "from": manifest.reference,
        "tasks": {split: manifest.splits[split] for split in SPLITS}, "hidden_apart": manifest.hidden_apart,
        "measured_with": list(dict.fromkeys(each.model for each in measured)),
        "faults": [fault for each in measured for fault in each.faults or ()],
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    }  # fmt: skip
