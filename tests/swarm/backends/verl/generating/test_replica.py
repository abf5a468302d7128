"""Weights on their way into a replica: what a full disk does. Nothing of vLLM is imported."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.protocols import BackendError, NoRoom
from swarm.backends.verl.generating import replica as replica_module
from swarm.backends.verl.generating.engines.spec import ReplicaDied, ReplicaSpec
from swarm.backends.verl.generating.replica import Replica, _written
from swarm.backends.verl.generating.segments import Segments

BUCKET = {"w": torch.arange(4096.0)}


class Model:
    """Takes what it is called with, and loads files as vLLM's workers do."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.loaded: dict[str, Any] = {}

    async def begin_weights(self) -> None:
        self.called.append("begin_weights")

    async def load_bucket(self, path: str) -> None:
        self.called.append("load_bucket")
        self.loaded |= torch.load(path, mmap=True, weights_only=True)

    async def finish_weights(self) -> list[str]:
        self.called.append("finish_weights")
        return []

    async def forget_prefixes(self) -> None:
        self.called.append("forget")

    async def sleep(self) -> None:
        self.called.append("sleep")

    async def wake(self, what: str) -> None:
        self.called.append(f"wake {what}")

    async def score(self, name: str, ids: Sequence[int]) -> list[float]:
        return [-1.0] * (len(ids) - 1)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Where buckets are written, which is as full as the list says, write by write; beyond it there is room."""
    full: list[bool] = []
    make = tempfile.mkdtemp

    def made(prefix: str, dir: Path) -> str:
        folder = make(prefix=prefix, dir=tmp_path)
        if full and full.pop(0):
            (Path(folder) / replica_module._BUCKET).symlink_to("/dev/full")
        return folder

    monkeypatch.setattr(replica_module.tempfile, "mkdtemp", made)
    monkeypatch.setattr(replica_module, "_AGAIN_S", 0.0)
    monkeypatch.setattr(replica_module, "ROOM_S", 3.0)
    return full


def started(model: Model) -> Replica:
    replica = Replica(ReplicaSpec("/models/m", 64, 2, 1 << 16))
    replica._model, replica._segments = model, Segments(model)  # type: ignore[assignment, arg-type]
    return replica


async def arrived(bucket: dict[str, Any]) -> dict[str, Any]:
    return bucket


def test_a_full_disk_is_no_room_with_what_to_free_and_leaves_nothing(disk: list[bool], tmp_path: Path) -> None:
    disk.append(True)
    with pytest.raises(NoRoom, match=r"has no room for 16,384 bytes of weights .*: free space there") as caught:
        _written(BUCKET)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


async def test_without_room_for_the_first_bucket_nothing_is_stopped_or_changed(disk: list[bool]) -> None:
    model = Model()
    replica = started(model)
    disk.append(True)
    with pytest.raises(NoRoom):
        await replica.load(1, [arrived(BUCKET)])
    assert (model.called, replica._running().version, replica._running()._open.is_set()) == ([], 0, True)
    assert await replica.load(1, [arrived(BUCKET)]) == 1
    assert torch.equal(model.loaded["w"], BUCKET["w"])


async def test_a_later_bucket_waits_for_room_within_a_bound(disk: list[bool], tmp_path: Path) -> None:
    model = Model()
    disk += [False, True, True]
    assert await asyncio.wait_for(started(model).load(2, [arrived({"a": torch.ones(2)}), arrived(BUCKET)]), 30) == 2
    assert set(model.loaded) == {"a", "w"}
    disk += [False, *[True] * 9]
    with pytest.raises(ReplicaDied, match="no room for 16,384 bytes"):
        await started(Model()).load(3, [arrived({"a": torch.ones(2)}), arrived(BUCKET)])
    assert os.listdir(tmp_path) == []


LOADED = ["begin_weights", "load_bucket", "finish_weights"]


async def test_one_that_rests_wakes_for_its_weights_and_for_its_cache_once_they_are_there(disk: list[bool]) -> None:
    model = Model()
    replica = started(model)
    await replica.rest()
    assert (model.called, replica._running()._open.is_set()) == (["sleep"], False)
    with pytest.raises(BackendError, match="it rests"):
        await replica.score([[1, 2]])
    disk.append(True)
    with pytest.raises(NoRoom):
        await replica.load(1, [arrived(BUCKET)])
    assert (model.called, replica._running()._open.is_set()) == (["sleep"], False)
    assert await replica.load(1, [arrived(BUCKET)]) == 1
    assert model.called == ["sleep", "wake weights", *LOADED, "wake kv_cache", "forget"]
    assert replica._running()._open.is_set()
    assert await replica.score([[1, 2]]) == (1, [[-1.0]])


async def test_one_that_is_awake_loads_without_waking_anything(disk: list[bool]) -> None:
    model = Model()
    await started(model).load(1, [arrived(BUCKET)])
    assert model.called == [*LOADED, "forget"]
