"""A lease belongs to one owner, and who waits for one is admitted in the order they came."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from swarm.backends.fake import FakeRenderer
from swarm.errors import EpisodeEnded, JobFinished, LeaseLost, SwarmError
from swarm.rollout import episodes
from swarm.rollout.episodes import Closing, LeasedEpisode, Leases
from swarm.rollout.keys import Claims
from swarm.rollout.state import Admission
from swarm.timelines import CallTree
from swarm.wire import BeginRequest
from tests.swarm.server.support import Clock


class FakeCall:
    generating = False

    def __init__(self) -> None:
        self.error: SwarmError | None = None

    def interrupt(self, error: SwarmError) -> None:
        self.error = error


def begun(clock: Clock, name: str = "e") -> tuple[Leases, LeasedEpisode, Claims]:
    leases = Leases(30.0, clock)
    episode = leases.begin(name, BeginRequest(task_id="t"), "t", CallTree(FakeRenderer()))
    return leases, episode, Claims("lease", episode=name, fencing_token=episode.fencing_token)


def test_a_lease_runs_out_after_its_time_unless_it_is_renewed_or_a_call_is_in_flight(clock: Clock) -> None:
    leases, episode, claims = begun(clock)
    for _ in range(2):
        clock.now += 29
        leases.find_and_renew(claims)
    assert leases.find_expired() == []
    clock.now += 30
    assert leases.find_expired() == [episode]
    episode.calls.add(FakeCall())
    clock.now += 1000
    assert leases.find_expired() == []


def test_a_fenced_owner_is_told_that_the_lease_is_lost_whatever_they_do() -> None:
    leases, episode, claims = begun(Clock())
    call = FakeCall()
    episode.calls.add(call)
    leases.close(episode, "fenced")
    assert isinstance(call.error, LeaseLost)
    repeats: Closing | None
    for repeats in (None, "ended", "aborted"):
        with pytest.raises(LeaseLost):
            leases.find(claims, repeats)


def test_only_so_many_closed_episodes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "CLOSED_KEPT", 2)
    leases = Leases(30.0, Clock())
    for name in "abcd":
        leases.close(leases.begin(name, BeginRequest(task_id="t"), "t", CallTree(FakeRenderer())), "ended")
    with pytest.raises(EpisodeEnded, match="long ago"):
        leases.find(Claims("lease", episode="a", fencing_token=1))
    assert leases.find(Claims("lease", episode="d", fencing_token=1), "ended") is None


class Room:
    def __init__(self, **free: int) -> None:
        self.free = free
        self.returned: list[str] = []
        self.refusal: SwarmError | None = None
        self.line: Admission[str] = Admission(self.returned.append)

    def attempt(self, name: str, kind: str) -> str | None:
        if self.refusal is not None:
            raise self.refusal
        if self.free.get(kind, 0) < 1:
            return None
        self.free[kind] -= 1
        return name

    def wait(self, name: str, kind: str = "x", wait_s: float = 10.0) -> asyncio.Task[str | None]:
        return asyncio.create_task(self.line.admit(lambda: self.attempt(name, kind), wait_s))


async def queued(line: Admission[str], count: int) -> None:
    async with asyncio.timeout(120):
        while len(line) < count:  # noqa: ASYNC110  -- the line tells nobody
            await asyncio.sleep(0)


async def test_a_refusal_reaches_the_waiter_and_a_place_given_to_one_who_just_left_is_given_back() -> None:
    room = Room()
    gone = room.wait("a")
    await queued(room.line, 1)
    room.free["x"] = 1
    room.line.admit_waiting()
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    assert room.returned == ["a"]
    waiting = room.wait("b")
    await queued(room.line, 1)
    room.refusal = JobFinished("done")
    room.line.admit_waiting()
    with pytest.raises(JobFinished):
        await waiting
