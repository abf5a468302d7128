"""What is charged to a study's budget: the time that its controllers worked, by their stopwatch, and no other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from research.controller.controller import BEAT_S, StudyController
from research.controller.interventions import request_continue, request_pause
from research.planners.context import Check, PlannerContext, PlannerTurn
from research.scheduler.next_step import is_done
from studies import Event, EventLog, EventType, StoreError, StudyState
from tests.research.bench import STUDY, Bench
from tests.research.designs import design
from tests.research.fakes import ScriptedPlanner

BUDGET_S = 3600.0


class Awake:
    """A controller beside its clocks: the world's goes on while the machine sleeps, the stopwatch's does not."""

    def __init__(self, path: Path) -> None:
        self.bench = Bench(path, lambda order: "never", design=design(16, 32), budget_s=BUDGET_S)
        self.seconds = 0.0

    def loop(self) -> StudyController:
        return self.bench.loop(seconds=lambda: self.seconds)

    def work(self, loop: StudyController, seconds: float, looks: int = 1) -> StudyState:
        for _ in range(looks):
            self.seconds += seconds / looks
            self.bench.clock.advance(seconds / looks)
            state = loop.tick()
        return state

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.bench.clock.advance(seconds)


@pytest.fixture
def awake(fast_path: Path) -> Awake:
    return Awake(fast_path)


@pytest.fixture
def paused(awake: Awake) -> StudyController:
    """A controller that worked for 10 s on a study that is paused since."""
    loop = awake.loop()
    awake.work(loop, 10.0)
    awake.bench.append(EventType.STUDY_PAUSED, reason="x")
    return loop


class SlowPlanner(ScriptedPlanner):
    def __init__(self, awake: Awake, *written: EventType) -> None:
        super().__init__()
        self._awake = awake
        self._written = written

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        if not self.asked:
            self._awake.wait(300.0)
            for type in self._written:
                told = {"command": []} if type is EventType.STUDY_RESUMED else {"reason": "x"}
                self._awake.bench.append(type, **told)
        return super().act(digest, check)


@pytest.mark.parametrize(
    "written",
    [(EventType.STUDY_STOPPED,), (EventType.STUDY_PAUSED,), (EventType.STUDY_PAUSED, EventType.STUDY_RESUMED)],
    ids=["stop", "pause", "pause and resume"],
)
def test_a_long_step_during_a_stop_or_a_pause_is_charged(awake: Awake, written: tuple[EventType, ...]) -> None:
    awake.bench.design, awake.bench.planner = None, SlowPlanner(awake, *written)
    loop = awake.loop()
    assert loop.tick().worked_s == 300.0
    awake.wait(7200.0)
    if EventType.STUDY_RESUMED not in written:
        assert loop.tick().worked_s == 300.0  # it stands still since


class FlakyLog(EventLog):
    """A log whose database goes away when told: before a reading, or after an append and before it says so."""

    fails_at = ""

    def _fail(self, at: str) -> None:
        if self.fails_at == at:
            self.fails_at = ""
            raise StoreError("the server closed the connection")

    def read(self, study: str, after: Event | None = None) -> list[Event]:
        self._fail("read")
        return super().read(study, after)

    def append(self, event: Event) -> None:
        super().append(event)
        self._fail("append")


@pytest.mark.parametrize(("fails_at", "away_s"), [("read", BEAT_S / 2), ("append", 2 * BEAT_S)])
def test_work_is_charged_once_though_a_database_is_away_or_wrote_without_saying_so(
    awake: Awake, fails_at: str, away_s: float
) -> None:
    awake.bench.append(EventType.STUDY_RESUMED, command=[], worked_s=0.0)
    with closing(FlakyLog(awake.bench.home.database, clock=awake.bench.clock)) as log:
        loop = awake.bench.loop(log=log, seconds=lambda: awake.seconds)
        awake.work(loop, 10.0)
        log.fails_at = fails_at
        with pytest.raises(StoreError):
            awake.work(loop, away_s)
        state = awake.work(loop, 2 * BEAT_S)
        assert loop.budget_left(state) == BUDGET_S - 10.0 - away_s - 2 * BEAT_S


def test_while_a_study_is_paused_what_runs_finishes_and_nothing_begins(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16))
    loop = bench.loop()
    loop.tick()
    assert request_pause(bench.log, STUDY, "lunch")
    assert not request_pause(bench.log, STUDY)
    for _ in range(10):
        bench.clock.advance(5)
        state = loop.tick()
    assert (is_done(state), state.status, state.paused_reason) == (False, "paused", "lunch")
    assert [run.status for run in state.runs.values() if run.attempts] == ["collected", "collected"]
    assert state.verdicts == ()
    assert request_continue(bench.log, STUDY)
    assert not request_continue(bench.log, STUDY)
    state = bench.drive(loop)
    assert (state.status, state.resumed_count) == ("concluded", 0)  # one controller saw it through


def test_a_pause_costs_time_only_while_something_runs(awake: Awake, paused: StudyController) -> None:
    assert awake.work(paused, 120.0, looks=4).worked_s == 130.0  # its attempts still run
    for handle in awake.bench.sandbox.handles.values():
        handle.stop()
    awake.work(paused, 30.0)
    before = paused.budget_left(paused.state())
    awake.work(paused, 7200.0, looks=10)
    assert paused.budget_left(paused.state()) == before
    awake.bench.append(EventType.STUDY_RESUMED, command=[])
    assert paused.budget_left(paused.tick()) == before


def test_a_pause_does_not_outlast_the_budget_of_what_runs(awake: Awake, paused: StudyController) -> None:
    state = awake.work(paused, BUDGET_S, looks=10)
    assert (state.status, [run for run in state.runs.values() if run.active]) == ("stopped", [])
