"""Linked episodes end together: what is prepared waits for the decision, whatever dies, and holds nobody up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from swarm.errors import EpisodeEnded, InvalidRequest, JobConflict, LeaseLost, NotFound, StoreUnavailable
from swarm.rollout.episodes import LeasedEpisode
from swarm.rollout.keys import Claims
from swarm.rollout.teams import IN_DOUBT_S
from swarm.store.changes import EpisodePrepared
from swarm.wire import EndRequest, EpisodeRecord, EpisodeState, PrepareRequest
from swarm.wire import ServerState as S
from tests.swarm.rollout.test_episodes import Scene, claims, play, recovered

DECIDER = {"decider": "http://127.0.0.1:1/episodes/x", "decider_token": "token"}


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def prepared(scene: Scene, task: str = "a", **decider: Any) -> LeasedEpisode:
    episode = await play(scene, task)
    await scene.rollout.teams.prepare(claims(episode), PrepareRequest(reward=0.5, weight=2.0, **decider))
    return episode


async def settled(scene: Scene) -> None:
    async with asyncio.timeout(120):
        while any(held.settling is not None for held in scene.rollout.leases.prepared):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_prepared_episode_is_durable_keeps_its_place_and_is_not_trained_before_its_commit(scene: Scene) -> None:
    episode = await prepared(scene, **DECIDER)
    (change,) = [change for change in scene.store.changes if isinstance(change, EpisodePrepared)]
    written = change.sample.columns("episode", "reward", "success", "weight", *DECIDER)
    assert written == {"episode": episode.id, "reward": 0.5, "success": None, "weight": 2.0, **DECIDER}
    assert scene.rollout.groups.collected == 0
    assert scene.rollout.groups.group_of(episode.id) is not None
    assert scene.rollout.heartbeat(claims(episode)).state == "prepared"
    with pytest.raises(EpisodeEnded, match="prepared"):
        scene.rollout.leases.find_and_renew(claims(episode))
    with pytest.raises(EpisodeEnded, match="prepared"):
        await scene.end(episode)
    assert (await scene.rollout.teams.commit(claims(episode))).state == "ended"
    (waiting,) = [sample for group in scene.rollout.groups for sample in group.ended]
    assert (waiting.episode, waiting.reward, waiting.weight, waiting.decider) == (episode.id, 0.5, 2.0, None)


async def test_nothing_is_acknowledged_that_could_not_be_written(scene: Scene) -> None:
    episode = await play(scene)
    teams, request = scene.rollout.teams, PrepareRequest(reward=1.0)
    scene.store.fail = "the disk is full"
    with pytest.raises(StoreUnavailable):
        await teams.prepare(claims(episode), request)
    assert scene.rollout.heartbeat(claims(episode)).state == "open"
    scene.store.fail = None
    await teams.prepare(claims(episode), request)
    scene.store.fail = "the disk is full"
    for attempt in (teams.commit(claims(episode)), scene.rollout.abort(claims(episode), "")):
        with pytest.raises(StoreUnavailable):
            await attempt
    assert scene.rollout.heartbeat(claims(episode)).state == "prepared"
    scene.store.fail = None
    assert (await teams.commit(claims(episode))).state == "ended"


async def test_only_a_prepared_training_episode_can_be_committed(scene: Scene) -> None:
    episode, evaluation = await scene.begin("a"), await scene.begin("a", kind="eval")
    with pytest.raises(JobConflict, match="not prepared"):
        await scene.rollout.teams.commit(claims(episode))
    with pytest.raises(InvalidRequest, match="evaluation"):
        await scene.rollout.teams.prepare(claims(evaluation), PrepareRequest(reward=1.0))
    with pytest.raises(InvalidRequest, match="decider"):
        await scene.rollout.teams.prepare(claims(episode), PrepareRequest(reward=1.0, decider="http://x/episodes/y"))


async def test_a_prepared_follower_never_expires_and_an_undecided_decider_aborts_itself(scene: Scene) -> None:
    decider, follower = await prepared(scene), await prepared(scene, **DECIDER)
    scene.clock.now += 29
    scene.rollout.heartbeat(claims(decider))
    scene.clock.now += 29
    scene.rollout.sweep()
    await settled(scene)
    assert (await scene.rollout.teams.outcome(claims(decider))).state == "prepared"
    scene.clock.now += 1
    scene.rollout.sweep()
    await settled(scene)
    assert (await scene.rollout.teams.outcome(claims(decider))).state == "aborted"
    assert (await scene.rollout.teams.outcome(claims(follower))).state == "prepared"
    assert [(change.state, change.reason) for change in scene.closed()] == [("aborted", "undecided")]
    with pytest.raises(EpisodeEnded, match="aborted"):
        await scene.rollout.teams.commit(claims(decider))


async def test_a_follower_whose_decider_is_away_for_a_day_is_given_up_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    follower = await prepared(scene, **DECIDER)
    scene.clock.now += IN_DOUBT_S - 1
    scene.rollout.sweep()
    await settled(scene)
    assert (await scene.rollout.teams.outcome(claims(follower))).state == "prepared"
    scene.store.fail = "the disk is full"
    scene.clock.now += 1
    scene.rollout.sweep()
    await settled(scene)
    assert (await scene.rollout.teams.outcome(claims(follower))).state == "prepared", (
        "nothing counts before it is written"
    )
    scene.store.fail = None
    scene.rollout.sweep()
    await settled(scene)
    assert (await scene.rollout.teams.outcome(claims(follower))).state == "fenced"
    (change,) = scene.closed()
    assert (change.state, change.reason, change.fencing_token, change.team) == ("fenced", "team_in_doubt", 2, True)
    assert (scene.rollout.counts["fenced"], scene.rollout.counts["drop_team_in_doubt"]) == (1, 1)
    assert f"episode={follower.id}" in caplog.text
    assert DECIDER["decider"] in caplog.text
    assert not scene.rollout.groups.awaited, "its place is free again"
    with pytest.raises(LeaseLost):
        await scene.rollout.teams.commit(claims(follower))


async def test_an_episode_in_doubt_gives_its_place_up_after_the_drain_time_and_joins_a_later_batch() -> None:
    scene = Scene()
    in_doubt = await prepared(scene, "a", **DECIDER)
    for task in "abb":
        await scene.end(await play(scene, task))
    scene.machine.transition_to(S.ROLLING_POST)
    scene.rollout.begin_drain()
    scene.clock.now += 11
    scene.rollout.sweep()
    await scene.end(await play(scene))
    assert [group.name for group in scene.rollout.take_batch()] == ["a#1", "b#2"]
    await scene.rollout.teams.commit(claims(in_doubt))
    assert scene.closed()[-1].sample.group == "a#3"
    partner = await scene.begin("a")
    assert [(group.name, len(group)) for group in scene.rollout.groups] == [("a#3", 2)]
    assert partner.id != in_doubt.id


async def test_the_outcome_of_an_open_fenced_ended_or_unknown_episode_is_told(scene: Scene) -> None:
    open_, fenced, ended = await scene.begin("a"), await scene.begin("a"), await scene.begin("b")
    scene.rollout.fence(fenced, "lease_expired")
    await scene.end(ended)
    states = [(await scene.rollout.teams.outcome(claims(e))).state for e in (open_, fenced, ended)]
    assert states == ["open", "fenced", "ended"]
    scene.rollout.leases.closed.clear()
    with pytest.raises(NotFound):
        await scene.rollout.teams.outcome(claims(ended))


@pytest.mark.parametrize(
    ("written", "told"),
    [("ended", "ended"), ("in_step", "ended"), ("consumed", "ended"), ("dropped", "ended"), ("fenced", "fenced")],
)
async def test_an_outcome_that_memory_forgot_is_read_from_the_store(written: EpisodeState, told: str) -> None:
    scene = Scene()
    record = EpisodeRecord(
        id="old", task_id="a", stream="default", kind="train", owner="me", state=written, calls=1, tokens=1, record=()
    )

    async def read(episode: str) -> EpisodeRecord | None:
        return record

    scene.store.episode = read  # type: ignore[method-assign]
    old = Claims("lease", episode="old", fencing_token=1)
    assert (await scene.rollout.teams.outcome(old)).state == told


async def test_a_commit_that_is_being_written_while_its_episode_becomes_too_old_is_dropped_and_counted_once() -> None:
    scene = Scene(max_staleness=1, steps=9)
    outdated = await prepared(scene)
    rollout = scene.rollout
    rollout.finish_update(2)
    for task in "bbcc":
        await scene.end(await play(scene, task))
    scene.store.hold()
    committing = asyncio.create_task(rollout.teams.commit(claims(outdated)))
    for _ in range(3):  # into the store
        await asyncio.sleep(0)
    assert len(rollout.take_batch()) == 2
    scene.store.release()
    assert (await committing).state == "ended"
    assert (rollout.counts["ended"], rollout.counts["drop_stale"], rollout.groups.collected) == (5, 1, 0)


async def test_a_restart_gives_no_place_to_what_is_prepared_and_too_old_to_be_learned() -> None:
    former = Scene(max_staleness=1, steps=9)
    episodes = [await prepared(former, task, **DECIDER) for task in "abcd"]  # every place there is
    samples = [held.sample for held in former.rollout.leases.prepared]
    scene = Scene(max_staleness=1, steps=9)
    scene.rollout.recover(replace(recovered(former, prepared=samples), step=3))
    assert scene.rollout.leases.prepared
    assert list(scene.rollout.groups) == []
    assert (await scene.begin("e")).task_id == "e"
    await scene.rollout.teams.commit(claims(episodes[0]))
    assert (scene.rollout.counts["ended"], scene.rollout.counts["drop_stale"]) == (1, 1)


async def test_an_end_and_a_prepare_at_once_have_one_outcome_and_the_other_is_told(scene: Scene) -> None:
    episode = await play(scene)
    scene.store.hold()
    preparing = asyncio.create_task(scene.rollout.teams.prepare(claims(episode), PrepareRequest(reward=1.0)))
    await asyncio.sleep(0)
    ending = asyncio.create_task(scene.rollout.end(claims(episode), EndRequest(reward=1.0)))
    await asyncio.sleep(0)
    scene.store.release()
    assert (await preparing).state == "prepared"
    with pytest.raises(EpisodeEnded, match="prepared"):
        await ending
