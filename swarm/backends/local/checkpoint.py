"""Checkpoints: named sets of tensors and facts in one folder, all or nothing.

    FOLDER/manifest.json          {"format": 1, "facts": {...}, "files": {"NAME.safetensors": sha256}}
    FOLDER/NAME.safetensors       one per set
    FOLDER/driver/, rank-N/       of several ranks: the driver's, with each rank's manifest hash; shards of rank N

Files and folder are synced before the rename; reading checks every hash; nothing is unpickled. What some number of
ranks wrote can be read by any other, and as the whole model: tensors are cut along their first dimension as FSDP2 does.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from swarm.backends.protocols import NO_ROOM, DiskFull
from swarm.rendering.messages import BackendError

_FORMAT = 1
MANIFEST = "manifest.json"
"""The file that names a checkpoint's other files and their hashes."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Sets of named tensors by set name, and facts that fit in JSON."""

    sets: Mapping[str, Mapping[str, Tensor]]
    facts: Mapping[str, Any]


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Give a folder beside `folder` to write to, and rename it; one in the way is moved aside first and removed last.
    BackendError where it cannot be (DiskFull: no room); nothing is left of what fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
        try:
            yield partial
            aside = partial.with_name(f"{partial.name}.old")
            if folder.exists():
                folder.rename(aside)
            partial.rename(folder)
            _sync(folder.parent)
            shutil.rmtree(aside, ignore_errors=True)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        failure = f"the checkpoint {folder} could not be written: {error}"
        if is_full(error):
            raise DiskFull(f"{failure}; free space") from error
        raise BackendError(f"{failure}; fix the path") from error


def write(folder: Path, checkpoint: Checkpoint) -> None:
    with written_whole(folder) as partial:
        hashes: dict[str, str] = {}
        for name, tensors in checkpoint.sets.items():
            path = partial / f"{name}.safetensors"
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
            hashes[path.name] = digest(path)
            _sync(path)
        manifest = partial / MANIFEST
        manifest.write_text(json.dumps({"format": _FORMAT, "facts": dict(checkpoint.facts), "files": hashes}))
        _sync(manifest)
        _sync(partial)


def is_full(error: Exception) -> bool:
    """Return whether a file was not written for want of room; safetensors says the number in its message alone."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return any(f"os error {number}" in str(error) for number in NO_ROOM)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(folder: Path, only: str = "") -> Checkpoint:
    """Return what `write` wrote, or `only` the set of this name, whatever became of others; raise BackendError that
    names the file which is missing or damaged."""
    facts, files = _read_manifest(folder, only)
    return Checkpoint({name: load_file(path) for name, path in files.items()}, facts)


def _read_manifest(folder: Path, only: str = "") -> tuple[dict[str, Any], dict[str, Path]]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise BackendError(f"{folder} is no checkpoint: it has no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} is damaged ({error}): choose an older checkpoint") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise BackendError(
            f"{path}: expected a manifest of format {_FORMAT}: choose a checkpoint of this version of ajet"
        )
    facts, hashes = manifest.get("facts"), manifest.get("files")
    if not isinstance(hashes, dict) or not isinstance(facts, dict):
        raise BackendError(f"{path}: expected a manifest with files and facts: choose an older checkpoint")
    hashes = {name: expected for name, expected in hashes.items() if only in ("", Path(name).stem)}
    for name, expected in hashes.items():
        if not (folder / name).is_file():
            raise BackendError(f"the checkpoint {folder} lacks {name}: choose an older checkpoint")
        if digest(folder / name) != expected:
            raise BackendError(
                f"{folder / name} is damaged (its hash is not the manifest's): choose an older checkpoint"
            )
    return facts, {Path(name).stem: folder / name for name in hashes}


Sets = Mapping[str, Mapping[str, Tensor]]
"""Tensors by name, by the name of their set."""
MODEL, OPTIMIZER = "model", "optimizer"
_DRIVER, _RANKS = "driver", "ranks"


def write_rank(folder: Path, rank: int, sets: Sets) -> None:
    write(_rank_folder(folder, rank), Checkpoint(sets, {"rank": rank}))


def write_driver(folder: Path, world: int, driver: Checkpoint) -> None:
    """Write what is no rank's, after all `world` of them wrote: it makes the checkpoint whole."""
    manifests = [digest(_rank_folder(folder, rank) / MANIFEST) for rank in range(world)]
    facts = {**driver.facts, _RANKS: manifests}
    write(folder / _DRIVER, Checkpoint(driver.sets, facts))


def read_driver(folder: Path) -> Checkpoint:
    """Return what `write_driver` wrote; BackendError where the checkpoint lacks a rank, or has another's."""
    found = read(folder / _DRIVER)
    for rank, expected in enumerate(found.facts[_RANKS]):
        path = _rank_folder(folder, rank) / MANIFEST
        if not path.is_file() or digest(path) != expected:
            raise BackendError(f"{path} is missing or damaged: choose an older checkpoint")
    return found


def read_rank(folder: Path, rank: int, world: int) -> Sets:
    writers = len(read_driver(folder).facts[_RANKS])
    if writers == world:
        return read(_rank_folder(folder, rank)).sets
    return {
        name: {key: take_shard(value, rank, world).clone() for key, value in _read_whole(folder, writers, name)}
        for name in _read_manifest(_rank_folder(folder, 0))[1]
    }


def read_model(folder: Path) -> dict[str, Tensor]:
    return dict(_read_whole(folder, len(read_driver(folder).facts[_RANKS]), MODEL))


def _rank_folder(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}"


def _read_whole(folder: Path, writers: int, name: str) -> Iterator[tuple[str, Tensor]]:
    with ExitStack() as opened:
        paths = [_read_manifest(_rank_folder(folder, rank), name)[1][name] for rank in range(writers)]
        parts = [opened.enter_context(safe_open(path, "pt")) for path in paths]
        for key in parts[0].keys():  # noqa: SIM118 - a handle of safetensors, no mapping
            yield key, join_shards([part.get_tensor(key) for part in parts])


def take_shard(value: Tensor, rank: int, world: int) -> Tensor:
    """Return one rank's part of a tensor; a number, such as AdamW's count of steps, is every rank's."""
    if value.dim() == 0:
        return value
    parts = value.chunk(world)
    return parts[rank] if rank < len(parts) else value[:0]


def join_shards(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if parts[0].dim() == 0 else torch.cat(list(parts))
