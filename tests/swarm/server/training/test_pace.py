"""The pace of a training, by a clock that is told the time."""

from __future__ import annotations

import pytest

from swarm.server.training.pace import STEPS, WINDOW_S, Pace
from tests.swarm.server.support import Clock


def test_sampling_is_averaged_over_the_last_seconds_alone() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.sampled_per_s is None
    for second in range(int(3 * WINDOW_S)):
        pace.sampled(1000 * second if second < 2 * WINDOW_S else int(1000 * 2 * WINDOW_S))
        clock.now += 1
    assert pace.sampled_per_s == pytest.approx(0, abs=1000 / WINDOW_S)


def test_a_step_takes_what_lies_between_the_ends_of_the_last_ones() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.step()
    assert pace.step_s is None
    for seconds in [100.0] * 5 + [2.0] * STEPS:
        clock.now += seconds
        pace.step()
    assert pace.step_s == 2.0
