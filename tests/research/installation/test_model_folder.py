"""Model folders of an installation and of one's own: how they are named, and that a changed one is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.design.noise_bank import job_key, model_key
from research.design.pricing import price_key
from research.errors import BadModel
from research.installation.base_job import model_folder, parameter_count, require_unchanged
from swarm.job import Job, PathModel
from swarm.models import folder_hash
from tests.research.model_folders import model_at, settled


def test_a_model_of_the_installation_is_called_by_its_name_alone_and_found_by_it(tmp_path: Path) -> None:
    models = tmp_path / "home" / "models"
    folder = model_at(models / "mine")
    (tmp_path / "link").symlink_to(models)
    for said in (str(folder), str(tmp_path / "link" / "mine"), "mine"):
        found = model_folder(said, models)
        assert (found.path, found.sha256) == ("mine", folder_hash(folder))
    require_unchanged(found, models)
    model_at(folder, b"v")
    with pytest.raises(BadModel, match=str(folder)):
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


def test_a_folder_that_changed_or_went_is_refused_and_one_that_came_back_is_not(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    model = model_folder(str(folder))
    require_unchanged(model)
    model_at(folder, b"v")
    with pytest.raises(BadModel, match="changed"):
        require_unchanged(model)
    model_at(folder)
    require_unchanged(model)
    folder.rename(tmp_path / "away")
    with pytest.raises(BadModel, match="none there"):
        require_unchanged(model)


def test_parameters_are_counted_by_the_headers_of_all_files(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m", shapes=((2, 3), (4,)))
    assert parameter_count(folder) == 10
    (folder / "more.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert parameter_count(settled(folder)) == 20
    (folder / "model.safetensors").write_bytes(b"no header")
    assert parameter_count(folder) == 10
