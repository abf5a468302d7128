"""Slots as a study takes them: what others hold, what crashes left behind, and attempts of versions without slots."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from research.installation.home import Home
from research.installation.machine import UNDER_WAY_S, MachineSlots
from sandboxes import ProcessSandbox, SandboxSpec
from studies import EventLog, EventType
from studies.log.locks import Holder, SlotRequest, Slots
from tests.golden import assert_golden
from tests.research.bench import STUDY, Bench

LEFT = "left-study"


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """A study of six runs, two at once, priced at 10 s each, with no more than these allowed where a test says so."""
    return Bench(tmp_path, max_runs=getattr(request, "param", None))


@pytest.mark.parametrize("bench", [None, 6], indirect=True)
def test_what_a_version_without_slots_left_running_takes_places_until_it_ends(bench: Bench) -> None:
    first, second = (bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=n)) for n in (5, 9))
    bench.sandbox.polls = 5
    loop = bench.loop()
    assert loop.tick().launched == ()
    first.ended = bench.clock.now
    assert len(loop.tick().launched) == 1
    assert loop.tick().launched == ()
    second.ended = bench.clock.now
    assert len(loop.tick().launched) == 1
    state = bench.drive(loop).state
    assert state.status == "concluded"
    assert [verdict.verdict for verdict in state.verdicts] == ["supported"]


def test_what_had_ended_before_takes_no_place(bench: Bench) -> None:
    bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=9), bench.clock.now)
    assert len(bench.loop().tick().launched) == 2
    assert bench.notes == []


@pytest.mark.parametrize("bench", [None, 6], indirect=True)
def test_a_study_that_is_kept_waiting_is_neither_stopped_nor_charged(bench: Bench) -> None:
    left = [bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=n)) for n in (5, 9)]
    loop = bench.loop()
    loop.tick()
    before = loop.state().worked_s
    for _ in range(30):
        bench.clock.advance(60)  # three times its whole budget
        assert not loop.tick().done
    for other in left:
        other.ended = bench.clock.now
    assert len(loop.tick().launched) == 2
    assert loop.state().worked_s - before < 61
    assert bench.drive(loop).state.status == "concluded"


def test_a_study_whose_rest_of_budget_buys_no_run_does_not_wait_for_a_place(bench: Bench) -> None:
    bench.sandbox.occupy(LEFT, bench.clock.now)
    bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=1))
    loop = bench.loop()
    loop.tick()
    for seconds, stands_still in ((11.0, False), (9.0, True)):
        bench.append(EventType.DESIGN_AMENDED, amendment={"kind": "budget", "value": seconds, "reason": "x"})
        result = loop.tick()
        assert result.done == stands_still
        assert ("budget" in str(result.state.stopped_reason)) == stands_still
        assert not any(run.attempts for run in result.state.runs.values())


def test_it_is_said_once_who_is_waited_for_and_what_can_be_done(bench: Bench) -> None:
    for seconds in (5, 9):
        bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=seconds))
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


@pytest.fixture
def line(room: Room) -> tuple[MachineSlots, MachineSlots, MachineSlots]:
    """Three driven studies, of which the first has just given back the one slot that the others wait for in a line."""
    room.controllers.driven = {"first", "second", "third"}
    first, second, third = (room.slots(name) for name in ("first", "second", "third"))
    assert first.take("f1", 1)
    assert not second.take("s1", 1)
    assert not third.take("t1", 1)
    first.give_back("f1")
    return first, second, third


def test_who_came_first_is_served_first_as_long_as_it_wants_a_slot(line: tuple[MachineSlots, ...]) -> None:
    _, second, third = line
    assert second.waits
    assert not third.take("t1", 1), "the second came before"
    second.poll([])
    second.yield_slot()
    assert third.take("t1", 1)


def test_a_suspended_controller_keeps_its_place_in_line(room: Room, line: tuple[MachineSlots, ...]) -> None:
    first, second, third = line
    room.controllers.suspended = {"second"}
    assert third.take("t1", 1)
    room.controllers.suspended.clear()
    assert not first.take("f2", 1)
    third.give_back("t1")
    assert not first.take("f2", 1), "the second is back, and came before"
    assert second.take("s1", 1)


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
def test_a_real_attempt_without_a_slot_is_found_by_its_label_until_it_ends(room: Room) -> None:
    before = datetime.now(UTC)
    room.run(LEFT, "left")
    room.run(STUDY, "own")
    room.run(LEFT, "no-training", None)
    slots = room.slots(STUDY)
    assert not slots.take("mine", 1)
    assert slots.holders() == {LEFT: 1}
    later = datetime.now(UTC) + timedelta(hours=1)
    ((began, ended),) = slots.spans(later)
    assert before <= began <= datetime.now(UTC)
    assert ended == later
    room.end("left")
    assert slots.take("mine", 1)
    ((began, ended),) = slots.spans(later)
    assert before <= began <= ended <= datetime.now(UTC)


def test_an_attempt_whose_folder_was_pruned_has_ended(bench: Bench) -> None:
    bench.sandbox.occupy(LEFT, bench.clock.now)
    bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=1))
    loop = bench.loop()
    assert loop.tick().launched == ()
    bench.sandbox.others.clear()
    assert len(loop.tick().launched) == 2


def test_an_attempt_of_ones_own_from_a_version_without_slots_gets_one(bench: Bench) -> None:
    bench.sandbox.polls = 5
    bench.loop().tick()
    with EventLog(bench.home.database).transaction("write") as connection:
        connection.execute(sa.text("drop table slots"))
        connection.execute(sa.text("drop table machines"))
    loop = bench.loop()
    loop.tick()
    held = Slots(EventLog(bench.home.database), Holder.here(bench.home.path).host).rows()
    assert sorted(row.attempt for row in held if row.slot) == sorted(bench.sandbox.handles)
    assert bench.drive(loop).state.status == "concluded"
    assert set(bench.sandbox.starts.values()) == {1}
