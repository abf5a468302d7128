"""A checkpoint of several ranks: a folder of shards for each, one of the driver's, whole together.

Promises: what some number of ranks wrote can be read by any other, and as the whole model; a part that is missing or
damaged is named. Tensors are cut along their first dimension as FSDP2 cuts them: all but the last parts are of one
size, and ranks beyond the last row hold none.
Does not know what the driver remembers, Ray or verl.

    FOLDER/driver/      what is no rank's, with the hash of each rank's manifest
    FOLDER/rank-N/      shards of rank N: the sets `model` and `optimizer`; of a critic `critic`, `critic_optimizer`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from swarm.backends.local.learning import checkpoint
from swarm.backends.protocols import BackendError

Sets = Mapping[str, Mapping[str, Tensor]]
"""Tensors by name, by the name of their set."""
MODEL, OPTIMIZER = "model", "optimizer"
CRITIC, CRITIC_OPTIMIZER = "critic", "critic_optimizer"
_DRIVER, _RANKS = "driver", "ranks"


def write_rank(folder: Path, rank: int, sets: Sets) -> None:
    """Write one rank's shards."""
    checkpoint.write(_of(folder, rank), checkpoint.Checkpoint(sets, {"rank": rank}))


def write_driver(folder: Path, world: int, driver: checkpoint.Checkpoint) -> None:
    """Write what is no rank's, after all `world` of them wrote: it makes the checkpoint whole."""
    manifests = [checkpoint.digest(_of(folder, rank) / checkpoint.MANIFEST) for rank in range(world)]
    facts = {**driver.facts, _RANKS: manifests}
    checkpoint.write(folder / _DRIVER, checkpoint.Checkpoint(driver.sets, facts))


def read_driver(folder: Path) -> checkpoint.Checkpoint:
    """Return what `write_driver` wrote; BackendError where the checkpoint lacks a rank, or has another's."""
    found = checkpoint.read(folder / _DRIVER)
    for rank, expected in enumerate(found.facts[_RANKS]):
        path = _of(folder, rank) / checkpoint.MANIFEST
        if not path.is_file() or checkpoint.digest(path) != expected:
            raise BackendError(f"{path} is missing or damaged: choose an older checkpoint")
    return found


def read_rank(folder: Path, rank: int, world: int) -> Sets:
    """Return the shards of one of `world` ranks, however many wrote the checkpoint."""
    writers = len(read_driver(folder).facts[_RANKS])
    if writers == world:
        return checkpoint.read(_of(folder, rank)).sets
    return {
        name: {key: cut(value, rank, world).clone() for key, value in _whole(folder, writers, name)}
        for name in checkpoint.files(_of(folder, 0))
    }


def read_model(folder: Path) -> dict[str, Tensor]:
    """Return the trained weights, whole, by the names that the ranks have for them."""
    return dict(_whole(folder, len(read_driver(folder).facts[_RANKS]), MODEL))


def _of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}"


def _whole(folder: Path, writers: int, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield one set's tensors, each read from all ranks as it comes: never the whole set at once."""
    with ExitStack() as opened:
        parts = [
            opened.enter_context(safe_open(checkpoint.files(_of(folder, rank))[name], "pt")) for rank in range(writers)
        ]
        for key in parts[0].keys():  # noqa: SIM118 - a handle of safetensors, no mapping
            yield key, joined([part.get_tensor(key) for part in parts])


def cut(value: Tensor, rank: int, world: int) -> Tensor:
    """Return one rank's part of a tensor; a number, such as AdamW's count of steps, is every rank's."""
    if value.dim() == 0:
        return value
    parts = value.chunk(world)
    return parts[rank] if rank < len(parts) else value[:0]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the tensor that `cut` cut."""
    return parts[0] if parts[0].dim() == 0 else torch.cat(list(parts))
