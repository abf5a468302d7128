"""Which studies a worker takes up by itself: its own, which nobody drives, as long as that leads anywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from research.serving.orphans import MOST_FRUITLESS, Orphans
from studies import EventLog, EventType, StudyLog
from studies.log.fold import SERVED, WORKED
from studies.log.leases import ControllerLeases, Holder
from tests.studies.synthetic import STUDY, Synthetic


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    return synthetic.log


def begin(log: EventLog, *, served: bool) -> None:
    payload = {"command": ["ajet", "study", "resume"], WORKED: 0.0, SERVED: served}
    StudyLog(log, STUDY).change(lambda state: (EventType.STUDY_RESUMED, payload))


def found(log: EventLog, me: Holder) -> list[str]:
    return [state.id for state in Orphans(log, me).found()]


def drive(log: EventLog, me: Holder) -> None:
    """Have the lease of the study, and give it back."""
    ControllerLeases(log).take(STUDY, me).give_back()


def test_what_a_worker_left_is_taken_up_and_what_a_terminal_left_is_not(tmp_path: Path, log: EventLog) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    assert found(log, me) == []  # nobody drove it here yet: it may be another installation's
    drive(log, me)
    assert found(log, me) == [STUDY]
    begin(log, served=False)
    assert found(log, me) == []


def test_one_that_somebody_drives_or_that_is_elsewhere_is_left_alone(tmp_path: Path, log: EventLog) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    lease = ControllerLeases(log).take(STUDY, me)
    assert found(log, me) == []
    lease.give_back()
    assert found(log, replace(me, home="/another")) == []


@pytest.mark.parametrize("event", [EventType.STUDY_STOPPED, EventType.STUDY_CONCLUDED])
def test_one_that_was_stopped_or_is_over_stays_so(tmp_path: Path, log: EventLog, event: EventType) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    drive(log, me)
    StudyLog(log, STUDY).change(lambda state: (event, {"reason": "enough"}))
    assert found(log, me) == []


def test_a_pause_and_its_end_leave_it_the_workers(tmp_path: Path, log: EventLog) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    drive(log, me)
    study = StudyLog(log, STUDY)
    study.change(lambda state: (EventType.STUDY_PAUSED, {"reason": "lunch"}))
    study.change(lambda state: (EventType.STUDY_RESUMED, {"command": []}))
    assert found(log, me) == [STUDY]


def test_one_to_which_nothing_happens_any_more_is_given_up(tmp_path: Path, log: EventLog) -> None:
    me = Holder.here(tmp_path)
    drive(log, me)
    for _ in range(MOST_FRUITLESS):
        begin(log, served=True)
    assert found(log, me) == []
    StudyLog(log, STUDY).change(lambda state: (EventType.STUDY_PAUSED, {"reason": "mended the disk"}))
    begin(log, served=True)
    assert found(log, me) == [STUDY]


def test_a_look_reads_only_studies_that_moved(tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    drive(log, me)
    looking = Orphans(log, me)
    assert [state.id for state in looking.found()] == [STUDY]
    with monkeypatch.context() as patched:
        patched.setattr(log, "read", lambda study: pytest.fail(f"{study} did not move"))
        assert [state.id for state in looking.found()] == [STUDY]
    begin(log, served=False)
    assert list(looking.found()) == []
