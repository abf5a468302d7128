"""The job under all arms: from a file, with the model of a folder and a backend, and back from a study's settings."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from research.errors import BadInput, DesignRefused, ModelFailed, NotReady
from research.installation.base_job import (
    VERL_PYTHON,
    _require_verl,
    base_job,
    base_job_of,
    base_settings,
    describe_unusual_rate,
    find_fixed_fields,
    fit_to_environment,
    model_folder,
    python_of,
    require_agreement,
    require_backend,
    require_unchanged,
)
from research.installation.tiny_model import WEIGHTS, prepare_model
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel, TinyModel
from swarm.models import folder_hash, tiny_hash
from tests.research.model_folders import model_at


def written(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps(fields))
    return path


def test_a_study_of_a_job_that_is_not_trained_any_more_says_so() -> None:
    begun = {**Job().value(), "backend": "verl", "verl": {"advantage_estimator": "gae"}}
    with pytest.raises(BadInput, match=r"earlier one.*gae needs"):
        base_job_of({"base_job": begun})


@pytest.mark.parametrize(
    ("rate", "said"), [(1e-3, None), (0.0, None), (0.012, None), (0.09, "tiny model"), (1e-5, "far from")]
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


def test_an_environment_fits_a_pretrained_models_job_where_nobody_says_another(tmp_path: Path) -> None:
    job = base_job(written(tmp_path / "job.json", max_tokens=5), str(model_at(tmp_path / "m")))
    assert job is not None
    fitted = fit_to_environment(job, "words")
    assert (fitted.environment, fitted.lora_rank, fitted.learning_rate, fitted.max_tokens) == ("words", 16, 5e-4, 5)
    again = base_job_of(json.loads(json.dumps(base_settings(fitted))))
    assert again == fitted
    for each in (fitted, again):  # what it has of the environment may be varied
        assert find_fixed_fields(each).keys() == {"environment", "model", "max_tokens"}
    assert fit_to_environment(job, "guess") is job
    assert fit_to_environment(tiny := Job(), "words") is tiny


def test_a_folder_beside_a_file_wins_unless_the_file_names_one(tmp_path: Path) -> None:
    mine, theirs = model_at(tmp_path / "mine"), model_at(tmp_path / "theirs", b"v")
    tiny = written(tmp_path / "tiny.json", model={"kind": "tiny", "layers": 3})
    named = written(tmp_path / "named.json", model={"kind": "path", "path": str(mine)})
    found = base_job(tiny, str(theirs))
    assert found is not None
    assert found.model == base_job(None, str(theirs)).model  # type: ignore[union-attr]
    with pytest.raises(BadInput, match=f"{mine} in {named} .*{theirs}"):
        base_job(named, str(theirs))
    hashed = {"kind": "path", "path": str(mine), "sha256": "ab" * 32}  # of other files
    with pytest.raises(BadInput, match="another"):
        base_job(written(tmp_path / "hashed.json", model=hashed), None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"stepz": 3}', "stepz: .*did you mean"), ('{"steps": 0}', "steps"), ("[1]", "no job"),
        ("{", "JSON"), ('{"seed": 3}', "without seed"), ('{"seed": 0}', "without seed"),
        ('{"streams": {"a": 1}}', "without streams"), ('{"tracking": {}}', "without tracking"),
        ("", "empty file"), (" \n", "empty file"), ("steps: 7", "JSON"), ('{"steps": "many"}', "steps: .*'many'"),
        ('{"steps": 4, "steps": 5}', "steps twice"),
        ('{"model": {"kind": "tiny", "layers": 2, "layers": 3}}', "layers twice"),
        ('{"model": {"kind": "tiny", "layer": 2}}', r"model\.layer: .*did you mean"),
        ('{"model": {"kind": "path"}}', r"model\.path: "), ('{"model": {"kind": "hub"}}', "model: .*'tiny', 'path'"),
        ('{"max_tokens": "abc"}', "max_tokens: "),
    ],
)  # fmt: skip
def test_what_is_no_job_of_a_study_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(BadInput, match=said) as refused:
        base_job(tmp_path / "job.json", None)
    assert "\n" not in refused.value.message
    assert ("did you mean" in refused.value.message) == ("did you mean" in said)  # a wrong value has no other name


def test_the_value_itself_and_free_fields_may_be_named_and_no_other_value() -> None:
    usual = Job().learning_rate
    base = Job(steps=80, group_size=4, learning_rate=usual)
    assert find_fixed_fields(base) == {"steps": 80, "group_size": 4, "learning_rate": usual}
    assert find_fixed_fields(Job(seed=4)) == {}  # a study draws its seeds
    require_agreement(base, {"steps": [80], "max_tokens": [9], "group_size": [4, 16], "learning_rate": [usual, 3e-3]})
    require_agreement(None, {"steps": [3]})
    for field, values in {"group_size": [8, 16], "learning_rate": [3e-3, 1e-2]}.items():
        with pytest.raises(DesignRefused, match=f"expected {field} = .*job"):
            require_agreement(base, {field: values})


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is in another environment, as it is where Prefect is."""
    monkeypatch.setattr("research.installation.base_job.VERL_PACKAGES", ("a_package_that_nobody_has",))
    monkeypatch.delenv(VERL_PYTHON, raising=False)
    _require_verl.cache_clear()


def make_script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.usefixtures("elsewhere")
def test_where_nobody_names_the_environment_of_verl_the_way_to_it_is_said() -> None:
    with pytest.raises(NotReady, match=f"a_package_that_nobody_has.*export {VERL_PYTHON}=") as refused:
        require_backend("verl")
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("script", "said"),
    [("echo vllm ray", "missing: vllm ray"), ("echo no such >&2; exit 3", "no such"), ("", "python")],
)
def test_the_named_python_runs_it_and_is_refused_by_what_it_lacks(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    monkeypatch.setenv(VERL_PYTHON, make_script(python, script) if script else str(python))
    with pytest.raises(NotReady, match=said):
        require_backend("verl")
    make_script(python, "exit 0")
    require_backend("verl")
    assert python_of("verl") == str(python)


def test_a_model_of_the_installation_is_called_by_its_name_alone_and_found_by_it(tmp_path: Path) -> None:
    models = tmp_path / "home" / "models"
    folder = model_at(models / "mine")
    (tmp_path / "link").symlink_to(models)
    for said in (str(folder), str(tmp_path / "link" / "mine"), "mine"):
        found = model_folder(said, models)
        assert (found.path, found.sha256) == ("mine", folder_hash(folder))
    require_unchanged(found, models)
    model_at(folder, b"v")
    with pytest.raises(InvalidRequest, match=str(folder)):
        require_unchanged(found, models)


def test_a_folder_that_changed_or_went_is_refused_and_one_that_came_back_is_not(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    model = model_folder(str(folder))
    require_unchanged(model)
    model_at(folder, b"v")
    with pytest.raises(InvalidRequest, match="changed"):
        require_unchanged(model)
    model_at(folder)
    require_unchanged(model)
    folder.rename(tmp_path / "away")
    with pytest.raises(InvalidRequest, match="none there"):
        require_unchanged(model)


# A maker of a tiny model that was killed is started again, one that gives up is not, and its words are told


Maker = Callable[[str], Path]


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Put a shell script in the place of the maker: it finds its try in $n, and returns the file that counts tries."""

    def stand_in(script: str) -> Path:
        tries, program = tmp_path / "tries", tmp_path / "maker"
        (tmp_path / WEIGHTS).write_bytes(b"weights")
        count = f'echo . >> "{tries}"; n=$(wc -l < "{tries}"); model="{tmp_path}"'
        monkeypatch.setattr(sys, "executable", make_script(program, f"{count}\n{script}"))
        return tries

    return stand_in


def test_a_maker_that_is_killed_is_started_again(maker: Maker, tmp_path: Path) -> None:
    count = maker('if [ "$n" -lt 3 ]; then echo "warm start 3/4"; kill -KILL $$; fi; echo "$model"')
    said: list[str] = []
    assert prepare_model(Job(), tmp_path, said.append)["sha256"]
    assert len(count.read_text().split()) == 3
    assert sum("signal 9" in line and "warm start 3/4" in line for line in said) == 2


def test_a_model_that_is_there_is_hashed_and_nothing_is_started(maker: Maker, tmp_path: Path) -> None:
    count = maker("exit 2")
    (folder := tmp_path / tiny_hash(TinyModel(), "guess")).mkdir()
    (folder / WEIGHTS).write_bytes(b"weights")
    made = prepare_model(Job(environment="guess"), tmp_path, lambda line: None)
    assert made["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert not count.exists()


def test_a_maker_that_is_always_killed_is_given_up_with_the_reason_of_each_try(maker: Maker, tmp_path: Path) -> None:
    count = maker('echo "step $n"; kill -KILL $$')
    with pytest.raises(ModelFailed) as failed:
        prepare_model(Job(), tmp_path, lambda line: None)
    assert len(count.read_text().split()) == 3
    assert "short of memory" in failed.value.message
    assert all(f"step {n}" in failed.value.message for n in (1, 2, 3))
    assert "\n" not in failed.value.message


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'cannot write there'; exit 2", "code 2, .*: cannot write there"),
        ("echo half; kill -TERM $$", "signal 15 .*: half"), ("kill -INT $$", "signal 2 .*: nothing"),
    ],
)  # fmt: skip
def test_a_maker_that_gives_up_is_not_started_again(maker: Maker, tmp_path: Path, script: str, said: str) -> None:
    count = maker(script)
    with pytest.raises(ModelFailed, match=said):
        prepare_model(Job(), tmp_path, lambda line: None)
    assert len(count.read_text().split()) == 1
