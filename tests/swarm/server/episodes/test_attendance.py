"""A job may give the share of a stream without a client to the others; a slow stream that has one is waited for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from swarm.server.episodes.episodes import LeasedEpisode
from swarm.store import StoredEvent
from swarm.wire import BeginRequest, PrepareRequest, TaskList, tasks_digest
from tests.swarm.server.episodes.test_rollout import Scene, claims

STREAMS = {"a": 2, "b": 1, "c": 1}


def mixed(**fields: object) -> Scene:
    """Four groups of two from three streams, of which one is missing after 60 seconds."""
    return Scene(streams=STREAMS, episodes_per_step=8, missing_stream="renormalise", missing_stream_s=60, **fields)


async def begun(scene: Scene, stream: str, wait_s: float = 0.0) -> LeasedEpisode:
    return await scene.rollout.begin(BeginRequest(task_id=stream, stream=stream, wait_s=wait_s))


async def played(scene: Scene, stream: str, episodes: int = 2) -> None:
    for _ in range(episodes):
        episode = await begun(scene, stream)
        scene.call(episode)
        await scene.end(episode)


def passes(scene: Scene, seconds: float) -> None:
    """Let time pass as a server does, which sweeps all the while."""
    for _ in range(round(seconds)):
        scene.clock.now += 1
        scene.rollout.sweep()


def missing(scene: Scene) -> set[str]:
    return set(scene.rollout.groups.streams.missing)


def told(scene: Scene) -> list[tuple[str, object]]:
    events = [change for change in scene.store.changes if isinstance(change, StoredEvent)]
    return [(event.kind, event.details["stream"]) for event in events if event.kind.startswith("stream_")]


async def test_a_missing_streams_share_goes_to_the_others_and_is_counted_and_said() -> None:
    scene = mixed(drain_timeout_s=1000)
    scene.rollout.sweep()
    await played(scene, "a", 4)
    await played(scene, "b", 2)
    passes(scene, 50)
    assert missing(scene) == set()
    waiting = [asyncio.create_task(begun(scene, stream, wait_s=10)) for stream in "ab"]
    await asyncio.sleep(0)
    passes(scene, 11)
    assert missing(scene) == {"c"}
    done, _ = await asyncio.wait(waiting, timeout=120, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1, "one of those in line has the free place"
    assert scene.rollout.metrics()["throttle/missed"] == 1
    assert told(scene) == [("stream_missing", "c")]
    status = {stream.name: stream for stream in scene.rollout.streams().streams}
    assert [status[name].missing for name in "abc"] == [False, False, True]
    assert status["c"].share == 0.25, "its share stays its own"
    for task in waiting:
        task.cancel()


async def test_a_stream_that_comes_back_has_its_share_before_its_first_request_is_answered() -> None:
    scene = mixed()
    scene.rollout.sweep()
    for _ in range(61):
        scene.clock.now += 1
        scene.rollout._attendance.came("a")
        scene.rollout._attendance.came("b")
        scene.rollout.sweep()
    assert missing(scene) == {"c"}
    await played(scene, "c", 2)
    assert missing(scene) == set()
    assert told(scene) == [("stream_missing", "c"), ("stream_back", "c")]
    await played(scene, "a", 4)
    await played(scene, "b", 2)
    assert Counter(group.stream for group in scene.rollout.groups) == {"a": 2, "b": 1, "c": 1}
    assert scene.rollout.groups.complete
    scene.rollout.drain.take()
    credits = {change.name: change.credit for change in scene.rollout.groups.streams.standing()}
    assert credits == {"a": 0, "b": 0, "c": 0}, "nobody is owed what was missed"


@pytest.mark.parametrize("sign", ["a lease with heartbeats", "a call in flight", "a place in line"])
async def test_a_client_that_gives_a_sign_of_life_is_there_however_slow_it_is(sign: str) -> None:
    scene = mixed()
    scene.rollout.sweep()
    episode = await begun(scene, "c")
    line: list[asyncio.Task[LeasedEpisode]] = []
    if sign == "a call in flight":
        episode.calls.add(_Call())
    if sign == "a place in line":
        await scene.rollout.abort(claims(episode), "")
        await played(scene, "c", 2)
        line.append(asyncio.create_task(begun(scene, "c", wait_s=10)))
        await asyncio.sleep(0)
    for _ in range(200):
        if sign == "a lease with heartbeats":
            scene.rollout.heartbeat(claims(episode))
        passes(scene, 1)
        scene.rollout._attendance.came("a")
    assert missing(scene) == {"b"}
    for task in line:
        task.cancel()


class _Call:
    generating = True

    def interrupt(self, error: Exception) -> None:
        """It goes on."""


async def test_a_stream_whose_client_never_came_is_missing_like_one_whose_client_died_but_not_all_of_them() -> None:
    scene = mixed()
    passes(scene, 100)
    assert missing(scene) == set(), "nobody is there to have the shares"
    await played(scene, "a", 1)
    passes(scene, 1)
    assert missing(scene) == {"b", "c"}
    await scene.rollout.begin(BeginRequest(task_id="x", stream="b", kind="eval"))
    passes(scene, 1)
    assert missing(scene) == {"b", "c"}, "an evaluator plays no places"


async def test_under_wait_nobody_is_missing_and_a_place_is_lent_only_once_nothing_is_played() -> None:
    """Waits ten drain times for the slow stream's lease, which its client renews; then the batch has its share."""
    scene = Scene(streams=STREAMS, episodes_per_step=8)
    scene.rollout.sweep()
    slow = await begun(scene, "c")
    await played(scene, "a", 4)
    await played(scene, "b", 2)
    for _ in range(100):
        scene.rollout.heartbeat(claims(slow))
        passes(scene, 1)
    assert missing(scene) == set()
    assert scene.rollout.groups.room("a", "a") is None
    scene.call(slow)
    await scene.end(slow)
    await played(scene, "c", 1)
    batch = scene.rollout.drain.take()
    assert Counter(group.stream for group in batch) == {"a": 2, "b": 1, "c": 1}
    assert scene.rollout.metrics()["throttle/lent"] == 0


async def test_new_shares_count_the_time_of_a_new_stream_from_then_on() -> None:
    scene = mixed()
    passes(scene, 59)
    await played(scene, "a", 1)
    await scene.rollout.set_shares({"a": 1, "d": 1})
    passes(scene, 30)
    assert missing(scene) == set()
    scene.rollout._attendance.came("a")
    passes(scene, 31)
    assert missing(scene) == {"d"}


async def test_nobody_goes_missing_while_training_stands_for_an_evaluation() -> None:
    """No client can begin then; the time of all begins anew when training goes on."""
    scene = mixed()
    await played(scene, "a", 1)
    scene.rollout.ledger.awaited = 1
    passes(scene, 200)
    scene.rollout.ledger.awaited = 0
    passes(scene, 59)
    assert missing(scene) == set()
    scene.rollout._attendance.came("a")
    passes(scene, 1)
    assert missing(scene) == {"b", "c"}


async def test_a_stream_whose_share_is_given_back_has_its_time_from_then_on() -> None:
    """What was heard of it before its share was taken counts no more."""
    scene = mixed()
    scene.rollout.sweep()
    await scene.rollout.set_shares({"a": 1, "b": 1})
    for _ in range(100):
        passes(scene, 1)
        scene.rollout._attendance.came("a")
        scene.rollout._attendance.came("b")
    await scene.rollout.set_shares(STREAMS)
    passes(scene, 59)
    assert missing(scene) == set()
    scene.rollout._attendance.came("a")
    passes(scene, 2)
    assert missing(scene) == {"b", "c"}


async def test_who_names_its_tasks_is_back() -> None:
    scene = mixed()
    await played(scene, "a", 1)
    passes(scene, 59)
    scene.rollout._attendance.came("a")
    passes(scene, 2)
    assert missing(scene) == {"b", "c"}
    await scene.rollout.list_tasks(TaskList(stream="c", digest=tasks_digest(["t"]), count=1))
    assert missing(scene) == {"b"}


async def test_a_stream_whose_only_episode_waits_for_its_team_is_there() -> None:
    scene = mixed(lease_ttl_s=1000)
    scene.rollout.sweep()
    episode = await begun(scene, "c")
    scene.call(episode)
    link = {"decider": "http://127.0.0.1:1/episodes/x", "decider_token": "token"}
    await scene.rollout.teams.prepare(claims(episode), PrepareRequest(reward=0.5, **link))
    for _ in range(3):
        passes(scene, 50)
        scene.rollout.heartbeat(claims(episode))
        scene.rollout._attendance.came("a")
    assert missing(scene) == {"b"}
    passes(scene, 59)
    scene.rollout._attendance.came("a")
    passes(scene, 2)
    assert missing(scene) == {"b", "c"}, "its client keeps it no more"
