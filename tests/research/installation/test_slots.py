"""Slots: as a study takes them, and under all that studies, crashes and time do to them: a state machine.

Three studies with runs of different sizes, on cores or on two GPUs, each with a controller that may be killed or
suspended between any two of its acts, while a shim that it has begun still starts its attempt, and others act between
its look and its write. At no moment more runs than the machine carries; whoever wants a slot gets one; and nothing that
crashed keeps one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from research.installation.home import Home
from research.installation.machine import UNDER_WAY_S, Capacity, Device, MachineSlots
from research.scheduler.next_step import is_done
from sandboxes import Exit, ProcessSandbox, SandboxSpec
from studies import EventLog
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
        assert not is_done(loop.tick())
    for running, other in enumerate(left, 1):
        other.ended = bench.clock.now
        state = loop.tick()
        assert sum(run.active is not None for run in state.every_run.values()) == running
    assert loop.state().worked_s - before < 61
    assert bench.drive(loop).status == "concluded"


@pytest.mark.usefixtures("left")
def test_it_is_said_once_who_is_waited_for_and_what_can_be_done(bench: Bench) -> None:
    loop = bench.loop()
    for _ in range(3):
        loop.tick()
    (line,) = [line for line in bench.notes if LEFT in line]
    assert_golden(line)


class Seconds:
    now = 0.0

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

    def run(self, study: str, name: str) -> None:
        labels = {"study": study, "run_id": "r1", "attempt": "1"}
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
            assert not slots.take("mine", 2)  # its study has no controller, but it runs
            assert slots.waits
        room.end("left")
        assert there.take("mine", 2)
        assert not there.waits


GPUS = (Device("0", "a GPU", 80 << 30), Device("1", "a GPU", 80 << 30))
ON_GPUS = [Capacity(1, devices=GPUS, **of) for of in ({}, {"share": 2}, {"share": 3}, {"each": 2})]
STUDIES = 3
WHICH = st.integers(0, STUDIES - 1)


@dataclass
class Process:
    """An attempt of a study that makes so many at once; it runs until it is ended."""

    name: str
    study: str
    part: Fraction
    """Of the cores, or of the GPUs, in devices."""
    on_gpu: bool
    ended: bool = False

    @property
    def labels(self) -> Mapping[str, str]:
        return {"study": self.study}

    def poll(self) -> Exit | None:
        return Exit("finished", 0) if self.ended else None

    def run_times(self) -> tuple[float, float | None]:
        return 0.0, 1.0 if self.ended else None


@dataclass
class World:
    """The machine: stands in the place of a sandbox, and starts a name once."""

    started: dict[str, Process] = field(default_factory=dict)
    clock: Seconds = field(default_factory=Seconds)
    under_way: list[tuple[Process, float]] = field(default_factory=list)
    """Launches that outlived their controllers, and when each has started at the latest."""

    def adopt(self, name: str) -> Process | None:
        return self.started.get(name)

    def list(self) -> list[Process]:
        return list(self.started.values())

    def start(self, process: Process) -> None:
        self.started.setdefault(process.name, process)

    def running(self) -> list[Process]:
        return [process for process in self.started.values() if not process.ended]

    def pass_time(self, seconds: float) -> None:
        due = [launch for launch in self.under_way if launch[1] <= self.clock.now + seconds]
        self.clock.now += seconds
        for process, _ in due:
            self.start(process)
        self.under_way = [launch for launch in self.under_way if launch not in due]

    def end_all(self) -> None:
        self.pass_time(UNDER_WAY_S)
        for process in self.running():
            process.ended = True


@dataclass
class Study:
    name: str
    parallel: int
    capacity: Capacity | None
    active: list[str] = field(default_factory=list)
    launched: int = 0
    wants: bool = True


@dataclass
class Driver:
    """One controller: `acts` takes its steps as the shipped one does, and yields wherever it may be killed."""

    study: Study
    world: World
    slots: MachineSlots
    launching: Process | None = None

    def __post_init__(self) -> None:
        self.acts = self._for_ever()

    def _for_ever(self) -> Iterator[None]:
        while True:
            yield from self.tick()
            yield

    def tick(self) -> Iterator[None]:
        study, slots = self.study, self.slots
        slots.poll(study.active)
        yield
        for name in list(study.active):
            process = self.world.adopt(name)
            if process is None:
                if slots.take(name, study.parallel, study.capacity):
                    yield
                    yield from self._start(name)
            elif process.ended:
                yield
                study.active.remove(name)
                yield
                slots.give_back(name)
        while study.wants and len(study.active) < study.parallel:
            name = f"{study.name}-{study.launched}"
            if not slots.take(name, study.parallel, study.capacity):
                break
            yield
            study.active.append(name)
            study.launched += 1
            yield
            yield from self._start(name)
        slots.yield_slot()

    def _start(self, name: str) -> Iterator[None]:
        on = self.study.capacity
        part = Fraction(1, self.study.parallel) if on is None else Fraction(on.each, on.share)
        self.launching = Process(name, self.study.name, part, on is not None)
        yield
        self.world.start(self.launching)
        self.launching = None
        yield


class BusyLog(EventLog):
    """An event log; right before its next write, others act."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.before: list[Callable[[], None]] = []

    @contextmanager
    def transaction(self, action: str) -> Iterator[sa.Connection]:
        if action == "write":
            while self.before:
                self.before.pop()()
        with super().transaction(action) as connection:
            yield connection


class SlotMachine(RuleBasedStateMachine):
    @initialize(
        parallel=st.lists(st.integers(1, 3), min_size=STUDIES, max_size=STUDIES),
        on=st.lists(st.sampled_from([None, None, *ON_GPUS]), min_size=STUDIES, max_size=STUDIES),
    )
    def begin(self, parallel: list[int], on: list[Capacity | None]) -> None:
        self.home = Home(Path(tempfile.gettempdir()) / "no-such-home", "")
        self.log = BusyLog("sqlite://")
        self.world, self.controllers = World(), FakeControllers()
        self.table = Slots(self.log, Holder.here(self.home.path).host)
        self.studies = [Study(f"s{n}", *of) for n, of in enumerate(zip(parallel, on, strict=True))]
        self.drivers: list[Driver | None] = [None] * STUDIES
        for number in range(STUDIES):
            self._take_up(number)

    def _slots(self, study: str) -> MachineSlots:
        return MachineSlots(self.log, self.home, study, self.world, self.controllers, self.world.clock)  # type: ignore[arg-type]

    def _take_up(self, which: int) -> None:
        study = self.studies[which]
        if self.drivers[which] is None:
            self.controllers.driven.add(study.name)  # its lease first
            self.drivers[which] = Driver(study, self.world, self._slots(study.name))

    def _step(self, which: int, acts: int = 1) -> None:
        driver = self.drivers[which]
        if driver is not None and driver.study.name not in self.controllers.suspended:
            for _ in range(acts):
                next(driver.acts)

    def _kill(self, which: int, delay_s: float) -> None:
        driver, self.drivers[which] = self.drivers[which], None
        self.controllers.driven.discard(self.studies[which].name)
        self.controllers.suspended.discard(self.studies[which].name)
        if driver is not None and driver.launching is not None and delay_s > 0:
            self.world.under_way.append((driver.launching, self.world.clock.now + delay_s))

    @rule(which=WHICH, acts=st.integers(1, 6))
    def a_controller_acts(self, which: int, acts: int) -> None:
        self._step(which, acts)

    @rule()
    def all_controllers_tick(self) -> None:
        for which in range(STUDIES):
            self._step(which, 12)

    @rule(which=WHICH, delay_s=st.sampled_from([0.0, 1.0, UNDER_WAY_S - 1]))
    def a_controller_is_killed(self, which: int, delay_s: float) -> None:
        self._kill(which, delay_s)

    @rule(which=WHICH, delay_s=st.sampled_from([0.0, UNDER_WAY_S - 1]), later_s=st.sampled_from([0.0, UNDER_WAY_S]))
    def a_controller_is_killed_at_a_launch(self, which: int, delay_s: float, later_s: float) -> None:
        for _ in range(12):
            driver = self.drivers[which]
            if driver is not None and driver.launching is None:
                self._step(which)
        self._kill(which, delay_s)
        for other in range(STUDIES):
            self._step(other, 6)
        self.world.pass_time(later_s)

    @rule(which=WHICH)
    def a_study_is_taken_up(self, which: int) -> None:
        self._take_up(which)

    @rule(which=WHICH, goes_on=st.booleans())
    def a_controller_is_suspended_or_goes_on(self, which: int, goes_on: bool) -> None:
        if goes_on:
            self.controllers.suspended.discard(self.studies[which].name)
        elif self.drivers[which] is not None:
            self.controllers.suspended.add(self.studies[which].name)

    @rule(which=st.integers(0, 20))
    def a_run_ends(self, which: int) -> None:
        if running := self.world.running():
            running[which % len(running)].ended = True

    @rule(which=WHICH)
    def a_study_wants_no_more_for_now(self, which: int) -> None:
        self.studies[which].wants = not self.studies[which].wants

    @rule(seconds=st.sampled_from([1.0, UNDER_WAY_S / 2, UNDER_WAY_S]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(which=WHICH, other=WHICH, kills=st.booleans(), acts=st.integers(1, 8))
    def others_act_between_a_look_and_a_write(self, which: int, other: int, kills: bool, acts: int) -> None:
        if other == which:
            return

        def act() -> None:
            if kills:
                self._kill(other, 1.0)
            self._take_up(other)
            self._step(other, acts)

        self.log.before = [act]
        self._step(which, 6)
        self.log.before = []

    @invariant()
    def the_machine_carries_what_runs(self) -> None:
        if hasattr(self, "world"):
            running = self.world.running()
            for on_gpu, room in ((False, 1), (True, len(GPUS))):
                parts = (process.part for process in running if process.on_gpu is on_gpu)
                assert sum(parts, Fraction(0)) <= room, running

    @invariant()
    def no_two_slots_overlap(self) -> None:
        if hasattr(self, "table"):
            held = [row.slot for row in self.table.rows() if row.slot is not None]
            assert not any(one.overlaps(other) for one, other in combinations(held, 2)), held

    def teardown(self) -> None:
        if not hasattr(self, "table"):
            return
        try:
            self._whoever_wants_a_slot_gets_one()
            self._nothing_that_crashed_keeps_one()
        finally:
            self.log.close()

    def _whoever_wants_a_slot_gets_one(self) -> None:
        for which, study in enumerate(self.studies):
            self.controllers.suspended.discard(study.name)
            self._take_up(which)
            study.wants = True
        before = [study.launched for study in self.studies]
        for _ in range(4 * STUDIES):
            for which in range(STUDIES):
                self._step(which, 12)
                self.the_machine_carries_what_runs()
            self.world.end_all()
        assert all(study.launched > count for study, count in zip(self.studies, before, strict=True)), self.studies

    def _nothing_that_crashed_keeps_one(self) -> None:
        for which in range(STUDIES):
            self._kill(which, 1.0)
        self.world.end_all()
        slots = self._slots("new")
        for name, on in (("new-0", None), ("new-1", ON_GPUS[-1])):
            if not slots.take(name, 1, on):
                self.world.pass_time(UNDER_WAY_S)
                self.world.end_all()
                assert slots.take(name, 1, on), self.table.rows()


SlotMachine.TestCase.settings = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))
TestSlotMachine = pytest.mark.slow(SlotMachine.TestCase)
