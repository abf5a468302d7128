"""Two real controllers on one home, killed anywhere: never more runs than the machine carries, and no slot is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from research.installation import slots
from research.installation.home import Home
from sandboxes import ProcessSandbox
from studies import EventLog, StudyState, fold
from studies.log.event import row_of
from studies.log.leases import Holder
from studies.log.slots import SlotRow, Slots
from studies.proof import verify
from tests.end_to_end.controller import EPISODES, make_loop
from tests.research.fakes import create_study

STUDIES = ("s1", "s2")
DEADLINE_S = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    yield home
    for handle in ProcessSandbox(home.sandboxes).list():
        handle.stop(grace_s=1.0)


def create(home: Home, parallel: int) -> None:
    with closing(EventLog(home.database)) as log:
        for study in STUDIES:
            create_study(log, study, budget_s=3600.0, episodes=EPISODES, parallel=parallel)


@contextmanager
def controller(home: Home, study: str, at: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process that drives a study until it is killed."""
    arguments = [str(home.path), study, *([at] if at else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.end_to_end.controller", *arguments], cwd=Path(__file__).parents[2]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def state_of(home: Home, study: str) -> StudyState:
    with closing(EventLog(home.database)) as log:
        return fold(log.read(study))


def rows_of(home: Home) -> list[SlotRow]:
    with closing(EventLog(home.database)) as log:
        return Slots(log, Holder.here(home.path).host).rows()


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline, f"it did not come to pass within {DEADLINE_S:g} s"
        time.sleep(0.05)


def most_at_once(spans: Sequence[tuple[float, float | None]]) -> int:
    """Return how many of the attempts ran at the moment when most did."""
    ends = [(began, end or time.time()) for began, end in spans]
    return max(sum(began <= moment < end for began, end in ends) for moment, _ in ends)


def test_two_controllers_that_are_killed_again_and_again_share_the_machine_to_the_end(home: Home) -> None:
    create(home, parallel=2)
    source = random.Random(20)
    with ExitStack() as stack:
        processes = {study: stack.enter_context(controller(home, study)) for study in STUDIES}
        for number, study in enumerate(STUDIES * 2):
            until(lambda many=2 * number: len(ProcessSandbox(home.sandboxes).list()) > many)  # type: ignore[misc]
            time.sleep(source.random() / 5)  # anywhere
            processes[study].kill()
            processes[study].wait()
            processes[study] = stack.enter_context(controller(home, study))
        until(lambda: all(process.poll() is not None for process in processes.values()))
    for study in STUDIES:
        state = state_of(home, study)
        assert state.status == "concluded"
        assert all(run.status == "collected" and len(run.attempts) == 1 for run in state.runs.values())
        with closing(EventLog(home.database)) as log:
            proof = verify(study, [row_of(event) for event in log.read(study)], home.study(study))
        assert proof.drifts == ()
    handles = ProcessSandbox(home.sandboxes).list()
    assert len(handles) == 12
    assert most_at_once([handle.ran() for handle in handles]) == 2
    assert rows_of(home) == []


@pytest.mark.parametrize("at", ["slot", "launched"])
def test_a_controller_killed_between_its_slot_and_its_start_keeps_the_machine_from_nobody(
    home: Home, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "UNDER_WAY_S", 2.0)
    create(home, parallel=1)
    with controller(home, "s1", at) as process:
        until(lambda: process.poll() is not None)
    (row,) = rows_of(home)
    assert (row.study, row.slot is not None) == ("s1", True)
    assert sum(len(run.attempts) for run in state_of(home, "s1").runs.values()) == (at == "launched")
    assert ProcessSandbox(home.sandboxes).list() == []
    with closing(EventLog(home.database)) as log:
        loop = make_loop(home, log, study="s2")
        began = time.monotonic()
        until(lambda: bool(loop.tick().launched))
        assert time.monotonic() - began >= 2.0, "a launch might have been under way"
        with controller(home, "s1"):  # it finds the machine taken, and waits
            until(lambda: any(row.study == "s1" and row.slot is None for row in rows_of(home)))
            until(lambda: any(row.study == "s1" and row.slot is not None for row in rows_of(home)) or not loop.tick())
            until(lambda: any("s1" in handle.name for handle in ProcessSandbox(home.sandboxes).list()))
    assert most_at_once([handle.ran() for handle in ProcessSandbox(home.sandboxes).list()]) == 1
