"""The rollout frees what dead and stuck clients hold, and counts every drop with its reason."""

from __future__ import annotations

import asyncio

import pytest

from swarm.backends.fake import EOS_ID, FakeRenderer
from swarm.errors import EngineUnavailable, JobFinished, LeaseLost, ServerFailed, Throttled
from swarm.server.episodes import Episode
from swarm.server.keys import Claims
from swarm.server.rollout import Rollout
from swarm.server.states import StateMachine
from swarm.wire import BeginRequest, EndRequest, EpisodeKind
from swarm.wire import ServerState as S
from tests.swarm.server.support import Clock, job


class Scene:
    """A rollout in ROLLING, without HTTP and without a step loop: two groups of two."""

    def __init__(self, *states: S) -> None:
        self.clock = Clock()
        self.machine = StateMachine()
        self.rollout = Rollout(job(lease_ttl_s=30, drain_timeout_s=10), self.machine, self.clock)
        self.rollout.renderer = FakeRenderer()
        for state in states or (S.BOOTING, S.ROLLING):
            self.machine.to(state, "broke" if state is S.FAILED else None)

    async def begin(self, task: str = "a", kind: EpisodeKind = "train", wait_s: float = 0.0) -> Episode:
        return await self.rollout.begin(BeginRequest(task_id=task, kind=kind, wait_s=wait_s))

    def call(self, episode: Episode) -> None:
        plan = episode.tree.plan([{"role": "user", "content": "q"}])
        episode.tree.add(plan, [EOS_ID], [-0.1], [0], text="", answer={"role": "assistant", "content": ""})
        self.rollout.leases.touch(episode)

    def end(self, episode: Episode, reward: float = 1.0) -> None:
        self.rollout.end(claims(episode), EndRequest(reward=reward))

    async def fill(self) -> list[Episode]:
        episodes = [await self.begin(task) for task in "aabb"]
        for episode in episodes:
            self.call(episode)
        return episodes


def claims(episode: Episode) -> Claims:
    return Claims("lease", episode=episode.id, epoch=1)


async def waiting(scene: Scene, task: str) -> asyncio.Task[Episode]:
    """Return a begin that stands in line."""
    line = scene.rollout._line
    before, begun = len(line), asyncio.create_task(scene.begin(task, wait_s=10))
    async with asyncio.timeout(5):
        while len(line) == before and not begun.done():  # noqa: ASYNC110  -- the line tells nobody
            await asyncio.sleep(0)
    return begun


async def test_no_room_is_throttled_with_a_time_to_try_again() -> None:
    scene = Scene()
    await scene.fill()
    with pytest.raises(Throttled) as refusal:
        await scene.begin("c")
    assert refusal.value.retry_after
    assert scene.rollout.counts["throttled"] == 1


async def test_evaluation_needs_no_room() -> None:
    scene = Scene()
    await scene.fill()
    assert (await scene.begin("c", kind="eval")).kind == "eval"


async def test_an_abort_gives_the_place_to_the_one_who_waits() -> None:
    scene = Scene()
    episodes = await scene.fill()
    begun = await waiting(scene, "b")
    scene.rollout.abort(claims(episodes[3]), "no longer wanted")
    assert (await begun).task_id == "b"
    assert scene.rollout.counts["aborted"] == 1


async def test_an_expired_lease_is_fenced_counted_and_its_place_given_away() -> None:
    scene = Scene()
    episodes = await scene.fill()
    begun = await waiting(scene, "a")
    scene.clock.now += 20
    for alive in episodes[1:]:
        scene.rollout.heartbeat(claims(alive))
    scene.clock.now += 11
    scene.rollout.sweep()
    assert (await begun).task_id == "a"
    assert scene.rollout.counts["drop_lease_expired"] == scene.rollout.counts["fenced"] == 1
    with pytest.raises(LeaseLost):
        scene.end(episodes[0])


async def test_a_dead_clients_partial_group_is_dropped_and_counted() -> None:
    scene = Scene()
    episode = await scene.begin("a")
    scene.call(episode)
    scene.end(episode)
    for task in "bb":
        await scene.begin(task)
    begun = await waiting(scene, "c")
    scene.clock.now += 31
    scene.rollout.sweep()
    assert (await begun).task_id == "c"
    assert scene.rollout.counts["drop_partial_group"] == 1


async def test_an_episode_without_calls_teaches_nothing_and_is_dropped() -> None:
    scene = Scene()
    episode = await scene.begin("a")
    scene.end(episode)
    assert scene.rollout.groups.collected == 0
    assert scene.rollout.counts["drop_no_calls"] == 1
    await scene.fill()
    assert scene.rollout.groups.full


async def test_one_who_holds_up_a_full_batch_is_fenced_after_the_drain_time_despite_heartbeats() -> None:
    scene = Scene()
    episodes = await scene.fill()
    for done in episodes[:3]:
        scene.end(done)
    scene.machine.to(S.ROLLING_POST)
    scene.rollout.draining()
    for _ in range(3):
        scene.clock.now += 4
        scene.rollout.heartbeat(claims(episodes[3]))
        scene.rollout.sweep()
    assert scene.rollout.counts["drop_held_up_batch"] == 1
    replacement = await scene.begin("b")
    scene.call(replacement)
    scene.end(replacement)
    assert scene.rollout.groups.complete


async def test_one_who_makes_calls_is_not_stuck() -> None:
    scene = Scene()
    episodes = await scene.fill()
    scene.machine.to(S.ROLLING_POST)
    scene.rollout.draining()
    for _ in range(5):
        scene.clock.now += 4
        for episode in episodes:
            scene.call(episode)
        scene.rollout.sweep()
    assert scene.rollout.counts["fenced"] == 0


async def test_a_finished_job_refuses_training_and_admits_evaluation() -> None:
    scene = Scene()
    scene.rollout.finished = True
    with pytest.raises(JobFinished):
        await scene.begin("a")
    await scene.begin("a", kind="eval")


async def test_who_waits_hears_that_the_server_failed() -> None:
    scene = Scene()
    await scene.fill()
    begun = await waiting(scene, "c")
    scene.machine.to(S.FAILED, "out of memory")
    scene.rollout.fail(ServerFailed("the server FAILED: out of memory"))
    with pytest.raises(ServerFailed, match="out of memory"):
        await begun
    with pytest.raises(ServerFailed, match="out of memory"):
        await scene.begin("c")


async def test_in_the_update_begins_wait_and_in_booting_they_are_told_so() -> None:
    scene = Scene(S.BOOTING, S.ROLLING, S.ROLLING_POST, S.WEIGHT_SYNCING)
    begun = await waiting(scene, "a")
    assert not begun.done()
    scene.machine.to(S.ROLLING)
    scene.rollout.notify()
    assert (await begun).task_id == "a"
    with pytest.raises(EngineUnavailable, match="booting"):
        await Scene(S.BOOTING).begin("a")
    with pytest.raises(EngineUnavailable, match="off"):
        await Scene(S.BOOTING, S.OFFLINE).begin("a")


async def test_only_the_first_end_counts() -> None:
    scene = Scene()
    episode = await scene.begin("a")
    scene.call(episode)
    scene.end(episode, 1.0)
    scene.end(episode, 5.0)
    assert episode.reward == 1.0
    assert scene.rollout.groups.collected == 1
