"""Tests of a study that one host after another drives, over one database and shared files."""

from __future__ import annotations

import copy
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from threading import Event

import pytest

from research.controller import session as sessions
from research.controller.controller import drive
from research.controller.session import Session, hold_lease, require_files, require_here
from research.installation.home import Home
from studies import ControllerLeaseLost, StudyState, fold
from studies.log.event_log import lock_error
from tests.research.bench import STUDY, Bench, Cut
from tests.research.controller.test_driver import Notes
from tests.research.fakes import FakeSandbox

EVENTS = 60
"""More than the study of a bench has."""


def hosts(path: Path) -> tuple[Bench, Bench]:
    """Return two hosts' benches of one study: a home and a sandbox each, one log, one folder of shared files."""
    first = Bench(path / "a")
    second = copy.copy(first)
    second.sandbox = FakeSandbox()
    second.sandbox.now = first.clock
    for bench, name in ((first, "a"), (second, "b")):
        bench.home = Home(path / name, first.home.database, f"file://{path}/team").prepare()
    return first, second


def check_files(home: Home, state: StudyState) -> None:
    """Fail unless an installation has each file whose hash the log has."""
    folder = home.study(STUDY)
    assert lock_error(state, folder) is None
    for run in state.runs.values():
        for stored in (run.collected["snapshot"], run.collected["evaluation"]) if run.collected else ():
            assert sha256((folder / stored["path"]).read_bytes()).hexdigest() == stored["sha256"]


@pytest.mark.parametrize("at", range(0, EVENTS, 3))
def test_whichever_event_a_host_vanishes_at_another_one_brings_its_study_to_the_end(tmp_path: Path, at: int) -> None:
    first, second = hosts(tmp_path)
    with suppress(Cut):
        first.drive(first.loop(at, written=at % 2 > 0))
    begun = fold(first.events())
    second.home.files.pull(second.log, STUDY)
    state = second.drive(second.loop())
    assert state.status == "concluded"
    assert {run.status for run in state.runs.values()} == {"collected"}
    launched = [(run, attempt) for run in state.runs.values() for attempt in run.attempts]
    lost = [(run.run_id, attempt.number) for run, attempt in launched if attempt.code == "lost"]
    assert lost == [(run.run_id, run.active.number) for run in begun.runs.values() if run.active]
    assert all(sum(attempt.status == "finished" for attempt in run.attempts) == 1 for run in state.runs.values())
    assert first.sandbox.starts.keys().isdisjoint(second.sandbox.starts)  # a name is one process, on one host
    check_files(second.home, state)
    first.home.files.pull(first.log, STUDY)
    check_files(first.home, state)


def test_any_installation_that_shares_the_files_can_be_asked(tmp_path: Path) -> None:
    first, second = hosts(tmp_path)
    with closing(first.log), hold_lease(first.home, first.log, STUDY, print):
        state = first.drive(first.loop())
    require_here(second.home, second.log, state)
    require_files(second.home, second.log, STUDY)
    check_files(second.home, state)


class Mends(Notes):
    def __init__(self, team: Path) -> None:
        super().__init__()
        self.team = team
        team.write_text("no folder")

    def note(self, line: str) -> None:
        super().note(line)
        self.team.unlink()


def test_shared_files_that_are_away_are_waited_for(tmp_path: Path) -> None:
    first, _ = hosts(tmp_path)
    first.tick_s = 0.0
    notes = Mends(tmp_path / "team")
    state = drive(first.loop(), [notes], Event(), poll_s=0.0, pause_s=0.0)
    assert state.status == "concluded"
    assert [line.partition(":")[0] for line in notes.lines] == ["waiting for the shared files"]


def lost() -> None:
    raise ControllerLeaseLost("another one has it")


def test_a_host_that_finds_its_lease_lost_to_another_ends_what_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = hosts(tmp_path)
    with hold_lease(first.home, first.log, STUDY, print):
        first.until(lambda state: any(run.active for run in state.runs.values()))
    monkeypatch.setattr(sessions, "ProcessSandbox", lambda folder: first.sandbox)
    for home, stops in ((first.home, 0), (second.home, 1)):
        with hold_lease(home, first.log, STUDY, print):
            session = Session(first.home, first.log, STUDY, first.planner, check=lost)
            with pytest.raises(ControllerLeaseLost):
                session.run(Notes())
        assert {handle.stops for handle in first.sandbox.handles.values()} == {stops}


def test_what_runs_of_a_study_that_went_on_elsewhere_is_ended_once_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = hosts(tmp_path)
    first.until(lambda state: any(run.active for run in state.runs.values()))
    second.home.files.pull(second.log, STUDY)
    second.until(lambda state: all(run.active is None or run.active.number > 1 for run in state.runs.values()))
    monkeypatch.setattr(sessions, "ProcessSandbox", lambda folder: first.sandbox)
    first.home.files.pull(first.log, STUDY)
    Session(first.home, first.log, STUDY, first.planner)
    assert {handle.stops for handle in first.sandbox.handles.values()} == {1}
