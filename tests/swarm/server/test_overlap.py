"""Rollout and update overlap where the job allows it: who plays meanwhile, what a batch waits for, and failure."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from swarm.backends.protocols import Batch
from swarm.job import Job
from tests.swarm.server.support import Served, eventually, job, serving


def overlapping(**fields: Any) -> Job:
    """Two groups of two, and one batch ahead."""
    return job(**{"steps": 3, "max_staleness": 1, **fields})


async def play(served: Served, tasks: str) -> None:
    await asyncio.gather(*(served.play(task, float(number % 2)) for number, task in enumerate(tasks)))


async def learning(served: Served) -> None:
    """Wait until the learner has a batch and is held."""
    await eventually(lambda: served.backend.learner.learning, bool)


def versions(batch: Batch) -> set[int]:
    return {v for episode in batch.episodes for row in episode.rows for v in row.versions if v >= 0}


async def test_episodes_begin_generate_and_end_while_a_batch_is_learned(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping()) as served:
        served.backend.learner.hold()
        await play(served, "aabb")
        await learning(served)
        await play(served, "ccdd")
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
        served.backend.engine.release()
        assert (await call).body["system_fingerprint"] == "policy-1"


async def test_a_batch_waits_for_a_group_that_would_become_too_old(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping()) as served:
        old = [await served.begin("a") for _ in range(2)]
        for lease in old:
            await served.chat(lease, "hi")
        await play(served, "bbcc")
        await served.until(step=1)
        await play(served, "ddee")
        status = await served.until(collected_episodes=4)
        assert (status["step"], status["updating"]) == (1, False)
        for lease in old:
            await served.end(lease)
        await served.until(step=2)
        groups = [{episode.group for episode in batch.episodes} for batch in served.backend.learner.batches]
        assert groups == [{"b#2", "c#3"}, {"a#1", "d#4"}]
        assert "lease/drop_stale" not in (await served.status())["metrics"]


async def test_who_holds_up_a_batch_with_an_old_group_is_fenced_and_others_are_not(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping(drain_timeout_s=0.3)) as served:
        old, young = await served.begin("a"), None
        await served.chat(old, "hi")
        await play(served, "bbcc")
        await served.until(step=1)
        young = await served.begin("f")
        await play(served, "ddee")
        await served.until(step=2)
        assert (await served.end(old)).code == "lease_lost"
        assert (await served.chat(young, "hi")).status == 200
        assert served.server.training.rollout.counts["drop_held_up_batch"] == 1


async def test_a_surplus_group_that_became_too_old_is_given_up_with_a_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping(surplus_groups=1)) as served:
        served.backend.learner.hold()
        stale = await served.begin("a")
        await play(served, "bbccddee")
        await learning(served)
        served.backend.learner.release()
        await served.until(step=2, updating=False)
        assert (await served.chat(stale, "hi")).code == "lease_lost"
        counts = served.server.training.rollout.counts
        assert (counts["drop_outdated"], counts["fenced"], counts["trained"]) == (1, 1, 8)


async def test_the_last_batches_are_not_overfilled_and_who_waits_hears_of_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping(steps=1, max_staleness=3)) as served:
        served.backend.learner.hold()
        await play(served, "aabb")
        await learning(served)
        waiting = asyncio.create_task(served.post("/episodes", served.admin, {"task_id": "c", "wait_s": 20}))
        await eventually(lambda: served.server.training.rollout.in_line, lambda line: line == 1)
        served.backend.learner.release()
        assert (await waiting).code == "job_finished"


async def test_an_update_that_breaks_fails_the_server_and_frees_who_plays(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping()) as served:
        served.backend.learner.hold()
        await play(served, "aabb")
        await learning(served)
        lease = await served.begin("c")
        served.backend.engine.hold()
        call = asyncio.create_task(served.chat(lease, "hi"))
        await eventually(lambda: served.backend.engine.active, lambda active: active == 1)
        served.backend.learner.fail_next = "loss is NaN"
        served.backend.learner.release()
        answer = await call
        assert (answer.status, answer.code) == (500, "server_failed")
        assert "loss is NaN" in answer.message


async def test_an_engine_stopped_in_an_update_learns_its_batch_once_and_keeps_what_ended_meanwhile(
    tmp_path: Path,
) -> None:
    wanted = overlapping(checkpoint_every=1)
    async with serving(tmp_path, wanted) as served:
        served.backend.learner.hold()
        await play(served, "aabb")
        await learning(served)
        await play(served, "ccd")
        stopping = asyncio.create_task(served.post("/engine/stop", served.admin))
        await served.until(state="OFFLINE")
        served.backend.learner.release()
        await stopping
    async with serving(tmp_path, wanted) as served:
        status = await served.until(step=1)
        assert (status["policy_version"], status["collected_episodes"]) == (1, 3)
        await play(served, "d")
        await served.until(step=2, updating=False)
        trained = [name for _, batch in served.backend.learner.trained for name, _ in batch]
        assert len(trained) == len(set(trained)) == 8


async def test_a_backend_that_dies_in_an_update_is_seen_by_the_watchdog(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping()) as served:
        served.backend.learner.hold()
        await play(served, "aabb")
        await learning(served)
        served.backend.die("CUDA error")
        await served.until(state="FAILED", reason="CUDA error")
        served.backend.learner.release()


async def test_the_idle_parts_of_a_step_are_parts_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path, overlapping()) as served:
        await play(served, "aabb")
        metrics = (await served.until(step=1))["metrics"]
        assert 0 < metrics["trainer/idle_ratio"] <= 1
        assert 0 <= metrics["rollouter/idle_ratio"] < 1
        assert metrics["timing_s/gen"] + metrics["timing_s/update_actor"] <= metrics["timing_s/step"]
        assert metrics["tokens/generated"] >= metrics["tokens/trained"] == metrics["actor/trained_tokens"]
