"""A step's wall time is booked once, and the idle parts of learner and engine are shares of it."""

from __future__ import annotations

import pytest

from swarm.server.shared.gate import Gate
from swarm.server.training.timing import EngineWork, Stopwatch
from tests.swarm.server.support import Clock


def test_idle_parts_are_shares_of_the_whole_step() -> None:
    clock, work = Clock(), EngineWork(2.0, 5)
    watch = Stopwatch(lambda: work, clock)
    clock.now += 3.0
    work = EngineWork(5.0, 12)
    watch.lap("gen")
    clock.now += 1.0
    watch.lap("update_actor")
    assert watch.metrics() == {
        "timing_s/gen": 3.0,
        "timing_s/update_actor": 1.0,
        "timing_s/step": 4.0,
        "trainer/idle_ratio": 0.75,
        "rollouter/idle_ratio": 0.25,
        "tokens/generated": 7.0,
    }


def test_a_step_that_is_learned_again_counts_its_rollout_of_before() -> None:
    clock, work = Clock(), EngineWork(2.0, 5)
    spent = {
        "timing_s/gen": 3.0, "timing_s/settle": 1.0, "timing_s/update_actor": 7.0, "timing_s/step": 11.0,
        "rollouter/idle_ratio": 1 - 2.2 / 11, "tokens/generated": 40.0,
    }  # fmt: skip
    watch = Stopwatch(lambda: work, clock, spent)
    clock.now += 2.0
    watch.lap("update_actor")
    found = watch.metrics()
    assert (found["timing_s/gen"], found["timing_s/settle"], found["timing_s/update_actor"]) == (3.0, 1.0, 2.0)
    assert (found["timing_s/step"], found["tokens/generated"]) == (6.0, 40.0)
    assert found["rollouter/idle_ratio"] == pytest.approx(1 - 2.2 / 6)


async def test_calls_at_once_make_the_engine_busy_once() -> None:
    clock = Clock()
    gate = Gate(clock)
    gate.open()
    await gate.enter()
    clock.now += 1.0
    await gate.enter()
    clock.now += 1.0
    gate.leave()
    clock.now += 1.0
    assert gate.busy_s == pytest.approx(3.0)
    gate.leave()
    clock.now += 5.0
    assert gate.busy_s == pytest.approx(3.0)
