from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import sqlalchemy as sa

from studies import EventType, LogCorrupt, StudyLog, UnknownStudy, fold
from studies.log.event_log import LOCK_FILE, lock_error, write_lock
from tests.golden import assert_golden
from tests.studies.synthetic import Synthetic, design


def test_it_sees_at_every_event_what_a_whole_reading_sees(study: Synthetic) -> None:
    study.create()
    following = StudyLog(study.log, study.study)
    study.lock()
    for spec in study.plan()[:3]:
        study.run(spec)
        assert following.state() == fold(study.log.read(study.study))
    study.judge()
    assert following.state() == study.state()
    assert following.state() is following.state()


def test_a_study_that_is_not_there_is_none(study: Synthetic) -> None:
    following = StudyLog(study.log, study.study)
    with pytest.raises(UnknownStudy):
        following.state()
    study.create()
    assert following.state().event_count == 1


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM events WHERE seq = 5", "not there any more"),
        ("UPDATE events SET hash = 'x' WHERE seq = 5", "it held something else"),
        ("UPDATE events SET payload = '{}' WHERE seq = 6", "its fields give"),
        ("UPDATE events SET seq = 9 WHERE seq = 6", "expected event 6"),
    ],
)
def test_a_log_that_was_written_anew_is_refused(study: Synthetic, statement: str, said: str) -> None:
    study.create()
    study.lock()
    following = StudyLog(study.log, study.study)
    assert following.state().event_count == 5
    study.append(EventType.STUDY_STOPPED, reason="x")
    with study.log.transaction("write") as connection:
        connection.execute(sa.text(statement))
    with pytest.raises(LogCorrupt, match=said):
        following.state()


def test_after_a_refusal_it_begins_anew(study: Synthetic) -> None:
    study.create()
    following = StudyLog(study.log, study.study)
    following.state()
    study.append(EventType.RUN_INVALIDATED, run_id="none", code="", reason="")
    for _ in range(2):
        with pytest.raises(LogCorrupt, match="no run 'none'"):
            following.state()


def test_the_lock_files_sha256_is_the_designs_hash(tmp_path: Path) -> None:
    assert write_lock(tmp_path / "new", design()) == design().hash()
    assert hashlib.sha256((tmp_path / "new" / LOCK_FILE).read_bytes()).hexdigest() == design().hash()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [LOCK_FILE]


def test_a_lock_that_is_gone_or_changed_is_told_and_before_it_there_is_no_file_to_be_wrong(
    study: Synthetic, tmp_path: Path
) -> None:
    study.create()
    assert lock_error(study.state(), tmp_path) is None
    study.lock()
    state = study.state()
    assert lock_error(state, tmp_path) is None
    assert_golden(lock_error(state, tmp_path / "elsewhere"))
    write_lock(tmp_path, study.design.model_copy(update={"alpha": 0.5}))
    assert_golden(lock_error(state, tmp_path))
