"""Rollout and update overlap where the job allows it: who plays meanwhile, what a batch waits for, and failure."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import Batch
from swarm.job import Job
from tests.swarm.server.support import Clock, Served, eventually, job, serving
from tests.swarm.server.test_recovery import local
from tests.swarm.server.training.test_training import RecordingTracker


def overlapping(**fields: Any) -> Job:
    """Two groups of two, and one batch ahead."""
    return job(**{"steps": 3, "max_staleness": 1, **fields})


async def learning(served: Served) -> None:
    """Wait until the learner has a batch and is held."""
    await eventually(lambda: served.backend.learner.learning, bool)


def versions(batch: Batch) -> set[int]:
    return {v for episode in batch.episodes for row in episode.rows for v in row.versions if v >= 0}


async def test_episodes_begin_generate_and_end_while_a_batch_is_learned(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping()) as served:
        served.backend.learner.hold()
        await served.play_step("aabb")
        await learning(served)
        await served.play_step("ccdd")
        status = await served.status()
        assert (status["state"], status["updating"], status["step"], status["collected_episodes"]) == (
            "ROLLING", True, 0, 4,
        )  # fmt: skip
        full = await served.post("/episodes", served.admin, {"task_id": "e"})
        assert (full.status, full.code) == (429, "throttled")
        waiting = asyncio.create_task(served.begin("e"))
        served.backend.learner.release()
        assert (await waiting)["policy_version"] >= 1
        status = await served.until(step=2, updating=False)
        assert status["metrics"]["training/off_policy/trajectory_staleness_worst/max"] == 1
        assert [versions(batch) for batch in served.backend.learner.batches] == [{0}, {0}]
        assert [change.target for change in served.server.machine.events] == ["BOOTING", "ROLLING"]


async def test_a_generation_goes_on_through_an_update_under_the_new_weights(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping(), script=lambda *_: "a long answer", chunk_size=1) as served:
        lease = await served.begin("e")
        served.backend.engine.hold()
        call = asyncio.create_task(served.chat(lease, "hi"))
        await eventually(lambda: served.backend.engine.active, lambda active: active == 1)
        served.backend.learner.update(Batch(0, ()))
        served.backend.publish()
        served.backend.engine.release()
        assert (await call).body["system_fingerprint"] == "policy-1"


async def test_a_batch_waits_for_a_group_that_would_become_too_old(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping()) as served:
        old = await served.begin_batch("aa")
        await served.play_step("bbcc")
        await served.until(step=1)
        await served.play_step("dd")
        await served.play_step("ee")
        status = await served.until(collected_episodes=4)
        assert (status["step"], status["updating"]) == (1, False)
        for lease in old:
            await served.end(lease)
        await served.until(step=2)
        groups = [{episode.group for episode in batch.episodes} for batch in served.backend.learner.batches]
        assert groups == [{"b#2", "c#3"}, {"a#1", "d#4"}]
        assert "lease/drop_stale" not in (await served.status())["metrics"]


async def test_who_holds_up_a_batch_with_an_old_group_is_fenced_and_others_are_not(tmp_path: Path) -> None:
    clock = Clock()
    async with serving(tmp_path, overlapping(drain_timeout_s=10, lease_ttl_s=86_000), clock=clock) as served:
        old, young = await served.begin("a"), None
        await served.chat(old, "hi")
        await served.play_step("bbcc")
        await served.until(step=1)
        young = await served.begin("f")
        await served.play_step("ddee")

        def passed() -> int:
            clock.now += 1
            return served.rollout.counts["drop_held_up_batch"]

        await eventually(passed, bool)
        await served.until(step=2)
        assert (await served.end(old)).code == "lease_lost"
        assert (await served.chat(young, "hi")).status == 200
        assert served.rollout.counts["drop_held_up_batch"] == 1


async def test_a_surplus_group_that_became_too_old_is_given_up_with_a_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping(surplus_groups=1)) as served:
        served.backend.learner.hold()
        stale = await served.begin("a")
        await served.play_step("bbccddee")
        await learning(served)
        served.backend.learner.release()
        await served.until(step=2, updating=False)
        assert (await served.chat(stale, "hi")).code == "lease_lost"
        counts = served.rollout.counts
        assert (counts["drop_outdated"], counts["fenced"], counts["trained"]) == (1, 1, 8)


async def test_the_last_batches_are_not_overfilled_and_who_waits_hears_of_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping(steps=1, max_staleness=3)) as served:
        served.backend.learner.hold()
        await served.play_step("aabb")
        await learning(served)
        waiting = asyncio.create_task(served.post("/episodes", served.admin, {"task_id": "c", "wait_s": 20}))
        await eventually(lambda: len(served.rollout.ledger.line), lambda line: line == 1)
        served.backend.learner.release()
        assert (await waiting).code == "job_finished"


@pytest.mark.slow
async def test_the_local_backend_learns_each_episode_once_and_none_too_late(tmp_path: Path) -> None:
    model = {"kind": "tiny", "warm_start_steps": 1, "hidden_size": 16, "layers": 1}
    wanted = overlapping(steps=4, checkpoint_every=2, backend="local", model=model, max_tokens=4)
    tracker = RecordingTracker()

    async def agent(served: Served, task: str) -> None:
        while True:
            begun = await served.post("/episodes", served.admin, {"task_id": task, "wait_s": 20})
            if begun.code == "job_finished":
                return
            assert (await served.chat(begun.body, "above 3 below 9")).status == 200
            assert (await served.end(begun.body, float(len(begun.body["episode_id"]) % 2))).status == 200

    backend = local(tmp_path / "models")
    async with serving(tmp_path, start=False, backend=backend, tracker=lambda _: tracker) as served:
        served.server.load(wanted)
        await served.server.start()
        while (await served.status())["state"] == "BOOTING":  # noqa: ASYNC110  -- it makes its model
            await asyncio.sleep(0.05)
        await asyncio.gather(*(agent(served, task) for task in "aabbcc"))
        status = await served.until(finished=True)
        assert (status["policy_version"], status["metrics"]["lease/trained"]) == (4, 16)
        episodes = (await served.get("/episodes?limit=1000"))["episodes"]
        assert Counter(e["step"] for e in episodes if e["state"] == "consumed") == {1: 4, 2: 4, 3: 4, 4: 4}
    ages = [metrics["training/off_policy/trajectory_staleness_worst/max"] for _, metrics in tracker.logged]
    assert len(ages) == 4
    assert ages[0] == 0
    assert max(ages) <= 1
    assert "lease/drop_stale" not in tracker.logged[-1][1]
