"""Checkpoints of several ranks: any other number of ranks reads them, and whoever wants the model whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swarm.backends.local import checkpoint
from swarm.backends.local.checkpoint import Checkpoint
from swarm.rendering.messages import BackendError

WEIGHTS = {"a.weight": torch.arange(21.0).reshape(7, 3), "b.bias": torch.arange(2.0)}
MOMENTS = {f"{name}/exp_avg": value / 3 for name, value in WEIGHTS.items()} | {"a.weight/step": torch.tensor(4.0)}
SETS = {checkpoint.MODEL: WEIGHTS, checkpoint.OPTIMIZER: MOMENTS}


def part(rank: int, world: int) -> dict[str, dict[str, Tensor]]:
    return {
        name: {key: checkpoint.take_shard(value, rank, world) for key, value in own.items()}
        for name, own in SETS.items()
    }


def written(folder: Path, world: int) -> Path:
    for rank in range(world):
        checkpoint.write_rank(folder, rank, part(rank, world))
    checkpoint.write_driver(folder, world, Checkpoint({"random": {"order": torch.ones(3)}}, {"version": 5}))
    return folder


def same(one: checkpoint.Sets, other: checkpoint.Sets) -> bool:
    return one.keys() == other.keys() and all(
        own.keys() == other[name].keys() and all(torch.equal(own[key], other[name][key]) for key in own)
        for name, own in one.items()
    )


@given(rows=st.integers(0, 20), world=st.integers(1, 8))
def test_parts_are_the_tensor_again_and_of_the_sizes_that_torch_distributes(rows: int, world: int) -> None:
    value = torch.randn(rows, 2)
    parts = [checkpoint.take_shard(value, rank, world) for rank in range(world)]
    assert torch.equal(checkpoint.join_shards(parts), value)
    size = -(-rows // world)  # as FSDP2 pads: all but the last are full
    assert [len(each) for each in parts] == [min(size, max(0, rows - rank * size)) for rank in range(world)]


@pytest.mark.parametrize("writers", [1, 2, 3, 8])
@pytest.mark.parametrize("readers", [1, 2, 5])
def test_any_number_of_ranks_reads_what_any_number_wrote(tmp_path: Path, writers: int, readers: int) -> None:
    folder = written(tmp_path / "c", writers)
    for rank in range(readers):
        assert same(checkpoint.read_rank(folder, rank, readers), part(rank, readers))
    assert same({checkpoint.MODEL: checkpoint.read_model(folder)}, {checkpoint.MODEL: WEIGHTS})
    assert checkpoint.read_driver(folder).facts["version"] == 5


def test_a_rank_that_is_missing_or_another_checkpoints_is_named(tmp_path: Path) -> None:
    folder, other = written(tmp_path / "c", 3), written(tmp_path / "other", 2)
    shutil.rmtree(folder / "rank-1")
    with pytest.raises(BackendError, match=r"rank-1.*missing or damaged"):
        checkpoint.read_rank(folder, 0, 2)
    shutil.copytree(other / "rank-1", folder / "rank-1")
    with pytest.raises(BackendError, match=r"rank-1.*missing or damaged"):
        checkpoint.read_model(folder)


@pytest.mark.parametrize("readers", [1, 2])
def test_damage_in_any_ranks_file_is_found_by_whoever_reads_it(tmp_path: Path, readers: int) -> None:
    folder = written(tmp_path / "c", 2)
    shard = folder / "rank-1" / "optimizer.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BackendError, match=r"optimizer\.safetensors is damaged"):
        checkpoint.read_rank(folder, readers - 1, readers)
