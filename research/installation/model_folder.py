"""A model folder of somebody's own: whether it is one, and a hash that says whether it is still the same.

What is checked here needs no torch (`swarm.models`): whether the model can be served is known when it is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from research.errors import BadModel
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel
from swarm.models import folder_hash, model_place, require_model_folder


def hashed(folder: Path, kept: Path | None = None) -> str:
    """Return the hash of a model folder; with `kept`, a folder, hashes of files are remembered there.

    Raises BadModel for a folder that cannot be read.
    """
    try:
        return folder_hash(folder, kept)
    except OSError as error:
        raise BadModel(
            f"expected a model folder that can be read at {folder}; {error.strerror}; bring it back"
        ) from error


def model_folder(text: str, kept: Path | None = None) -> PathModel:
    """Return the model in the folder that `text` names, with its hash; raise BadModel for what is no such folder.

    One that lies in `kept`, the installation's models, is called by its name alone: what a study logs of it then
    holds on any machine. Of any other the absolute path is kept.
    """
    named = Path(text).expanduser()
    folder = (named if kept is None or named.exists() else model_place(text, kept)).absolute()
    try:
        require_model_folder(text if not folder.exists() else folder)
    except InvalidRequest as error:
        raise BadModel(str(error)) from error
    shelved = kept is not None and folder.parent.resolve() == kept.resolve()
    return PathModel(path=folder.name if shelved else str(folder), sha256=hashed(folder, kept))


def require_unchanged(model: PathModel, kept: Path | None = None) -> None:
    """Raise BadModel unless a model's folder holds what it held when the model was named; a model without hash passes.

    A folder that changed under a study would mix trainings of two models under one name.
    """
    if model.sha256 is None:
        return
    folder = Path(model.path) if kept is None else model_place(model.path, kept)
    if not folder.is_dir():
        raise BadModel(f"expected the model folder {folder}, which is trained; found none there; bring it back")
    if (found := hashed(folder, kept)) != model.sha256:
        raise BadModel(
            f"expected the model folder {folder} as it was named (sha256 {model.sha256[:12]}); found it changed "
            f"({found[:12]}); restore it, or train the new one in a study of its own"
        )


def wherever(job: Job) -> Job:
    """Return a job without the place of its model where its hash says which it is: one job on all machines and homes.

    Earlier versions logged the absolute path of a model of the installation, too.
    """
    if not isinstance(job.model, PathModel) or job.model.sha256 is None:
        return job
    return job.model_copy(update={"model": job.model.model_copy(update={"path": ""})})


def parameter_count(folder: Path) -> int | None:
    """Return how many numbers the weights of a model folder hold, by the headers of its files; None without any."""
    counts = [_numbers(path) for path in sorted(folder.glob("*.safetensors"))]
    return sum(counts) or None


def _numbers(path: Path) -> int:
    """Return the numbers in a file of weights: its header says the shape of each."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: Any = json.loads(file.read(min(length, 1 << 27)))
    except (OSError, ValueError):
        return 0
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    return sum(_product(shape) for shape in shapes)


def _product(shape: list[int]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found
