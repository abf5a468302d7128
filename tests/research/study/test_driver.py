"""Driving a study: until it is done, or stopped cleanly when it is interrupted."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from research.controller.controller import drive
from research.errors import ModelFailed
from sandboxes import SandboxError
from studies import ControllerLeaseLost, StoreError, StudyState
from tests.studies.synthetic import Synthetic


@dataclass
class Outcome:
    state: StudyState
    done: bool = True


@dataclass
class Failing:
    """A loop whose ticks fail, so many times; Ctrl-C comes with each where `interrupted` is given."""

    state: StudyState
    error: Exception
    left: int = 10**9
    interrupted: Event | None = None
    stopped: list[str] = field(default_factory=list)

    def tick(self) -> Outcome:
        self.left -= 1
        if self.left < 0:
            return Outcome(self.state)
        if self.interrupted is not None:
            self.interrupted.set()
        raise self.error

    def stop(self, reason: str) -> Outcome:
        if isinstance(self.error, SandboxError):
            return self.tick()
        self.stopped.append(reason)
        return Outcome(self.state)


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def observe(self, state: StudyState) -> None:
        pass

    def note(self, line: str) -> None:
        self.lines.append(line)


NO_MODEL = ModelFailed("its process ended with -2")
NO_ENGINE = SandboxError("expected a Docker Engine;\nfound none")
NO_DATABASE = StoreError("could not read the event log;\nthe network is down")
NO_ROOM = OSError(errno.ENOSPC, "no", "snapshot.json")


@pytest.fixture
def state(tmp_path: Path) -> StudyState:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    return synthetic.state()


@pytest.mark.parametrize(
    ("interruption", "stopped"),
    [({}, ["interrupted by the user"]), ({"interruption": lambda: "cancelled"}, ["cancelled"])],
)
def test_ctrl_c_while_the_model_is_made_stops_the_study_cleanly_for_its_reason(
    state: StudyState, interruption: dict[str, Callable[[], str]], stopped: list[str]
) -> None:
    interrupted = Event()
    loop = Failing(state, NO_MODEL, interrupted=interrupted)
    assert drive(loop, [], interrupted, **interruption) is state
    assert loop.stopped == stopped


def test_an_interrupt_that_is_no_stop_leaves_the_study_as_it_is(state: StudyState) -> None:
    interrupted = Event()
    loop = Failing(state, NO_MODEL, interrupted=interrupted)
    with pytest.raises(KeyboardInterrupt):
        drive(loop, [], interrupted, interruption=lambda: None)
    assert loop.stopped == []


@pytest.mark.parametrize(
    "error", [NO_MODEL, OSError(errno.EACCES, "no", "snapshot.json"), ControllerLeaseLost("another one has it")]
)
def test_what_no_waiting_mends_ends_the_controller_at_once(state: StudyState, error: Exception) -> None:
    loop = Failing(state, error)
    with pytest.raises(type(error)):
        drive(loop, [], Event(), pause_s=0.0)
    assert (loop.left, loop.stopped) == (10**9 - 1, [])


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (NO_ENGINE, ("a sandbox", "Docker Engine; found none")),
        (NO_DATABASE, ("the event log", "; the network is down")),
        (NO_ROOM, ("room on the disk", "'snapshot.json'")),
    ],
)
def test_what_comes_back_costs_a_study_nothing_and_the_wait_is_shown_once(
    state: StudyState, error: Exception, names: tuple[str, ...]
) -> None:
    notes = Notes()
    assert drive(Failing(state, error, 3), [notes], Event(), pause_s=0.0) is state
    (line,) = notes.lines
    assert [name for name in ("waiting for ", *names) if name not in line] == []


@pytest.mark.parametrize("error", [NO_ENGINE, NO_DATABASE])
def test_what_stays_away_ends_the_controller(state: StudyState, error: Exception) -> None:
    with pytest.raises(type(error)):
        drive(Failing(state, error), [], Event(), patience_s=0.0, pause_s=0.0)


def test_ctrl_c_does_not_wait_for_an_engine(state: StudyState) -> None:
    interrupted = Event()
    loop = Failing(state, NO_ENGINE, interrupted=interrupted)
    with pytest.raises(SandboxError):
        drive(loop, [], interrupted, pause_s=0.0)
    assert loop.left > 10**9 - 3
