"""A reader that follows a log sees what a whole reading sees, and nothing that was written anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from studies import EventLog, EventType, LogCorrupt, StudyLog, UnknownStudy, fold
from tests.studies.raw import append
from tests.studies.synthetic import Synthetic


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


def change(study: Synthetic, statement: str) -> None:
    engine = sa.create_engine(f"sqlite:///{study.folder / 'events.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


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


def test_it_sees_what_another_process_appends(study: Synthetic) -> None:
    study.create()
    following = StudyLog(study.log, study.study)
    following.state()
    other = EventLog(f"sqlite:///{study.folder / 'events.db'}")
    append(other, study.study, EventType.STUDY_STOPPED, {"reason": "by hand"})
    other.close()
    assert following.state().stopped_reason == "by hand"


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
    change(study, statement)
    with pytest.raises(LogCorrupt, match=said):
        following.state()


def test_after_a_refusal_it_begins_anew(study: Synthetic) -> None:
    study.create()
    following = StudyLog(study.log, study.study)
    following.state()
    study.append(EventType.RUN_COLLECTED, run_id="none")
    for _ in range(2):
        with pytest.raises(LogCorrupt, match="no run 'none'"):
            following.state()
