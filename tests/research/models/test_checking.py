"""A check of a model is kept by what the folder holds, and found again by whoever prices a study."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from research.errors import ModelFailed
from research.models.fetch import build_job, load_check, measure_model
from tests.swarm.backends.local.models import save_folder
from tests.swarm.models.folders import whole_folder

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo 'expected a smaller model, found another' >&2; exit 2", "expected a smaller model, found another"),
        ("kill -KILL $$", "signal 9"),
    ],
)
def test_a_failed_check_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str) -> None:
    program, models = tmp_path / "program", tmp_path / "models"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ModelFailed, match=told) as failed:
        measure_model(build_job(whole_folder(tmp_path / "m")), models, lambda line: None)
    assert "\n" not in failed.value.message
    assert not (models / "checks").exists()
