"""Calls to an engine are made in their order, and the last of them also for somebody who was told to end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from research.isolation.mode import EngineThread


async def interrupted(method: str) -> list[str]:
    """Ask for a call behind another one that goes on, be cancelled, and return what was done in the end."""
    thread, done, going = EngineThread(), [], threading.Event()
    first = asyncio.create_task(thread.do(going.wait))
    asked: asyncio.Task[Any] = asyncio.create_task(getattr(thread, method)(done.append, "cleared up"))
    await asyncio.sleep(0)  # both wait in the thread's line now
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    going.set()
    await first
    thread.close()
    return done


async def test_clearing_up_is_done_though_a_second_signal_comes_while_it_waits_for_its_turn() -> None:
    assert await interrupted("do_shielded") == ["cleared up"]


async def test_any_other_call_is_not_begun_for_somebody_who_is_gone() -> None:
    assert await interrupted("do") == []
