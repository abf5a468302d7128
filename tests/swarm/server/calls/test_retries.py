"""A request that was sent again finds the call it was first made for, as long as that can be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.server.calls.call import Call
from swarm.server.calls.retries import KEPT_S, Retries
from tests.swarm.server.support import Clock


@dataclass(eq=False)
class Standing:
    """Where a call stands."""

    waiting: bool = False
    served: bool = False
    alive: bool = True
    over_at: float | None = None


def add(retries: Retries, key: str, call: Standing) -> Standing:
    retries.add(key, cast(Call, call))
    return call


def found(retries: Retries, key: str) -> Any:
    return retries.find(key)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_call_without_its_client_comes_first_then_one_that_goes_on_then_one_that_was_served(
    order: tuple[int, ...],
) -> None:
    retries = Retries(Clock())
    calls: list[Any] = [Standing(waiting=True), Standing(), Standing(served=True, over_at=1000.0)]
    for place in order:
        add(retries, "k", calls[place])
    for call in calls:
        assert found(retries, "k") is call
        call.alive = False
    assert retries.find("k") is None
    assert retries.find("other") is None


def test_a_call_that_goes_on_is_found_however_long_it_takes() -> None:
    clock = Clock()
    retries = Retries(clock)
    slow = add(retries, "slow", Standing())
    clock.now += 100 * KEPT_S
    add(retries, "other", Standing())
    assert found(retries, "slow") is slow
    slow.served, slow.over_at = True, clock.now
    clock.now += KEPT_S - 1
    add(retries, "other", Standing())
    assert found(retries, "slow") is slow


@given(lasting=st.lists(st.floats(0, 3 * KEPT_S), max_size=30))
def test_nothing_is_remembered_for_ever(lasting: list[float]) -> None:
    clock = Clock()
    retries = Retries(clock)
    for number, seconds in enumerate(lasting):
        add(retries, str(number % 3), Standing(served=True, over_at=clock.now + seconds))
        clock.now += 1.0
    for _ in range(2):
        clock.now += 5 * KEPT_S
        add(retries, "last", Standing(served=True, over_at=clock.now))
    assert len(retries) == 1
    assert all(retries.find(str(number)) is None for number in range(3))
