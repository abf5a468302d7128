"""A folder that cannot be a model is refused by one line; a model's hash follows what it holds, wherever it lies.

A tiny model is copied from one installation into the next as it was made, or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm import models as hashing
from swarm.errors import InvalidRequest
from swarm.job import TinyModel
from swarm.models import fill_once, find_tiny, folder_hash, keep_tiny, model_place, require_model_folder, tiny_folder
from tests.golden import assert_golden
from tests.swarm.models.folders import whole_folder


def refusal(path: str | Path) -> str:
    with pytest.raises(InvalidRequest) as refused:
        require_model_folder(path)
    assert "\n" not in refused.value.message
    return refused.value.message


def test_a_bare_name_is_a_folder_of_the_models_but_one_that_is_here_alone_and_all_else_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    whole_folder(models / "mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_place("mine", models) == models / "mine"
    for path in ("other", "some/mine", "./mine", str(tmp_path / "mine"), ".", "..", ""):
        assert model_place(path, models) == Path(path)
    assert model_place("gone", models) == models / "gone"


def test_a_missing_folder_is_told_as_missing_and_a_name_of_a_hub_with_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_model_folder(str(whole_folder(tmp_path / "models" / "mine")))
    for missing in (tmp_path / "nothing", "models/mien"):
        assert "no such folder" in refusal(missing)
    assert_golden(refusal("Qwen/Qwen3-0.6B"))


@pytest.mark.parametrize(("name", "words"), [("model.safetensors", "it lies in"), ("m.gguf", "GGUF is not")])
def test_a_file_in_place_of_a_folder_is_told_as_one(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"")
    said = refusal(tmp_path / name)
    assert "found the file" in said
    assert words in said


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda m: (m / "config.json").unlink(), "holds no config.json"),
    (lambda m: (m / "config.json").rename(m / "adapter_config.json"), "an adapter alone"),
    (lambda m: (m / "config.json").write_text("{"), "expected JSON in"),
    (lambda m: (m / "config.json").write_text("[]"), "expected a JSON object"),
    (lambda m: (m / "config.json").write_text("{}"), "name a model_type"),
    (lambda m: (m / "model.safetensors").unlink(), "holds no *.safetensors: save"),
    (lambda m: (m / "model.safetensors").rename(m / "pytorch_model.bin"), "but pytorch_model.bin"),
    (lambda m: (m / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"), "LFS pointer"),
    (lambda m: (m / "model.safetensors").write_bytes(b"nonsense and more of it"), "file of safetensors"),
    (lambda m: (m / "model.safetensors").write_bytes(b""), "file of safetensors"),
    (lambda m: (m / "tokenizer.json").unlink(), "holds no tokenizer.json"),
    (lambda m: (m / "chat_template.jinja").unlink(), "no chat template"),
    (lambda m: (m / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}})), "lacks 1 of"),
])  # fmt: skip
def test_what_is_missing_or_damaged_is_named(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    folder = whole_folder(tmp_path / "m")
    spoil(folder)
    assert words in refusal(folder)


@pytest.mark.parametrize("kept", [8, 20, -1, None])
def test_weights_not_copied_whole_or_going_on_are_seen_without_reading_them(tmp_path: Path, kept: int | None) -> None:
    file = whole_folder(tmp_path / "m") / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole + b"\0" if kept is None else whole[:kept])
    assert "not copied whole" in refusal(tmp_path / "m")


def test_a_template_in_the_tokenizer_s_settings_or_among_several_is_one(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "m")
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    require_model_folder(folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    require_model_folder(folder)


PARTS = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def aged(folder: Path, seconds: float = 60.0) -> Path:
    for path in folder.rglob("*"):
        state = path.stat()
        os.utime(path, (state.st_atime - seconds, state.st_mtime - seconds))
    return folder


def test_a_copy_elsewhere_has_the_same_hash_and_what_lies_beside_the_parts_does_not_count(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "m")
    shutil.copytree(folder, tmp_path / "other")
    before = folder_hash(folder)
    assert before == folder_hash(tmp_path / "other", tmp_path)
    for name in ("README.md", "ajet-model.json", "trainer_state.json", "pytorch_model.bin"):
        (folder / name).write_text("{}")
    assert folder_hash(folder) == before


@given(name=st.sampled_from(PARTS), more=st.binary(min_size=1, max_size=8))
def test_any_change_of_any_part_changes_it(tmp_path_factory: pytest.TempPathFactory, name: str, more: bytes) -> None:
    folder = whole_folder(tmp_path_factory.mktemp("m") / "m")
    before = folder_hash(folder)
    (folder / name).write_bytes((folder / name).read_bytes() + more)
    assert folder_hash(folder) != before


def test_a_file_of_the_same_size_and_time_is_not_read_again(tmp_path: Path) -> None:
    folder = aged(whole_folder(tmp_path / "m"))
    before = folder_hash(folder, tmp_path)
    weights = folder / "model.safetensors"
    state = weights.stat()
    weights.write_bytes(bytes(state.st_size))
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert folder_hash(folder, tmp_path) == before, "it was remembered"
    assert folder_hash(folder) != before
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert folder_hash(folder, tmp_path) == folder_hash(folder)


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


# A user's cache of tiny models

SPEC = TinyModel()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache's folder, in which the model that the installation `first` made is."""
    monkeypatch.setenv("AJET_MODEL_CACHE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keep_tiny(whole_folder(tiny_folder(SPEC, "guess", tmp_path / "first")), SPEC, "guess")
    return tmp_path / "cache" / "ajet" / "models"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_next_installation_has_the_files_that_the_first_one_made(cache: Path, tmp_path: Path) -> None:
    found = find_tiny(SPEC, "guess", tmp_path / "next")
    assert found == tiny_folder(SPEC, "guess", tmp_path / "next")
    assert contents(found) == contents(tiny_folder(SPEC, "guess", tmp_path / "first"))


def test_whoever_is_second_has_what_the_first_one_put_there(cache: Path, tmp_path: Path) -> None:
    def late(scratch: Path) -> None:
        whole_folder(tmp_path / "next" / "scratch").rename(tmp_path / "next" / "model")
        (scratch / "config.json").write_text("{}")

    assert folder_hash(fill_once(tmp_path / "next" / "model", late)) == folder_hash(next(cache.iterdir()))
    assert [path.name for path in (tmp_path / "next").iterdir()] == ["model"]


def test_what_would_not_come_out_the_same_here_is_not_taken(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_tiny(TinyModel(seed=1), "guess", tmp_path / "next") is None
    assert find_tiny(SPEC, "arith", tmp_path / "next") is None
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "distributions", lambda name: [SimpleNamespace(version="another")])
        assert find_tiny(SPEC, "guess", tmp_path / "next") is None
    monkeypatch.setenv("AJET_MODEL_CACHE", "0")
    assert find_tiny(SPEC, "guess", tmp_path / "next") is None


def test_a_model_of_an_environment_that_was_brought_is_its_installation_s_alone(cache: Path, tmp_path: Path) -> None:
    before = sorted(cache.iterdir())
    keep_tiny(tiny_folder(SPEC, "guess", tmp_path / "first"), SPEC, "shop@1f2e3d4c5b6a")
    assert sorted(cache.iterdir()) == before


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json", "sha256"])
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"\xff"), Path.unlink])
def test_a_damaged_one_is_not_taken_and_the_one_made_instead_takes_its_place(
    cache: Path, tmp_path: Path, file: str, damage: Callable[[Path], object]
) -> None:
    (cached,) = cache.iterdir()
    whole = contents(cached)
    damage(cached / file)
    assert find_tiny(SPEC, "guess", tmp_path / "next") is None
    assert list((tmp_path / "next").iterdir()) == []
    keep_tiny(tiny_folder(SPEC, "guess", tmp_path / "first"), SPEC, "guess")
    assert contents(cached) == whole


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def full(*paths: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    made = tiny_folder(SPEC, "guess", tmp_path / "first")
    monkeypatch.setenv("XDG_CACHE_HOME", str(made / "config.json"))
    keep_tiny(made, SPEC, "guess")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(shutil, "copytree", full)
    keep_tiny(made, SPEC, "guess")
    assert list((tmp_path / "other" / "ajet" / "models").iterdir()) == []


def test_a_home_that_cannot_be_written_leaves_the_cache_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def full(*paths: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    (cached,) = cache.iterdir()
    before = contents(cached)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", full)
        assert find_tiny(SPEC, "guess", tmp_path / "next") is None
    assert contents(cached) == before
    assert find_tiny(SPEC, "guess", tmp_path / "next") is not None
