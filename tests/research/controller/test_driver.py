"""Tests of controller."""

from __future__ import annotations

import errno
import sys
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from research.controller.controller import INTERRUPTED, StudyController, drive
from research.controller.interventions import request_stop
from research.controller.session import hold_lease
from research.errors import ModelFailed
from research.installation.home import Home
from research.isolation.mode import Isolation, Sandboxing
from sandboxes import ProcessSandbox, SandboxError, SandboxSpec
from studies import ControllerLeaseLost, EventLog, StoreError, StudyState, fold
from tests.research.bench import STUDY, Bench
from tests.research.fakes import FakeContainers
from tests.research.test_intruder import KINDS, IntrudingLog
from tests.studies.synthetic import Synthetic


@dataclass
class Failing(StudyController):
    """A controller each of whose ticks fails, until `left` of them have."""

    last: StudyState
    error: Exception
    left: int = 10**9
    interrupted: Event | None = None
    stopped: list[str] = field(default_factory=list)

    def tick(self) -> StudyState:
        self.left -= 1
        if self.left < 0:
            return self.last
        if self.interrupted is not None:
            self.interrupted.set()
        raise self.error

    def stop(self, reason: str, actor: str = "user") -> StudyState:
        if isinstance(self.error, SandboxError):
            return self.tick()
        self.stopped.append(reason)
        return self.last


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
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyState:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    monkeypatch.setattr("research.controller.controller.is_done", lambda state: True)
    return synthetic.state()


@pytest.mark.parametrize("reason", [INTERRUPTED, "cancelled", None])
def test_ctrl_c_while_the_model_is_made_stops_the_study_cleanly_where_it_has_a_reason(
    state: StudyState, reason: str | None
) -> None:
    interrupted = Event()
    loop = Failing(state, NO_MODEL, interrupted=interrupted)
    with pytest.raises(KeyboardInterrupt) if reason is None else nullcontext():
        assert drive(loop, [], interrupted, interruption=lambda: reason) is state
    assert loop.stopped == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    ("error", "interrupted"),
    [
        pytest.param(NO_MODEL, None, id="no model"),
        pytest.param(OSError(errno.EACCES, "no", "snapshot.json"), None, id="no file"),
        pytest.param(ControllerLeaseLost("lost"), None, id="a lost lease"),
        pytest.param(NO_ENGINE, Event(), id="Ctrl-C"),
    ],
)
def test_what_no_waiting_mends_ends_the_controller_at_once(
    state: StudyState, error: Exception, interrupted: Event | None
) -> None:
    loop = Failing(state, error, interrupted=interrupted)
    with pytest.raises(type(error)):
        drive(loop, [], interrupted or Event(), pause_s=0.0)
    assert (loop.left > 10**9 - 3, loop.stopped) == (True, [])


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (NO_ENGINE, ("a sandbox", "Docker Engine; found none")),
        (NO_DATABASE, ("the event log", "; the network")),
        (NO_ROOM, ("room on", "'snapshot.json'")),
    ],
)
def test_a_wait_costs_nothing_and_is_shown_once(state: StudyState, error: Exception, names: tuple[str, ...]) -> None:
    notes = Notes()
    assert drive(Failing(state, error, 3), [notes], Event(), pause_s=0.0) is state
    (line,) = notes.lines
    assert [name for name in ("waiting for ", *names) if name not in line] == []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.loop().tick()
    sandbox = ProcessSandbox(bench.home.sandboxes)
    for name in bench.sandbox.handles:
        command = (sys.executable, "-c", "import time; time.sleep(600)")
        sandbox.run(SandboxSpec(name, command, tmp_path, trusted=True))
    return bench


def quiet(line: str) -> None:
    raise AssertionError(f"expected nothing to be said; found {line}")


def statuses(bench: Bench) -> list[str]:
    return [str(attempt.status) for run in fold(bench.events()).runs.values() for attempt in run.attempts]


def test_without_a_controller_the_attempts_are_ended_at_once(bench: Bench) -> None:
    assert request_stop(bench.home, bench.log, STUDY)
    assert request_stop(bench.home, bench.log, STUDY)  # a second stop changes nothing
    assert fold(bench.log.read(STUDY)).status == "stopped"
    assert statuses(bench) == ["stopped", "stopped"]
    ended = [handle.poll() for handle in ProcessSandbox(bench.home.sandboxes).list()]
    assert [exit.reason for exit in ended if exit] == ["stopped", "stopped"]


def test_somebody_who_writes_meanwhile_is_not_in_the_way_of_a_stop(bench: Bench) -> None:
    log = IntrudingLog(bench.home.database, bench.clock, KINDS["a note"], lambda at: at in (1, 3))
    with closing(log):
        assert request_stop(bench.home, log, STUDY)
    assert log.intrusions == 2
    assert statuses(bench) == ["stopped", "stopped"]


def test_a_controller_that_works_is_left_to_end_them(bench: Bench) -> None:
    home: Home = bench.home
    with closing(EventLog(home.database)) as log, hold_lease(home, log, STUDY, quiet):
        assert not request_stop(home, log, STUDY)
        assert fold(log.read(STUDY)).status == "stopped"
    assert statuses(bench) == ["None", "None"]
    assert request_stop(home, bench.log, STUDY)
    assert statuses(bench) == ["stopped", "stopped"]


def test_containers_end_with_their_attempts_or_nothing_is_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    containers = FakeContainers(gone=True)
    isolation = Isolation(Sandboxing(kind="docker", image="sha256:" + "0" * 64), containers)
    monkeypatch.setattr("research.controller.interventions.supervise", lambda settings, environ, home: isolation)
    with pytest.raises(SandboxError, match="Docker Engine"):
        request_stop(bench.home, bench.log, STUDY)
    assert statuses(bench) == ["None", "None"]  # their containers may still run
    processes = [handle.poll() for handle in ProcessSandbox(bench.home.sandboxes).list()]
    assert all(processes)  # what can be ended is
    containers.gone = False
    assert request_stop(bench.home, bench.log, STUDY)
    assert len(containers.reaped) == 2
    assert statuses(bench) == ["stopped", "stopped"]


def test_runs_of_another_installation_are_left_to_its_own_controller(bench: Bench, tmp_path: Path) -> None:
    other = Home(tmp_path / "other", bench.home.database).prepare()
    told: list[str] = []
    with closing(EventLog(other.database)) as log:
        assert not request_stop(other, log, STUDY, note=told.append)
        assert fold(log.read(STUDY)).status == "stopped"
        assert statuses(bench) == ["None", "None"]  # nobody here can know how they end
        assert len(told) == 1
        assert f"not in {other.path}" in told[0]
        assert request_stop(bench.home, log, STUDY, note=quiet)
    assert statuses(bench) == ["stopped", "stopped"]
