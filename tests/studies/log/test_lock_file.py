"""The lock as a file: its sha256 is the design's hash, and a change of it is told in a sentence."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from studies import StudyState
from studies.log.lock_file import LOCK_FILE, lock_error, write_lock
from tests.studies.synthetic import Synthetic, design


@pytest.fixture
def state(tmp_path: Path) -> StudyState:
    study = Synthetic(tmp_path)
    study.create()
    study.lock()
    return study.state()


def test_the_files_sha256_is_the_designs_hash(tmp_path: Path) -> None:
    assert write_lock(tmp_path / "new", design()) == design().hash()
    assert hashlib.sha256((tmp_path / "new" / LOCK_FILE).read_bytes()).hexdigest() == design().hash()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [LOCK_FILE]


def test_a_lock_as_it_was_written_is_no_error(state: StudyState, tmp_path: Path) -> None:
    assert lock_error(state, tmp_path) is None


def test_before_the_lock_there_is_no_file_to_be_wrong(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    study.create()
    assert lock_error(study.state(), tmp_path) is None


def test_a_lock_that_is_gone_or_changed_is_told(state: StudyState, tmp_path: Path) -> None:
    assert "cannot be read (No such file" in str(lock_error(state, tmp_path / "elsewhere"))
    assert state.design is not None
    write_lock(tmp_path, state.design.model_copy(update={"alpha": 0.5}))
    assert f"expected the sha256 {str(state.design_hash)[:12]} of the log" in str(lock_error(state, tmp_path))
