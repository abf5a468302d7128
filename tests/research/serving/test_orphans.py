"""Which studies a worker takes up by itself: its own, which nobody drives, as long as that leads anywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from research.installation.home import Home
from research.serving.orphans import MOST_FRUITLESS, Orphans
from studies import EventLog, EventType, StudyLog
from studies.log.fold import SERVED, WORKED
from studies.log.leases import TTL_S, ControllerLeases, Holder
from tests.studies.synthetic import STUDY, Synthetic


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    """A log with a study whose folder lies in the installation."""
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    Home.locate({"AJET_HOME": str(tmp_path)}).study(STUDY).mkdir(parents=True)
    return synthetic.log


def begin(log: EventLog, *, served: bool) -> None:
    payload = {"command": ["ajet", "study", "resume"], WORKED: 0.0, SERVED: served}
    StudyLog(log, STUDY).change(lambda state: (EventType.STUDY_RESUMED, payload))


def found(log: EventLog, me: Holder, here: Path | None = None) -> list[str]:
    """Return what is found by a process whose installation lies in the folder `here`, else in its holder's."""
    home = Home.locate({"AJET_HOME": str(here or me.home)})
    return [state.id for state in Orphans(log, home, me).found()]


def drive(log: EventLog, me: Holder) -> None:
    """Have the lease of the study, and give it back."""
    ControllerLeases(log).take(STUDY, me).give_back()


def test_what_a_worker_left_is_taken_up_and_what_a_terminal_left_is_not(tmp_path: Path, log: EventLog) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    drive(log, me)
    assert found(log, me) == [STUDY]
    begin(log, served=False)
    assert found(log, me) == []


def test_one_that_was_handed_over_and_that_nobody_began_is_taken_up_where_its_folder_is(
    tmp_path: Path, log: EventLog
) -> None:
    me = Holder.here(tmp_path)
    assert found(log, me) == []  # a terminal's, which is about to take its lease
    begin(log, served=True)
    assert found(log, me) == [STUDY]
    assert found(log, replace(me, home=str(tmp_path / "another"))) == []  # an installation that shares the log


def test_one_of_an_installation_in_a_folder_of_the_same_name_elsewhere_is_left_alone(
    tmp_path: Path, log: EventLog
) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    drive(log, replace(me, host="another", boot="another"))
    assert found(log, me, here=tmp_path / "of-another-host") == []


def test_one_that_somebody_drives_or_that_is_elsewhere_is_left_alone(tmp_path: Path, log: EventLog) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    lease = ControllerLeases(log).take(STUDY, me)
    assert found(log, me) == []
    lease.give_back()
    assert found(log, replace(me, home="/another")) == []


def test_one_that_was_stopped_stays_so(tmp_path: Path, log: EventLog) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    drive(log, me)
    StudyLog(log, STUDY).change(lambda state: (EventType.STUDY_STOPPED, {"reason": "enough"}))
    assert found(log, me) == []


def test_one_whose_controller_died_between_its_conclusion_and_its_report_is_taken_up(
    tmp_path: Path, log: EventLog
) -> None:
    me = Holder.here(tmp_path)
    begin(log, served=True)
    drive(log, me)
    study = StudyLog(log, STUDY)
    study.change(lambda state: (EventType.STUDY_CONCLUDED, {"reason": "enough"}))
    assert found(log, me) == [STUDY]
    report = {name: {"path": name, "sha256": "0" * 64} for name in ("markdown", "html")}
    study.change(lambda state: (EventType.REPORT_BUILT, report))
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
    looking = Orphans(log, Home.locate({"AJET_HOME": str(tmp_path)}), me)
    assert [state.id for state in looking.found()] == [STUDY]
    with monkeypatch.context() as patched:
        patched.setattr(log, "read", lambda study: pytest.fail(f"{study} did not move"))
        assert [state.id for state in looking.found()] == [STUDY]
    begin(log, served=False)
    assert list(looking.found()) == []


def test_one_whose_machine_was_started_anew_is_taken_up_once_its_lease_stood_still(
    tmp_path: Path, log: EventLog
) -> None:
    me, now = Holder.here(tmp_path), [0.0]
    begin(log, served=True)
    ControllerLeases(log).take(STUDY, replace(me, boot="the boot before"))
    looking = Orphans(log, Home.locate({"AJET_HOME": str(tmp_path)}), me, clock=lambda: now[0])
    assert list(looking.found()) == []
    now[0] = TTL_S
    assert [state.id for state in looking.found()] == [STUDY]


def test_a_study_is_the_installations_however_its_folder_is_spelled(tmp_path: Path, log: EventLog) -> None:
    begin(log, served=True)
    drive(log, Holder.here(tmp_path))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert found(log, Holder.here(link)) == [STUDY]
