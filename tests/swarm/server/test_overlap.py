"""Rollout and update overlap where the job allows it: who plays meanwhile, what a batch waits for, and failure."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from swarm.backends.protocols import Batch
from swarm.job import Job
from tests.swarm.server.support import Clock, Served, eventually, job, serving


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
