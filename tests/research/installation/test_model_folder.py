"""Model folders: what is one, which content it has, and that a changed one is seen."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from research.design.pricing import price_key
from research.errors import BadModel
from research.installation.model_folder import model_folder, parameter_count, require_unchanged
from research.noise.bank import job_key, model_key
from swarm.job import Job, PathModel
from swarm.models import folder_hash
from tests.research.model_folders import model_at, settled


def test_the_hash_is_of_names_and_contents_and_not_of_the_place(tmp_path: Path) -> None:
    one, same = model_at(tmp_path / "one"), model_at(tmp_path / "elsewhere" / "same")
    assert folder_hash(one) == folder_hash(same)
    assert folder_hash(model_at(tmp_path / "other", b"v")) != folder_hash(one)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", '{"model_type": "gemma"}'), ("tokenizer.json", "[]"), ("chat_template.jinja", "{{ 1 }}"),
        ("model-00002.safetensors", "more"), ("generation_config.json", "{}"), ("merges.txt", "a b"),
    ],
)  # fmt: skip
def test_every_part_that_a_model_is_loaded_from_counts(tmp_path: Path, name: str, content: str) -> None:
    folder = model_at(tmp_path / "m")
    before = folder_hash(folder)
    (folder / name).write_text(content)
    assert folder_hash(folder) != before


def test_what_no_model_is_loaded_from_does_not_count(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    before = folder_hash(folder)
    (folder / "README.md").write_text("hello")
    assert folder_hash(folder) == before


def test_a_part_under_another_name_is_another_model(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    before = folder_hash(folder)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert folder_hash(folder) != before


def test_a_file_with_the_same_size_and_time_is_not_read_again(tmp_path: Path) -> None:
    folder, kept = model_at(tmp_path / "m"), tmp_path / "kept"
    before = folder_hash(folder, kept)
    weights = folder / "model.safetensors"
    stamp, size = weights.stat().st_mtime_ns, weights.stat().st_size
    weights.write_bytes(b"x" * size)
    os.utime(weights, ns=(stamp, stamp))
    assert folder_hash(folder, kept) == before, "nobody can see this change without reading"
    assert folder_hash(folder) != before
    os.utime(weights, ns=(stamp + 1, stamp + 1))
    assert folder_hash(folder, kept) != before


def test_a_file_that_was_just_written_is_read_again_as_times_are_coarse(tmp_path: Path) -> None:
    folder, kept = model_at(tmp_path / "m"), tmp_path / "kept"
    weights = folder / "model.safetensors"
    weights.write_bytes(b"a" * 100)
    stamp = weights.stat().st_mtime_ns
    before = folder_hash(folder, kept)
    weights.write_bytes(b"b" * 100)
    os.utime(weights, ns=(stamp, stamp))
    assert folder_hash(folder, kept) != before


def test_a_broken_file_of_hashes_is_as_none(tmp_path: Path) -> None:
    folder, kept = model_at(tmp_path / "m"), tmp_path / "kept"
    found = folder_hash(folder, kept)
    for spoilt in ("{", "[]", json.dumps({str(folder / "config.json"): 3})):
        (kept / "hashes.json").write_text(spoilt)
        assert folder_hash(folder, kept) == found


def test_a_model_is_named_by_its_absolute_path_and_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_at(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    found = model_folder("mine")
    assert (found.path, found.sha256) == (str(folder), folder_hash(folder))


def test_a_model_of_the_installation_is_called_by_its_name_alone_and_found_by_it(tmp_path: Path) -> None:
    models = tmp_path / "home" / "models"
    folder = model_at(models / "mine")
    (tmp_path / "link").symlink_to(models)
    for said in (str(folder), str(tmp_path / "link" / "mine"), "mine"):
        found = model_folder(said, models)
        assert (found.path, found.sha256) == ("mine", folder_hash(folder))
    require_unchanged(found, models)
    model_at(folder, b"v")
    with pytest.raises(BadModel, match=f"expected the model folder {folder} .* found it changed"):
        require_unchanged(found, models)
    folder.rename(tmp_path / "away")
    with pytest.raises(BadModel, match=f"expected the model folder {folder}, .* found none there"):
        require_unchanged(found, models)


def test_a_model_is_known_by_its_hash_to_prices_and_noise_wherever_it_was_logged_to_lie() -> None:
    here, moved, nameless = (
        Job(model=PathModel(path=path, sha256=sha256))
        for path, sha256 in (("mine", "a" * 64), ("/home/models/mine", "a" * 64), ("/home/models/mine", None))
    )
    warm = here.model_copy(update={"model": PathModel(path="mine", sha256="a" * 64, warm_start_steps=5)})
    for key in (price_key, model_key, job_key):
        assert key(here) == key(moved)
        assert len({key(job) for job in (here, nameless, warm, Job())}) == 4


def test_a_folder_here_comes_before_one_of_the_same_name_in_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_at(tmp_path / "models" / "mine", b"v")
    here = model_at(tmp_path / "here" / "mine")
    monkeypatch.chdir(here.parent)
    assert model_folder("mine", tmp_path / "models").path == str(here)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.json", "holds no config.json"), ("model.safetensors", "holds no .*safetensors"),
        ("tokenizer.json", "tokenizer.json"), ("chat_template.jinja", "chat.template"),
    ],
)  # fmt: skip
def test_a_folder_that_lacks_a_part_is_refused_by_its_name(tmp_path: Path, missing: str, said: str) -> None:
    folder = model_at(tmp_path / "m")
    (folder / missing).unlink()
    with pytest.raises(BadModel, match=said):
        model_folder(str(folder))


def test_a_template_may_stand_in_the_tokenizers_configuration(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert model_folder(str(folder)).sha256


def test_a_name_on_a_hub_a_file_and_nothing_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for text, said in {
        "some-org/some-7b": "looks like the name of a model on a hub",
        str(tmp_path / "nothing"): "found no such folder",
        str(tmp_path / "file"): "found the file",
    }.items():
        with pytest.raises(BadModel, match=said) as refused:
            model_folder(text)
        assert "\n" not in refused.value.message


def test_a_folder_that_changed_or_went_is_refused_and_one_that_came_back_is_not(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    model = model_folder(str(folder))
    require_unchanged(model)
    model_at(folder, b"v")
    with pytest.raises(BadModel, match="found it changed"):
        require_unchanged(model)
    model_at(folder)
    require_unchanged(model)
    folder.rename(tmp_path / "away")
    with pytest.raises(BadModel, match="found none there"):
        require_unchanged(model)


def test_parameters_are_counted_by_the_headers_of_all_files(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m", shapes=((2, 3), (4,)))
    assert parameter_count(folder) == 10
    (folder / "more.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert parameter_count(settled(folder)) == 20
    (folder / "model.safetensors").write_bytes(b"no header")
    assert parameter_count(folder) == 10
