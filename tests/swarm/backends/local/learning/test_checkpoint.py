"""Checkpoints: whole or absent, and damage is named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from swarm.backends.local import checkpoint
from swarm.backends.local.checkpoint import Checkpoint, read, write
from swarm.backends.protocols import NoRoom
from swarm.rendering.messages import BackendError

_CHECKPOINT = Checkpoint({"a": {"x": torch.arange(6.0).view(2, 3)}, "b": {"y": torch.tensor(3)}}, {"version": 4})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "c", _CHECKPOINT)
    found = read(tmp_path / "deep" / "c")
    assert found.facts == {"version": 4}
    assert torch.equal(found.sets["a"]["x"], _CHECKPOINT.sets["a"]["x"])
    assert torch.equal(found.sets["b"]["y"], _CHECKPOINT.sets["b"]["y"])


def test_a_checkpoint_of_the_same_name_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "c", _CHECKPOINT)
    write(tmp_path / "c", Checkpoint({"a": {"x": torch.ones(1)}}, {"version": 5}))
    assert read(tmp_path / "c").facts == {"version": 5}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_failed_write_leaves_the_old_checkpoint_and_no_scraps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "c", _CHECKPOINT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(BackendError, match="No space left"):
        write(tmp_path / "c", Checkpoint({"a": {}}, {"version": 9}))
    assert read(tmp_path / "c").facts == {"version": 4}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("last", range(5))
def test_a_killed_writer_leaves_all_or_nothing(last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies as it syncs a file or a folder: two sets, the manifest, the folder, the folder's place."""
    write(tmp_path / "1", _CHECKPOINT)
    syncs = iter(range(5))

    def sync(_: Path) -> None:
        if next(syncs) == last:
            raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(checkpoint, "_sync", sync)
        dying.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: None)  # the dead clear nothing away
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "2", _CHECKPOINT)
    assert (tmp_path / "2").exists() == (last == 4)
    assert sorted(read(found).facts["version"] for found in tmp_path.glob("[0-9]")) == [4] * (1 + (last == 4))
    write(tmp_path / "2", Checkpoint(_CHECKPOINT.sets, {"version": 9}))
    assert read(tmp_path / "2").facts == {"version": 9}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB, where this machine lets us have one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_told_from_other_failures_and_leaves_no_scraps(small_disk: Path) -> None:
    large = Checkpoint({"a": {"x": torch.zeros(100_000)}}, {"version": 9})
    with pytest.raises(NoRoom, match="No space left"):
        write(small_disk / "c", large)
    assert list(small_disk.iterdir()) == []
    write(small_disk / "c", _CHECKPOINT)
    with pytest.raises(BackendError) as refusal:
        write(small_disk / "c" / "manifest.json" / "c", _CHECKPOINT)
    assert not isinstance(refusal.value, NoRoom)


@pytest.mark.parametrize(
    ("name", "kept", "error"), [("a", -1, "a.safetensors"), ("b", 0, "b.safetensors"), ("manifest", 0, "no checkpoint")]
)
def test_what_is_damaged_or_missing_is_named(name: str, kept: int, error: str, tmp_path: Path) -> None:
    write(tmp_path / "c", _CHECKPOINT)
    file = next((tmp_path / "c").glob(f"{name}.*"))
    file.write_bytes(file.read_bytes()[:-1] + b"!") if kept else file.unlink()
    with pytest.raises(BackendError, match=error):
        read(tmp_path / "c")


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"format": 99, "files": {}}), '{"format": 1}'])
def test_a_manifest_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path / "c", _CHECKPOINT)
    (tmp_path / "c" / "manifest.json").write_text(text)
    with pytest.raises(BackendError, match="manifest"):
        read(tmp_path / "c")
