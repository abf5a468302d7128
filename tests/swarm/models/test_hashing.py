"""A model folder's hash follows what it holds, wherever it lies, and a file is read again only when it may differ."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.models import folder_hash, hashing
from tests.swarm.models.folders import whole_folder

PARTS = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def aged(folder: Path, seconds: float = 60.0) -> Path:
    """Let every file of a folder be as old as that."""
    for path in folder.rglob("*"):
        state = path.stat()
        os.utime(path, (state.st_atime - seconds, state.st_mtime - seconds))
    return folder


def test_a_copy_elsewhere_has_the_same_hash(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "m")
    shutil.copytree(folder, tmp_path / "other")
    assert folder_hash(folder) == folder_hash(tmp_path / "other", tmp_path)


@given(name=st.sampled_from(PARTS), more=st.binary(min_size=1, max_size=8))
def test_any_change_of_any_part_changes_it(tmp_path_factory: pytest.TempPathFactory, name: str, more: bytes) -> None:
    folder = whole_folder(tmp_path_factory.mktemp("m") / "m")
    before = folder_hash(folder)
    (folder / name).write_bytes((folder / name).read_bytes() + more)
    assert folder_hash(folder) != before


def test_a_part_that_is_renamed_or_gone_changes_it(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "m")
    before = folder_hash(folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    renamed = folder_hash(folder)
    (folder / "model-1.safetensors").unlink()
    assert len({before, renamed, folder_hash(folder)}) == 3


def test_what_lies_beside_the_parts_does_not_count(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "m")
    before = folder_hash(folder)
    for name in ("README.md", "ajet-model.json", "trainer_state.json", "pytorch_model.bin"):
        (folder / name).write_text("{}")
    assert folder_hash(folder) == before


def test_a_file_of_the_same_size_and_time_is_not_read_again(tmp_path: Path) -> None:
    folder = aged(whole_folder(tmp_path / "m"))
    before = folder_hash(folder, tmp_path)
    weights = folder / "model.safetensors"
    state = weights.stat()
    weights.write_bytes(bytes(state.st_size))
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert folder_hash(folder, tmp_path) == before, "it was remembered"
    assert folder_hash(folder) != before, "without a memory it is read"
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert folder_hash(folder, tmp_path) == folder_hash(folder)


def test_a_file_that_may_change_again_within_its_time_is_not_remembered(tmp_path: Path) -> None:
    folder_hash(whole_folder(tmp_path / "m"), tmp_path)
    assert not (tmp_path / "hashes.json").exists()


@pytest.mark.parametrize("memory", ["{", "[]", '{"PATH": 3}', '{"PATH": [1]}'])
def test_a_memory_that_cannot_be_used_is_none(tmp_path: Path, memory: str) -> None:
    folder = aged(whole_folder(tmp_path / "m"))
    (tmp_path / "hashes.json").write_text(memory.replace("PATH", str(folder / "config.json")))
    assert folder_hash(folder, tmp_path) == folder_hash(folder)
    assert len(json.loads((tmp_path / "hashes.json").read_text())) >= len(PARTS)


def test_a_memory_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "full")

    folder = aged(whole_folder(tmp_path / "m"))
    monkeypatch.setattr(hashing.Path, "replace", full)
    assert folder_hash(folder, tmp_path) == folder_hash(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
