"""Those who wait are admitted in the order they came, and nothing is lost when they leave."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from swarm.errors import JobFinished
from swarm.server.episodes.admission import Admission


class Room:
    """So many free places, by kind."""

    def __init__(self, **free: int) -> None:
        self.free = free
        self.returned: list[str] = []
        self.line: Admission[str] = Admission(self.returned.append)

    def attempt(self, name: str, kind: str) -> str | None:
        if self.free.get(kind, 0) < 1:
            return None
        self.free[kind] -= 1
        return name

    def wait(self, name: str, kind: str = "x", wait_s: float = 10.0) -> asyncio.Task[str | None]:
        return asyncio.create_task(self.line.admit(lambda: self.attempt(name, kind), wait_s))


async def queued(room: Room, count: int) -> None:
    async with asyncio.timeout(5):
        while len(room.line) < count:  # noqa: ASYNC110  -- the line tells nobody
            await asyncio.sleep(0)


async def test_room_at_once_needs_no_line() -> None:
    room = Room(x=1)
    assert await room.wait("a", wait_s=0) == "a"
    assert await room.wait("b", wait_s=0) is None
    assert await room.wait("b", wait_s=0.01) is None
    assert len(room.line) == 0


async def test_places_go_to_those_who_came_first() -> None:
    room = Room()
    waiting = [room.wait(name) for name in "abc"]
    await queued(room, 3)
    room.free["x"] = 2
    room.line.pump()
    assert [await waiting[0], await waiting[1]] == ["a", "b"]
    assert len(room.line) == 1
    waiting[2].cancel()


async def test_one_who_cannot_use_a_place_does_not_hold_up_the_line() -> None:
    room = Room()
    first, second = room.wait("a", "x"), room.wait("b", "y")
    await queued(room, 2)
    room.free["y"] = 1
    room.line.pump()
    assert await second == "b"
    first.cancel()


async def test_a_refusal_reaches_the_waiter() -> None:
    refusals: list[Exception] = []
    line: Admission[str] = Admission(lambda _: None)

    def attempt() -> str | None:
        if refusals:
            raise refusals[0]
        return None

    waiting = asyncio.create_task(line.admit(attempt, 10))
    await asyncio.sleep(0)
    refusals.append(JobFinished("done"))
    line.pump()
    with pytest.raises(JobFinished):
        await waiting


async def test_a_place_given_to_one_who_just_left_is_given_back() -> None:
    room = Room()
    waiting = room.wait("a")
    await queued(room, 1)
    room.free["x"] = 1
    room.line.pump()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert room.returned == ["a"]
