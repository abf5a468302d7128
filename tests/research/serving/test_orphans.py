"""Which studies a worker looks after: its own, which nobody drives, over or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from research.installation.home import Home
from research.orchestration.deployment import UnownedStudies
from studies import EventType, StudyLog
from studies.log.fold import SERVED, WORKED
from studies.log.locks import TTL_S, ControllerLeases, Holder
from tests.studies.synthetic import STUDY, Synthetic

Change = tuple[EventType, Mapping[str, object]]


def begun(*, served: bool) -> Change:
    return EventType.STUDY_RESUMED, {"command": ["ajet", "study", "resume"], WORKED: 0.0, SERVED: served}


PAUSED: Change = EventType.STUDY_PAUSED, {"reason": "lunch"}
CONCLUDED: Change = EventType.STUDY_CONCLUDED, {"reason": "enough"}
REPORT = {name: {"path": name, "sha256": "0" * 64} for name in ("markdown", "html")}


class Worker:
    def __init__(self, folder: Path) -> None:
        synthetic = Synthetic(folder)
        synthetic.create()
        self.log = synthetic.log
        self.home = Home.locate({"AJET_HOME": str(folder)})
        self.home.study(STUDY).mkdir(parents=True)
        self.me = Holder.here(folder)

    def change(self, *changes: Change) -> None:
        for kind, payload in changes:
            StudyLog(self.log, STUDY).change(lambda state: (kind, dict(payload)))  # noqa: B023 - called at once

    def drive(self, holder: Holder | None = None) -> None:
        ControllerLeases(self.log).take(STUDY, holder or self.me).give_back()

    def finds(self, me: Holder | None = None, home: Path | str | None = None) -> bool:
        """Return whether the study is left to this holder, whose installation lies in `home`, else in its own."""
        me = me or self.me
        found = [
            state.id for state in UnownedStudies(self.log, Home.locate({"AJET_HOME": str(home or me.home)}), me).find()
        ]
        assert found in ([], [STUDY])
        return bool(found)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        pytest.param((), True, id="worker"),
        pytest.param((begun(served=False),), False, id="terminal"),
        pytest.param(((EventType.STUDY_STOPPED, {"reason": "enough"}),), True, id="stopped"),
        pytest.param((CONCLUDED,), True, id="without its report"),
        pytest.param((CONCLUDED, (EventType.REPORT_BUILT, REPORT)), True, id="with its report"),
        pytest.param((PAUSED, (EventType.STUDY_RESUMED, {"command": []})), True, id="paused and resumed"),
    ],
)
def test_a_study_that_a_worker_began_is_looked_after(worker: Worker, changes: tuple[Change, ...], left: bool) -> None:
    worker.change(begun(served=True))
    worker.drive()
    worker.change(*changes)
    assert worker.finds() == left


def test_one_that_was_handed_over_and_that_nobody_began_is_taken_up_where_its_folder_is(worker: Worker) -> None:
    assert not worker.finds()  # a terminal's, which is about to take its lease
    worker.change(begun(served=True))
    assert worker.finds()
    assert not worker.finds(replace(worker.me, home=f"{worker.me.home}/another"))  # that shares the log


def test_one_that_somebody_drives_or_that_is_elsewhere_is_left_alone(worker: Worker) -> None:
    worker.change(begun(served=True))
    lease = ControllerLeases(worker.log).take(STUDY, worker.me)
    assert not worker.finds()
    lease.give_back()
    assert not worker.finds(replace(worker.me, home="/another"))
    worker.drive(replace(worker.me, host="another", boot="another"))
    assert not worker.finds(home=f"{worker.me.home}/of-another-host")


def test_a_look_reads_only_studies_that_moved(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.change(begun(served=True))
    worker.drive()
    looking = UnownedStudies(worker.log, worker.home, worker.me)
    assert [state.id for state in looking.find()] == [STUDY]
    with monkeypatch.context() as patched:
        patched.setattr(worker.log, "read", lambda study: pytest.fail(f"{study} did not move"))
        assert [state.id for state in looking.find()] == [STUDY]
    worker.change(begun(served=False))
    assert list(looking.find()) == []


def test_one_whose_machine_was_started_anew_is_taken_up_once_its_lease_stood_still(worker: Worker) -> None:
    now = [0.0]
    worker.change(begun(served=True))
    ControllerLeases(worker.log).take(STUDY, replace(worker.me, boot="the boot before"))
    looking = UnownedStudies(worker.log, worker.home, worker.me, clock=lambda: now[0])
    assert list(looking.find()) == []
    now[0] = TTL_S
    assert [state.id for state in looking.find()] == [STUDY]


def test_a_study_is_the_installations_however_its_folder_is_spelled(worker: Worker, tmp_path: Path) -> None:
    worker.change(begun(served=True))
    worker.drive()
    (tmp_path / "link").symlink_to(tmp_path)
    assert worker.finds(Holder.here(tmp_path / "link"))
