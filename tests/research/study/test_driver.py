"""Driving a study: until it is done, or stopped cleanly when it is interrupted."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

from research.errors import ModelFailed
from research.study.driver import drive
from sandboxes import SandboxError
from studies import ControllerLeaseLost, StoreError, StudyState
from tests.studies.synthetic import Synthetic


@dataclass
class Outcome:
    state: StudyState
    done: bool


class ModelBreaks:
    """A loop whose tick is making a model when it ends; Ctrl-C comes with it or not."""

    def __init__(self, state: StudyState, interrupted: Event, *, by_user: bool) -> None:
        self.stopped: list[str] = []
        self._state = state
        self._interrupted = interrupted
        self._by_user = by_user

    def tick(self) -> Outcome:
        if self._by_user:
            self._interrupted.set()
        raise ModelFailed("its process ended with -2")

    def stop(self, reason: str) -> Outcome:
        self.stopped.append(reason)
        return Outcome(self._state, True)


@pytest.fixture
def state(tmp_path: Path) -> StudyState:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    return synthetic.state()


def test_ctrl_c_while_the_model_is_made_stops_the_study_cleanly(state: StudyState) -> None:
    interrupted = Event()
    loop = ModelBreaks(state, interrupted, by_user=True)
    assert drive(loop, [], interrupted) is state
    assert loop.stopped == ["interrupted by the user"]


def test_an_interrupt_that_is_no_stop_leaves_the_study_as_it_is(state: StudyState) -> None:
    interrupted = Event()
    loop = ModelBreaks(state, interrupted, by_user=True)
    with pytest.raises(KeyboardInterrupt):
        drive(loop, [], interrupted, interruption=lambda: None)
    assert loop.stopped == []


def test_an_interrupt_stops_for_the_reason_that_is_found_then(state: StudyState) -> None:
    interrupted = Event()
    loop = ModelBreaks(state, interrupted, by_user=True)
    assert drive(loop, [], interrupted, interruption=lambda: "cancelled") is state
    assert loop.stopped == ["cancelled"]


def test_a_model_that_cannot_be_made_is_an_error(state: StudyState) -> None:
    interrupted = Event()
    loop = ModelBreaks(state, interrupted, by_user=False)
    with pytest.raises(ModelFailed):
        drive(loop, [], interrupted)
    assert loop.stopped == []


class Engineless:
    """A loop whose ticks find no engine, so many times."""

    def __init__(self, state: StudyState, times: int, interrupted: Event | None = None) -> None:
        self.left = times
        self._state = state
        self._interrupted = interrupted

    def tick(self) -> Outcome:
        self.left -= 1
        if self.left < 0:
            return Outcome(self._state, True)
        if self._interrupted is not None:
            self._interrupted.set()
        raise SandboxError("expected a Docker Engine;\nfound none")

    def stop(self, reason: str) -> Outcome:
        return self.tick()


class Notes:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def observe(self, state: StudyState) -> None:
        pass

    def note(self, line: str) -> None:
        self.lines.append(line)


def test_an_engine_that_comes_back_costs_a_study_nothing_and_the_wait_is_shown(state: StudyState) -> None:
    notes = Notes()
    assert drive(Engineless(state, 3), [notes], Event(), pause_s=0.0) is state
    assert notes.lines == ["waiting for a sandbox: expected a Docker Engine; found none"]


def test_an_engine_that_stays_away_ends_the_controller(state: StudyState) -> None:
    with pytest.raises(SandboxError):
        drive(Engineless(state, 10**9), [], Event(), patience_s=0.0, pause_s=0.0)


def test_ctrl_c_does_not_wait_for_an_engine(state: StudyState) -> None:
    interrupted = Event()
    loop = Engineless(state, 10**9, interrupted)
    with pytest.raises(SandboxError):
        drive(loop, [], interrupted, pause_s=0.0)
    assert loop.left > 10**9 - 3


class Unreachable(Engineless):
    """A loop whose ticks find no database, so many times."""

    def tick(self) -> Outcome:
        try:
            return super().tick()
        except SandboxError:
            raise StoreError("could not read the event log;\nthe network is down") from None


def test_a_database_that_comes_back_costs_a_study_nothing(state: StudyState) -> None:
    notes = Notes()
    assert drive(Unreachable(state, 3), [notes], Event(), pause_s=0.0) is state
    assert notes.lines == ["waiting for the event log: could not read the event log; the network is down"]


def test_a_database_that_stays_away_ends_the_controller(state: StudyState) -> None:
    with pytest.raises(StoreError):
        drive(Unreachable(state, 10**9), [], Event(), patience_s=0.0, pause_s=0.0)


class Full(Engineless):
    """A loop whose ticks find no room to store what a run left, so many times."""

    number = errno.ENOSPC

    def tick(self) -> Outcome:
        try:
            return super().tick()
        except SandboxError:
            raise OSError(self.number, "no", "snapshot.json") from None


def test_a_disk_that_has_room_again_costs_a_study_nothing(state: StudyState) -> None:
    notes = Notes()
    assert drive(Full(state, 3), [notes], Event(), pause_s=0.0) is state
    assert notes.lines == [f"waiting for room on the disk: [Errno {errno.ENOSPC}] no: 'snapshot.json'"]


def test_other_trouble_with_files_is_not_waited_for(state: StudyState) -> None:
    loop = Full(state, 10**9)
    loop.number = errno.EACCES
    with pytest.raises(PermissionError):
        drive(loop, [], Event(), pause_s=0.0)


class Overtaken(Engineless):
    """A loop whose study another controller drives by now."""

    def tick(self) -> Outcome:
        raise ControllerLeaseLost("another one has it")


def test_a_controller_without_its_lease_ends_at_once(state: StudyState) -> None:
    with pytest.raises(ControllerLeaseLost):
        drive(Overtaken(state, 1), [], Event())
