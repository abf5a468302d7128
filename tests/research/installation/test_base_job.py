"""The job under all arms: read from a file, with the model of a folder, and back from a study's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from research.errors import BadInput, DesignRefused
from research.installation.base_job import (
    base_job,
    base_job_of,
    base_settings,
    describe_unusual_rate,
    find_fixed_fields,
    require_agreement,
)
from swarm.job import Job, PathModel
from tests.research.model_folders import model_at


def written(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps(fields))
    return path


def test_without_a_file_and_a_folder_there_is_none_and_a_study_has_the_default() -> None:
    assert base_job(None, None) is None
    assert base_settings(None) == {}
    assert base_job_of({}) == Job()


@pytest.mark.parametrize(
    ("rate", "said"), [(1e-3, None), (0.0, None), (0.012, None), (0.09, "usual for the tiny model"), (1e-5, "far from")]
)
def test_a_step_size_far_from_the_usual_one_is_told(rate: float, said: str | None) -> None:
    told = describe_unusual_rate(Job(learning_rate=rate))
    assert (told is None) if said is None else (said in str(told) and f"{rate:g}" in str(told))
    assert "all weights" in str(describe_unusual_rate(Job(model=PathModel(path="m"), learning_rate=1e-3)))


def test_a_job_survives_a_studys_settings_whole(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    job = base_job(written(tmp_path / "job.json", steps=7, max_tokens=99, weight_decay=0.1), str(folder))
    assert job is not None
    assert isinstance(job.model, PathModel)
    assert job.model.sha256
    settings = json.loads(json.dumps(base_settings(job)))
    assert base_job_of(settings) == job
    assert settings["base_fixed"] == {
        "steps": 7, "max_tokens": 99, "weight_decay": 0.1, "model": job.model.model_dump(mode="json"),
    }  # fmt: skip


def test_what_is_said_at_its_default_is_fixed_through_a_studys_settings(tmp_path: Path) -> None:
    usual = Job()
    job = base_job(written(tmp_path / "job.json", learning_rate=usual.learning_rate, environment="guess"), None)
    settings = json.loads(json.dumps(base_settings(job)))
    assert settings["base_fixed"] == {"environment": "guess", "learning_rate": usual.learning_rate}
    assert find_fixed_fields(base_job_of(settings)) == settings["base_fixed"]
    assert base_job_of(settings) == usual


def test_a_folder_beside_a_file_wins_unless_the_file_names_one(tmp_path: Path) -> None:
    mine, theirs = model_at(tmp_path / "mine"), model_at(tmp_path / "theirs", b"v")
    tiny = written(tmp_path / "tiny.json", model={"kind": "tiny", "layers": 3})
    named = written(tmp_path / "named.json", model={"kind": "path", "path": str(mine)})
    found = base_job(tiny, str(theirs))
    assert found is not None
    assert found.model == base_job(None, str(theirs)).model  # type: ignore[union-attr]
    with pytest.raises(BadInput, match=f"{mine} in {named} .*{theirs}"):
        base_job(named, str(theirs))


def test_a_hash_in_the_file_has_to_be_the_folders(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    said = {"kind": "path", "path": str(folder), "sha256": "ab" * 32}
    with pytest.raises(BadInput, match="another"):
        base_job(written(tmp_path / "job.json", model=said), None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"stepz": 3}', "stepz: .*did you mean steps"), ('{"steps": 0}', "steps"), ("[1]", "no job"),
        ("{", "JSON"), ('{"seed": 3}', "without seed"), ('{"seed": 0}', "without seed"),
        ('{"streams": {"a": 1}}', "without streams"), ('{"tracking": {}}', "without tracking"),
        ("", "empty file"), (" \n", "empty file"), ("steps: 7", "JSON"), ('{"steps": "many"}', "steps: .*'many'"),
        ('{"steps": 4, "steps": 5}', "steps twice"),
        ('{"model": {"kind": "tiny", "layers": 2, "layers": 3}}', "layers twice"),
        ('{"model": {"kind": "tiny", "layer": 2}}', r"model\.layer: .*did you mean layers"),
        ('{"model": {"kind": "path"}}', r"model\.path: "), ('{"model": {"kind": "hub"}}', "model: .*'tiny', 'path'"),
        ('{"max_tokens": "abc"}', "max_tokens: "),
    ],
)  # fmt: skip
def test_what_is_no_job_of_a_study_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(BadInput, match=said) as refused:
        base_job(tmp_path / "job.json", None)
    assert "\n" not in refused.value.message
    assert ("did you mean" in refused.value.message) == ("did you mean" in said), "a wrong value has no other name"


@pytest.mark.parametrize("place", [".", "nothing.json"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, place: str) -> None:
    with pytest.raises(BadInput, match=str(tmp_path)) as refused:
        base_job(tmp_path / place, None)
    assert "\n" not in refused.value.message


def test_the_value_itself_and_free_fields_may_be_named_and_no_other_value() -> None:
    usual = Job().learning_rate
    base = Job(steps=80, group_size=4, learning_rate=usual)
    assert find_fixed_fields(base) == {"steps": 80, "group_size": 4, "learning_rate": usual}
    assert find_fixed_fields(Job(seed=4)) == {}, "a study draws its seeds"
    require_agreement(base, {"steps": [80], "max_tokens": [9], "group_size": [4, 16], "learning_rate": [usual, 3e-3]})
    require_agreement(None, {"steps": [3]})
    for field, values in {"group_size": [8, 16], "learning_rate": [3e-3, 1e-2]}.items():
        with pytest.raises(DesignRefused, match=f"expected {field} = .*, which the job"):
            require_agreement(base, {field: values})
