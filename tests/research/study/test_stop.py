"""Stopping a study from outside its controller."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from research.controller.interventions import request_stop
from research.controller.session import controlling
from research.installation.home import Home
from research.isolation.mode import Isolation, Sandboxing
from sandboxes import ProcessSandbox, SandboxError, SandboxSpec
from studies import AttemptState, EventLog, fold
from tests.research.bench import STUDY, Bench
from tests.research.fakes import FakeContainers
from tests.research.test_intruder import KINDS, IntrudingLog


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


def attempts(bench: Bench) -> list[AttemptState]:
    with closing(EventLog(bench.home.database)) as log:
        return [attempt for run in fold(log.read(STUDY)).runs.values() for attempt in run.attempts]


def statuses(bench: Bench) -> list[str]:
    return [str(attempt.status) for attempt in attempts(bench)]


def test_without_a_controller_the_attempts_are_ended_at_once(bench: Bench) -> None:
    assert request_stop(bench.home, bench.log, STUDY)
    assert request_stop(bench.home, bench.log, STUDY), "a second stop changes nothing"
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
    with closing(EventLog(home.database)) as log, controlling(home, log, STUDY, quiet):
        assert not request_stop(home, log, STUDY)
        assert fold(log.read(STUDY)).status == "stopped"
    assert statuses(bench) == ["None", "None"]
    with closing(EventLog(home.database)) as log:
        assert request_stop(home, log, STUDY)
    assert statuses(bench) == ["stopped", "stopped"]


def test_the_controller_of_another_study_does_not_keep_a_study_from_being_stopped(bench: Bench) -> None:
    with closing(EventLog(bench.home.database)) as log, controlling(bench.home, log, "another-study", quiet):
        assert request_stop(bench.home, log, STUDY)
    assert statuses(bench) == ["stopped", "stopped"]


def test_containers_are_ended_with_their_attempts_or_nothing_is_said_to_be_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = FakeContainers(gone=True)
    isolation = Isolation(Sandboxing(kind="docker", image="sha256:" + "0" * 64), containers)
    monkeypatch.setattr("research.controller.interventions.supervise", lambda settings, environ, home: isolation)
    with pytest.raises(SandboxError, match="Docker Engine"):
        request_stop(bench.home, bench.log, STUDY)
    assert statuses(bench) == ["None", "None"], "their containers may still run"
    processes = [handle.poll() for handle in ProcessSandbox(bench.home.sandboxes).list()]
    assert all(processes), "what can be ended is"
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
        assert statuses(bench) == ["None", "None"], "nobody here can know how they end"
        assert len(told) == 1
        assert f"not in {other.path}" in told[0]
        assert request_stop(bench.home, log, STUDY, note=quiet)
    assert statuses(bench) == ["stopped", "stopped"]
