"""Slots as a study takes them: what others hold, and what crashes left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from research.installation.home import Home
from research.installation.machine import UNDER_WAY_S, MachineSlots
from sandboxes import ProcessSandbox, SandboxSpec
from studies import EventLog, EventType
from studies.log.locks import Holder, SlotRequest, Slots
from tests.golden import assert_golden
from tests.research.bench import STUDY, Bench
from tests.research.fakes import FakeOther

LEFT = "left-study"


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """A study of six runs, two at once, priced at 10 s each, with no more than these allowed where a test says so."""
    return Bench(tmp_path, max_runs=getattr(request, "param", None))


@pytest.fixture
def left(bench: Bench) -> list[FakeOther]:
    """Two attempts of another study, which hold both slots of the machine until they end."""
    held = [bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=n)) for n in (5, 9)]
    slots = Slots(bench.log, Holder.here(bench.home.path).host)
    for other in held:
        assert slots.take(SlotRequest(LEFT, other.name, str(bench.home.path), 2)).slot is not None
    return held


@pytest.mark.parametrize("bench", [None, 6], indirect=True)
def test_a_study_that_is_kept_waiting_is_neither_stopped_nor_charged(bench: Bench, left: list[FakeOther]) -> None:
    loop = bench.loop()
    loop.tick()
    before = loop.state().worked_s
    for _ in range(30):
        bench.clock.advance(60)  # three times its whole budget
        assert not loop.tick().done
    left[0].ended = bench.clock.now
    assert len(loop.tick().launched) == 1
    left[1].ended = bench.clock.now
    assert len(loop.tick().launched) == 1
    assert loop.state().worked_s - before < 61
    assert bench.drive(loop).state.status == "concluded"


@pytest.mark.usefixtures("left")
def test_a_study_whose_rest_of_budget_buys_no_run_does_not_wait_for_a_place(bench: Bench) -> None:
    loop = bench.loop()
    loop.tick()
    for seconds, stands_still in ((11.0, False), (9.0, True)):
        bench.append(EventType.DESIGN_AMENDED, amendment={"kind": "budget", "value": seconds, "reason": "x"})
        result = loop.tick()
        assert result.done == stands_still
        assert ("budget" in str(result.state.stopped_reason)) == stands_still
        assert not any(run.attempts for run in result.state.runs.values())


@pytest.mark.usefixtures("left")
def test_it_is_said_once_who_is_waited_for_and_what_can_be_done(bench: Bench) -> None:
    loop = bench.loop()
    for _ in range(3):
        loop.tick()
    (line,) = [line for line in bench.notes if LEFT in line]
    assert_golden(line)


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeControllers:
    def __init__(self, *driven: str) -> None:
        self.driven = set(driven)
        self.suspended: set[str] = set()

    def is_gone(self, study: str) -> bool:
        return study not in self.driven

    def is_silent(self, study: str) -> bool:
        return self.is_gone(study) or study in self.suspended


class Room:
    """An installation with the slots of its studies; its process sandbox starts processes when asked."""

    def __init__(self, path: Path, database: str = "sqlite://") -> None:
        self.home = Home(path, database)
        self.log = EventLog(self.home.database)
        self.sandbox = ProcessSandbox(self.home.sandboxes)
        self.controllers = FakeControllers()
        self.clock = Seconds()

    def slots(self, study: str) -> MachineSlots:
        return MachineSlots(self.log, self.home, study, self.sandbox, self.controllers, self.clock)

    def run(self, study: str, name: str, run_id: str | None = "r1") -> None:
        labels = {} if run_id is None else {"study": study, "run_id": run_id, "attempt": "1"}
        command = (sys.executable, "-c", "import time; time.sleep(600)")
        self.sandbox.run(SandboxSpec(name, command, self.home.path, labels=labels, trusted=True))

    def end(self, name: str) -> None:
        handle = self.sandbox.adopt(name)
        assert handle is not None
        handle.stop(grace_s=1.0)

    def close(self) -> None:
        for handle in self.sandbox.list():
            handle.stop(grace_s=1.0)
        self.log.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with closing(Room(tmp_path)) as room:
        yield room


def test_a_study_that_was_brought_to_another_machine_leaves_nothing_on_the_first(room: Room) -> None:
    Slots(room.log, "another machine").take(SlotRequest(STUDY, "a1", "/there", 1))
    slots = room.slots(STUDY)
    slots.poll(["a1"])
    assert Slots(room.log, "another machine").rows() == []
    assert slots.take("a1", 1)


@pytest.mark.slow
def test_real_attempts_keep_slots_until_they_end_also_for_other_installations(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'ajet.db'}"
    with closing(Room(tmp_path / "1", database)) as room, closing(Room(tmp_path / "2", database)) as other:
        room.home.prepare()
        assert room.slots(LEFT).take("left", 1)
        room.run(LEFT, "left")
        here, there = room.slots(STUDY), other.slots("there")
        for each, slots in ((room, here), (other, there)):
            each.clock.now += 10 * UNDER_WAY_S
            assert not slots.take("mine", 2), "its study has no controller, but it runs"
            assert slots.waits
        room.end("left")
        assert there.take("mine", 2)
        assert not there.waits


@pytest.mark.slow
def test_a_real_attempt_of_another_study_is_a_neighbour_by_its_label_until_it_ends(room: Room) -> None:
    before = datetime.now(UTC)
    room.run(LEFT, "left")
    room.run(STUDY, "own")
    room.run(LEFT, "no-training", None)
    slots = room.slots(STUDY)
    later = datetime.now(UTC) + timedelta(hours=1)
    ((began, ended),) = slots.spans(later)
    assert before <= began <= datetime.now(UTC)
    assert ended == later
    room.end("left")
    ((began, ended),) = slots.spans(later)
    assert before <= began <= ended <= datetime.now(UTC)
