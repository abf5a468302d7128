"""The clock of leases counts the time in which the server served."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from swarm.server.shared.served_clock import BEAT_S, MOST_S, ServedClock
from tests.swarm.server.support import Clock


@given(st.lists(st.tuples(st.floats(0, 1000), st.booleans()), max_size=50))
def test_it_never_goes_back_nor_faster_than_time_and_at_most_one_beat_of_a_stall_counts(
    passing: list[tuple[float, bool]],
) -> None:
    below = Clock()
    clock = ServedClock(below)
    began, counted, since = clock(), 0.0, 0.0
    for seconds, beats in passing:
        before = clock()
        below.now += seconds
        since += seconds
        assert before <= clock() <= before + seconds + 1e-6
        if beats:
            clock.beat()
            counted, since = counted + min(since, MOST_S), 0.0
    assert abs(clock() - began - counted - min(since, MOST_S)) < 1e-6


async def test_a_loop_that_gets_on_keeps_it_going() -> None:
    clock = ServedClock()
    beating = asyncio.create_task(clock.run())
    began, real = clock(), time.monotonic()
    await asyncio.sleep(20 * BEAT_S)
    assert clock() - began > 0.5 * (time.monotonic() - real)
    beating.cancel()


async def test_a_call_that_holds_the_loop_is_left_out() -> None:
    clock = ServedClock()
    beating = asyncio.create_task(clock.run())
    await asyncio.sleep(BEAT_S)
    began = clock()
    time.sleep(4 * MOST_S)  # noqa: ASYNC251 - this is what is tested
    await asyncio.sleep(0)
    assert clock() - began < 2 * MOST_S
    beating.cancel()
