"""A lease belongs to one owner, for as long as they show that they live."""

from __future__ import annotations

import pytest

from swarm.backends.fake.backend import FakeRenderer
from swarm.errors import EpisodeEnded, LeaseLost, SwarmError
from swarm.server.episodes import episodes
from swarm.server.episodes.episodes import Closing, LeasedEpisode, Leases
from swarm.server.shared.keys import Claims
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
    return leases, episode, Claims("lease", episode=name, epoch=episode.epoch)


def test_a_lease_runs_out_after_its_time_and_a_heartbeat_renews_it() -> None:
    clock = Clock()
    leases, episode, claims = begun(clock)
    clock.now += 29
    leases.renewed(claims)
    clock.now += 29
    assert leases.expired() == []
    clock.now += 1
    assert leases.expired() == [episode]


def test_a_lease_does_not_run_out_under_a_call_in_flight() -> None:
    clock = Clock()
    leases, episode, _ = begun(clock)
    episode.calls.add(FakeCall())
    clock.now += 1000
    assert leases.expired() == []


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


@pytest.mark.parametrize(("state", "other"), [("ended", "aborted"), ("aborted", "ended")])
def test_the_same_close_again_is_no_error_and_any_other_call_is(state: Closing, other: Closing) -> None:
    leases, episode, claims = begun(Clock())
    leases.close(episode, state)
    assert leases.find(claims, state) is None
    later: Closing | None
    for later in (None, other):
        with pytest.raises(EpisodeEnded, match=f"is {state}"):
            leases.find(claims, later)
    with pytest.raises(EpisodeEnded):
        leases.renewed(claims)


def test_only_so_many_closed_episodes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "CLOSED_KEPT", 2)
    leases = Leases(30.0, Clock())
    for name in "abcd":
        leases.close(leases.begin(name, BeginRequest(task_id="t"), "t", CallTree(FakeRenderer())), "ended")
    with pytest.raises(EpisodeEnded, match="long ago"):
        leases.find(Claims("lease", episode="a", epoch=1))
    assert leases.find(Claims("lease", episode="d", epoch=1), "ended") is None
