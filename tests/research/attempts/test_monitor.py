"""The watchdog beside a training: it suspects by what it hears, and stops only by what the log shows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from research.runs.files import LEAST_SILENCE_S, AttemptFolder, AttemptSpec
from research.runs.wandb_log import TrackedRun, TrackingUnreadable
from research.runs.watchdog import READ_AGAIN_S, TrainingMonitor
from studies.checks.alarms import DEFAULT_WATCHDOG
from studies.records.procedure import Watchdog
from studies.records.runs import AttemptFailed
from swarm.wire import ServerState, Status
from tests.research.factories import make_order

BLOWN = {"actor/ppo_kl": 5.0, "critic/rewards/mean": 0.1}
CALM = {"actor/ppo_kl": 0.01, "critic/rewards/mean": 0.1}


class Log:
    """A tracker's log that is what a test says, and counts how often it is read."""

    def __init__(self, *rows: dict[str, float]) -> None:
        self.history = {step: dict(row) for step, row in enumerate(rows, 1)}
        self.reads = 0

    def __call__(self, directory: Path, run_id: str) -> TrackedRun:
        self.reads += 1
        if not self.history:
            raise TrackingUnreadable("it is being written")
        return TrackedRun("ajet", "s1", run_id, {}, self.history)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(log: Log, clock: Clock, limits: Watchdog | None = DEFAULT_WATCHDOG) -> TrainingMonitor:
    order: AttemptSpec = make_order().model_copy(update={"watchdog": limits})
    return TrainingMonitor(AttemptFolder(Path("nowhere")), order, log, clock)


def heard(watching: TrainingMonitor, *rows: dict[str, float], first: int = 1) -> None:
    async def hear() -> None:
        for step, metrics in enumerate(rows, first):
            await watching.hear(Status(state=ServerState.ROLLING, step=step, metrics=metrics))

    asyncio.run(hear())


def test_a_healthy_training_is_never_looked_up() -> None:
    log = Log(*[CALM] * 5)
    watching = watch(log, Clock())
    heard(watching, *[CALM] * 5)
    assert watching.alarm is None
    assert log.reads == 0


def test_a_limit_that_log_and_server_show_broken_stops_the_training() -> None:
    watching = watch(Log(CALM, BLOWN, BLOWN, BLOWN), Clock())
    heard(watching, CALM, BLOWN, BLOWN, BLOWN)
    assert watching.alarm is not None
    assert (watching.alarm.code, watching.alarm.step) == ("kl_blow_up", 4)
    asyncio.run(asyncio.wait_for(watching.stops(), 60.0))


@pytest.mark.parametrize("log", [Log(CALM, BLOWN, CALM, BLOWN), Log()])
def test_what_the_log_does_not_show_stops_nothing_and_is_looked_up_again_after_a_while(log: Log) -> None:
    clock = Clock()
    watching = watch(log, clock)
    heard(watching, BLOWN, BLOWN, BLOWN, BLOWN)
    assert watching.alarm is None
    assert log.reads == 1
    log.history = dict.fromkeys(range(1, 6), BLOWN)
    clock.now = READ_AGAIN_S
    heard(watching, BLOWN, first=5)
    assert watching.alarm is not None
    assert log.reads == 2


def test_a_status_without_a_new_step_judges_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    monkeypatch.setattr("research.runs.watchdog.alarms", lambda rows, _: judged.append(len(rows)) or ())
    watching = watch(Log(), Clock())
    for _ in range(3):
        heard(watching, CALM, CALM)
    assert judged == [1, 2]


def test_the_steps_of_an_earlier_attempt_are_judged_before_anything_is_trained() -> None:
    watching = watch(Log(CALM, *[BLOWN] * 3), Clock())
    asyncio.run(watching.recall(5))
    assert watching.alarm is not None
    assert watching.alarm.effect == "abort"
    healthy = watch(Log(*[CALM] * 4), Clock())
    asyncio.run(healthy.recall(5))
    assert healthy.alarm is None


def test_a_log_that_lacks_earlier_steps_is_waited_for_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = Clock(), Log(CALM)

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("research.runs.watchdog.asyncio.sleep", sleep)
    with pytest.raises(AttemptFailed, match=r"expected 4 steps .*found 1"):
        asyncio.run(watch(log, clock).recall(5))
    assert log.reads > 100


def test_without_locked_limits_nothing_is_stopped() -> None:
    log = Log(*[BLOWN] * 4)
    watching = watch(log, Clock(), None)
    heard(watching, *[BLOWN] * 4)
    assert watching.alarm is None
    assert log.reads == 0


@pytest.mark.parametrize("limits", [None, DEFAULT_WATCHDOG])
def test_a_silence_counts_from_the_last_answer(limits: Watchdog | None) -> None:
    clock = Clock()
    watching = watch(Log(), clock, limits)
    clock.now = LEAST_SILENCE_S + 100
    heard(watching, CALM)
    assert watching.silent() is None
    clock.now += LEAST_SILENCE_S + 1
    alarm = watching.silent()
    assert alarm is not None
    assert (alarm.code, alarm.effect) == ("server_silent", "exclude")


def test_an_evaluation_of_which_nothing_ends_is_timed_from_its_last_episode() -> None:
    clock = Clock()
    watching = watch(Log(), clock)

    def after(seconds: float, version: int, awaited: int) -> float:
        clock.now += seconds
        said = Status(state=ServerState.ROLLING, policy_version=version, awaited_evaluations=awaited)
        return watching.unevaluated_s(said)

    assert [after(5, 0, 0), after(5, 1, 8), after(5, 1, 8), after(2, 1, 8)] == [0, 0, 5, 7]
    assert [after(1, 1, 7), after(4, 1, 7), after(1, 1, 0), after(9, 1, 0), after(1, 2, 8)] == [0, 4, 0, 0, 0]
