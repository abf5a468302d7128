"""The job under all arms (`--job`): what it fixes, its model folder, its backend.

A field is fixed where the user says it, even at its default; what the file leaves out is free. A topic or flag that
names a fixed field must name its value. Nothing heavy is imported to check a model folder or a backend; `verl` runs in
an environment of its own, since vLLM and Prefect cannot share one (AJET_VERL_PYTHON, docs/cluster.md).
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from research.errors import BadInput, DesignRefused, NotReady
from research.text import did_you_mean
from studies import StudyState
from studies.records.design import MODEL
from studies.records.statements import setting
from swarm.environments.registry import environments, get_environment
from swarm.errors import InvalidRequest, to_invalid_request
from swarm.job import Job, PathModel, TinyModel, default_learning_rate
from swarm.models import folder_hash, model_place, require_model_folder
from swarm.plugins import BACKENDS, BUILT_IN_BACKENDS, backend_names, load

_SET_FOR_EACH_RUN: Final = {"seed", "tracking"}
"""Fields that a study sets for each run."""
APART: Final = ("seed", "tracking", "evaluate_after", "eval_every", "evaluation_episodes")
"""Fields of a job of which no training depends: chance, names, and when somebody looks."""
_FAR: Final = 20
"""A step size that is so many times the usual one, or less than one in so many of it, is told."""
_KEY: Final = "base_job"
_FIXED: Final = "base_fixed"
_FIELDS_OF_A_RUN: Final[Mapping[str, str]] = {
    "seed": "each run has a seed that is drawn after the lock",
    "tracking": "each run is tracked in its own folder",
    "streams": "each run plays one stream, its environment's",
    "train_agents": "an environment's agent plays, whose calls say no name",
    "start_from": "a study begins with a model: give the folder as that (--model)",
    "evaluate_after": "the study's metric says when runs are evaluated (--metric, `ajet metric list`)",
    "eval_every": "the study's metric says when runs are evaluated (--metric, `ajet metric list`)",
    "evaluation_episodes": "the study's metric says on how many episodes (--metric, --episodes)",
}
"""Fields of a job that a study sets, and how."""
LOCAL_PACKAGES: Final = ("torch", "transformers", "safetensors")
LOCAL_REMEDY: Final = "pip install 'ajet[local]' (torch first: pip install torch==2.13.0)"
PREFECT_REMEDY: Final = "pip install 'ajet[prefect]'"

VERL_PACKAGES: Final = ("torch", "transformers", "ray", "verl", "vllm", "tensordict", "peft")
"""What the backend `verl` needs."""
VERL_PYTHON: Final = "AJET_VERL_PYTHON"
"""Names the variable with the Python of the environment in which swarm servers of the backend `verl` run."""
VERL_REMEDY: Final = (
    "make an environment of its own for ajet[verl] (docs/cluster.md says how) and name its Python: export "
    f"{VERL_PYTHON}=/path/to/bin/python"
)
_VERL_VARIABLES: Final = (VERL_PYTHON, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
_LOOK_S = 60.0


def parse_job(record: Mapping[str, Any]) -> Job | None:
    """Return a recorded job; None for one that this ajet does not know."""
    with suppress(ValidationError):
        return Job.from_record(record)
    return None


def require_job(record: Mapping[str, Any]) -> Job:
    try:
        return Job.from_record(record)
    except ValidationError as error:
        raise BadInput(
            f"expected a job that this ajet trains; an earlier one began it: {to_invalid_request(error)}"
        ) from None


def find_fixed_fields(base: Job) -> dict[str, Any]:
    """Return the fields of a base job that were said, or are not as in every other job, as JSON values."""
    held = base.model_dump(mode="json", exclude=_SET_FOR_EACH_RUN)
    usual = {**Job.default_fields(base.model, base.lora_rank), **pretrained_fields(base)}
    return {name: value for name, value in held.items() if name in base.model_fields_set or value != usual.get(name)}


def pretrained_fields(job: Job) -> Mapping[str, Any]:
    """Return what a job's environment has for pretrained models where its model is one, and nobody says another."""
    known = isinstance(job.model, PathModel) and job.environment in environments()
    return get_environment(job.environment).pretrained if known else {}


def require_agreement(base: Job | None, named: Mapping[str, Iterable[Any]]) -> None:
    """Raise DesignRefused where fields are named with values among which is not what the base job fixes them at."""
    fixed = {} if base is None else find_fixed_fields(base)
    for name, values in named.items():
        if name not in fixed or fixed[name] in (given := list(values)):
            continue
        said = " and ".join(setting(name, value) for value in given)
        told = f"expected {setting(name, fixed[name])}, which the job of the study fixes; found {said}"
        place = "--job or --model" if name == MODEL else "the job file"
        raise DesignRefused(
            f"{told}; name that value too, or leave the field out of {place}", model_feedback=f"{told}; keep to it"
        )


def hash_model_folder(folder: Path, kept: Path | None = None) -> str:
    """Return the hash of a model folder, or raise InvalidRequest; in the folder `kept` files' hashes are remembered."""
    try:
        return folder_hash(folder, kept)
    except OSError as error:
        raise InvalidRequest(
            f"expected a model folder that can be read at {folder}; {error.strerror}; bring it back"
        ) from error


def model_folder(text: str, kept: Path | None = None) -> PathModel:
    """Return the model in the folder that `text` names, with its hash; raise InvalidRequest for what is no such folder.
    One in `kept`, the installation's models, is called by its name alone, as a study's log has to hold on any machine.
    """
    named = Path(text).expanduser()
    folder = (named if kept is None or named.exists() else model_place(text, kept)).absolute()
    require_model_folder(text if not folder.exists() else folder)
    shelved = kept is not None and folder.parent.resolve() == kept.resolve()
    return PathModel(path=folder.name if shelved else str(folder), sha256=hash_model_folder(folder, kept))


def require_unchanged(model: PathModel, kept: Path | None = None) -> None:
    """Raise InvalidRequest unless a model's folder holds what it held when it was named; one without hash passes."""
    if model.sha256 is None:
        return
    folder = Path(model.path) if kept is None else model_place(model.path, kept)
    if not folder.is_dir():
        what = f"{folder} (sha256 {model.sha256[:12]}; see: ajet model list)"
        raise InvalidRequest(f"expected the model folder {what}, which is trained; found none there; bring it back")
    if (found := hash_model_folder(folder, kept)) != model.sha256:
        raise InvalidRequest(
            f"expected the model folder {folder} as it was named (sha256 {model.sha256[:12]}); found it changed "
            f"({found[:12]}); restore it, or train the new one in a study of its own"
        )


def without_model_path(job: Job) -> Job:
    """Return a job without the place of its model where its hash says which it is: one job on all machines."""
    if not isinstance(job.model, PathModel) or job.model.sha256 is None:
        return job
    return job.model_copy(update={"model": job.model.model_copy(update={"path": ""})})


def read_job(path: Path) -> Job:
    """Return the job in a file; raise BadInput for a file that cannot be read or holds none."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(f"expected a job file, could not read {path}: {error.strerror}") from error
    if not text.strip():
        raise BadInput(f"expected a job as JSON in {path}; found an empty file; see `ajet job explain`")
    try:
        job = Job.model_validate_json(text)
    except ValidationError as error:
        raise BadInput(f"{path} is no job: {_describe_error(error)}; see `ajet job explain`") from error

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
        if twice := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
            raise BadInput(f"{path} is no job: expected each field once; found {twice[0]} twice; leave one of them out")

    json.loads(text, object_pairs_hook=reject_duplicates)
    return job


def _describe_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place, said = first["loc"], str(to_invalid_request(error))
    if len(place) > 2 and place[0] == MODEL:
        said = said.replace(f"{MODEL}.{place[1]}.", f"{MODEL}.", 1)
    if first["type"] != "extra_forbidden":
        return said
    known = Job if len(place) == 1 else PathModel if place[1] == "path" else TinyModel
    return f"{said}{did_you_mean(str(place[-1]), known.model_fields)}"


def base_job(
    file: Path | None, folder: str | None, hashes: Path | None = None, backend: str | None = None
) -> Job | None:
    """Return the job under all arms that a file, a model's folder and a backend's name say; None where nobody says any.
    Hashes of its files are kept in the folder `hashes`. Raises BadInput, also for two models, or InvalidRequest."""
    if file is None and folder is None and backend is None:
        return None
    job = Job() if file is None else read_job(file)
    if name := next((name for name in _FIELDS_OF_A_RUN if file is not None and name in job.model_fields_set), None):
        why = _FIELDS_OF_A_RUN[name]
        raise BadInput(f"expected a job without {name} for a study; found it in {file}; leave it out: {why}")
    said = job if backend is None else with_fields(job, backend=backend)
    named = said.model.path if isinstance(said.model, PathModel) else None
    if named is not None and folder is not None:
        raise BadInput(f"expected one model; found {named} in {file} and --model {folder}; leave one of them out")
    place = named or folder
    if place is None:
        return said
    found = model_folder(place, hashes)
    if isinstance(said.model, PathModel) and said.model.sha256 not in (None, found.sha256):
        raise BadInput(
            f"expected the model that {file} names (sha256 {str(said.model.sha256)[:12]}); found another in {place} "
            f"({str(found.sha256)[:12]}); restore it, or correct the file"
        )
    if isinstance(said.model, PathModel):  # what else the file says of the model stays, such as its warm start
        found = said.model.model_copy(update={"path": found.path, "sha256": found.sha256})
    return with_fields(said, model=found)


def with_fields(job: Job, **fields: Any) -> Job:
    """Return a job with other fields, and its model's defaults; raise BadInput where they do not fit the job's own."""
    try:
        return Job.model_validate({**job.model_dump(exclude_unset=True), **fields})
    except ValidationError as error:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in fields)
        raise BadInput(f"{names}: {to_invalid_request(error)}") from error


def fit_to_environment(job: Job, environment: str) -> Job:
    """Return the job of a pretrained model in an environment, with what that has for such where the job says nothing:
    values that nobody fixed. A tiny model's job is returned as it is, and one where the environment has none."""
    if not (own := pretrained_fields(job.model_copy(update={"environment": environment}))):
        return job
    said = {*job.model_fields_set, "environment"}
    given = {name: own[name] for name in own.keys() - said}
    fitted = with_fields(job, model=job.model, environment=environment, **given)
    return Job.model_construct(_fields_set=said, **{name: getattr(fitted, name) for name in Job.model_fields})


def describe_unusual_rate(job: Job) -> str | None:
    usual = default_learning_rate(job.model, job.lora_rank)
    if not job.learning_rate or usual / _FAR <= job.learning_rate <= usual * _FAR:
        return None
    what = describe_trained_weights(job)
    return f"learning_rate {job.learning_rate:g} is far from {usual:g}, which is usual for {what} (docs/real-models.md)"


def describe_trained_weights(job: Job) -> str:
    if not isinstance(job.model, PathModel):
        return "the tiny model"
    return f"{'an adapter' if job.lora_rank else 'all weights'} of a pretrained model"


def base_settings(job: Job | None) -> dict[str, Any]:
    if job is None:
        return {}
    return {_KEY: job.model_dump(mode="json", exclude=_SET_FOR_EACH_RUN), _FIXED: find_fixed_fields(job)}


def base_job_of(settings: Mapping[str, Any]) -> Job:
    """Return the job under all arms of a study, which fixes what it did; the default where its settings name none."""
    if settings.get(_KEY) is None:
        return Job()
    held = require_job(settings[_KEY])
    values = {name: getattr(held, name) for name in Job.model_fields}
    return Job.model_construct(_fields_set=set(settings.get(_FIXED, ())), **values)  # a record says every field


def require_known(backend: str) -> None:
    if backend not in (known := backend_names()):
        raise NotReady(
            f"expected a backend among {', '.join(known)}; found {backend!r}"
            f"{did_you_mean(backend, known) or '; install the package that brings it'}"
        )


def require_backend(backend: str) -> None:
    """Raise NotReady unless a backend has this name, and what it needs can be found."""
    require_known(backend)
    if backend not in BUILT_IN_BACKENDS:
        try:
            load(BACKENDS, backend)
        except InvalidRequest as error:
            raise NotReady(str(error)) from error
    if backend == "verl":
        _require_verl(python_of(backend))
    missing = [name for name in LOCAL_PACKAGES if backend == "local" and find_spec(name) is None]
    if missing:
        raise NotReady(
            f"expected {', '.join(LOCAL_PACKAGES)} for the backend {backend}; found no {' and no '.join(missing)}; "
            f"{LOCAL_REMEDY}"
        )


def python_of(backend: str) -> str:
    """Return the Python that runs a swarm server of a backend; NotReady where nobody named it."""
    if backend != "verl":
        return sys.executable
    if named := os.environ.get(VERL_PYTHON):
        return named
    if missing := [name for name in VERL_PACKAGES if find_spec(name) is None]:
        raise NotReady(
            f"expected the packages of the backend verl here or in the environment of {VERL_PYTHON}; found no "
            f"{' and no '.join(missing)}, and the variable not set; {VERL_REMEDY}"
        )
    return sys.executable


def variables_of(backend: str) -> dict[str, str]:
    """Return the variables of this process that whatever starts servers of a backend needs, too: none is a secret."""
    names = _VERL_VARIABLES if backend == "verl" else ()
    return {name: os.environ[name] for name in names if name in os.environ}


@cache
def _require_verl(python: str) -> None:
    needed = ("swarm", *VERL_PACKAGES)
    look = f"from importlib.util import find_spec as f; print(*[n for n in {needed!r} if not f(n)], sep=', ')"
    try:
        ran = subprocess.run([python, "-P", "-c", look], capture_output=True, text=True, timeout=_LOOK_S, check=False)
        said = ran.stdout.strip() if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["nothing"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if said:
        raise NotReady(f"expected {', '.join(needed)} where {python} looks; missing: {said}; {VERL_REMEDY}")


def backend_of(state: StudyState) -> str:
    """Return the backend of a study's runs: the locked one, or that of its base job before a lock."""
    job = state.design.base_job if state.design is not None else state.noise_plan.job if state.noise_plan else None
    return base_job_of(state.settings).backend if job is None else str(job.get("backend", Job().backend))
