"""Calls pass an open gate, wait at a shut one, and fail at a broken one."""

from __future__ import annotations

import asyncio

import pytest

from swarm.errors import ServerFailed
from swarm.server.shared.gate import Gate


async def test_a_shut_gate_holds_calls_until_it_opens() -> None:
    gate = Gate()
    entering = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    assert gate.in_flight == 0
    gate.open()
    await entering
    assert gate.in_flight == 1


async def test_it_tells_when_it_is_empty_and_when_that_takes_too_long() -> None:
    gate = Gate()
    gate.open()
    await gate.enter()
    gate.shut()
    assert not await gate.emptied(0.01)
    gate.leave()
    assert await gate.emptied(0.01)


async def test_a_broken_gate_refuses_those_who_wait_and_those_who_come() -> None:
    gate = Gate()
    entering = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.fail(ServerFailed("broke"))
    with pytest.raises(ServerFailed):
        await entering
    with pytest.raises(ServerFailed):
        await gate.enter()
