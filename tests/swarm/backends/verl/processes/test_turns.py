"""Turns on shared devices: who waits for whom, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from swarm.backends.protocols import BackendError
from swarm.backends.verl.processes import own_time
from swarm.backends.verl.processes.turns import DeviceTurns


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "SLICE_S", 0.001)


async def test_who_would_boot_waits_for_the_end_of_the_learner_s_turn() -> None:
    turns, booted = DeviceTurns(), asyncio.Event()

    async def boot() -> None:
        async with turns.booting(60):
            booted.set()

    turns.begin(60)
    booting = asyncio.ensure_future(boot())
    await asyncio.sleep(0.02)
    assert not booted.is_set()
    await asyncio.to_thread(turns.end)
    await asyncio.wait_for(booting, 10)


async def test_a_turn_waits_for_all_who_boot_however_that_ends_and_lets_none_begin() -> None:
    turns, up = DeviceTurns(), asyncio.Event()

    async def boot(*, fails: bool) -> None:
        async with turns.booting(60):
            await up.wait()
            if fails:
                raise BackendError("no memory")

    booting = [asyncio.ensure_future(boot(fails=fails)) for fails in (False, True)]
    await asyncio.sleep(0)
    turn = asyncio.ensure_future(asyncio.to_thread(turns.begin, 60))
    await asyncio.sleep(0.02)
    late = asyncio.ensure_future(boot(fails=False))
    assert not turn.done()
    up.set()
    await asyncio.wait_for(turn, 10)
    assert [type(each) for each in await asyncio.gather(*booting, return_exceptions=True)] == [type(None), BackendError]
    assert not late.done()
    turns.end()
    await asyncio.wait_for(late, 10)


async def test_neither_waits_without_a_bound() -> None:
    turns = DeviceTurns()
    async with turns.booting(60):
        with pytest.raises(BackendError, match="expected what boots beside the learner to be up within 0 s"):
            await asyncio.to_thread(turns.begin, 0.01)
    with pytest.raises(BackendError, match="expected the learner's turn to end within 0 s"):
        async with turns.booting(0.01):
            pass
    turns.end()
    async with turns.booting(60):
        pass
