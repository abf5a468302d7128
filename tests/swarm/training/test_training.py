"""Whole trainings over HTTP with the fake backend: steps, barrier, failure, and what is told to whom."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from swarm.backends.fake import FakeBackend
from swarm.backends.protocols import Batch, NotFinite
from swarm.client import AsyncSwarmClient, Episode
from swarm.environments import get_environment
from swarm.environments.play import pending_evaluations, require_version
from swarm.errors import EngineUnavailable, InvalidRequest, ServerFailed, Unreachable
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.training.loop import collect_new, evaluation_metrics, parse_evaluation, summarise_evaluation
from swarm.wire import EvaluationSummary
from tests.golden import assert_golden
from tests.swarm.server.support import Clock, RecordingTracker, Served, eventually, job, serving


async def test_a_whole_training_trains_what_was_sampled_and_ends(tmp_path: Path) -> None:
    tracker = RecordingTracker()
    async with serving(tmp_path, job(steps=3, checkpoint_every=2), tracker=lambda _: tracker) as served:
        for _ in range(3):
            await served.play_step(turns=3)
        status = await served.until(state="ROLLING", finished=True)
        assert (status["step"], status["policy_version"], status["needed_episodes"]) == (3, 3, 0)
        assert status["stillness"] is None
        assert (await served.chat(await served.begin("a", kind="eval"), "hi")).status == 200
        batches, seen = served.backend.learner.batches, served.backend.engine.seen
    check_batches(batches, [prompt + sampled for prompt, sampled in seen])
    assert {path.name for path in (tmp_path / "checkpoints").glob("*/*")} == {"step-000002", "step-000003"}
    assert [step for step, _ in tracker.logged] == [1, 2, 3]
    assert all(name.startswith("tracker") for name in tracker.threads)
    assert tracker.finished >= 1
    check_metrics(tracker.logged[-1][1])


def check_batches(batches: list[Batch], seen: list[tuple[int, ...]]) -> None:
    assert [batch.step for batch in batches] == [1, 2, 3]
    for version, batch in enumerate(batches):
        assert [episode.group.partition("#")[0] for episode in batch.episodes] == ["a", "a", "b", "b"]
        assert list(batch.episodes) == sorted(batch.episodes, key=lambda e: (e.group, e.episode_id))
        rows = [row for episode in batch.episodes for row in episode.rows]
        assert len(rows) == 4
        assert all(row.ids in seen for row in rows)
        assert {v for row in rows for v in row.versions} == {-1, version}


def check_metrics(metrics: dict[str, float]) -> None:
    expected = {
        "critic/rewards/mean": 0.5, "critic/success/mean": 0.5, "num_turns/mean": 3, "batch/constant_groups": 0,
        "drift/clean": 8, "drift/fork": 0, "merge/rows": 4, "lease/begun": 12, "lease/ended": 12,
        "training/global_step": 3, "episodes/total": 12,
    }  # fmt: skip
    assert {name: metrics[name] for name in expected} == expected
    assert 1 < metrics["merge/ratio"] < metrics["merge/tree_ratio"]
    assert {"response_length/mean", "timing_s/gen", "timing_s/update_actor", "actor/trained_tokens"} <= metrics.keys()


@pytest.mark.parametrize("overlap", [0, 1])
async def test_a_finished_training_with_a_learning_rate_of_0_says_what_became_of_the_weights(
    overlap: int, tmp_path: Path
) -> None:
    async with serving(tmp_path, job(steps=2, learning_rate=0.0, max_staleness=overlap)) as served:
        assert (await served.until(state="ROLLING"))["stillness"] is None
        for _ in range(2):
            await served.play_step()
        found = (await served.until(state="ROLLING", finished=True))["stillness"]
        weights = served.backend.weights()
    assert found == {"before": weights, "after": weights, "probs_tolerance": None}


@pytest.mark.parametrize("endless", [False, True])
async def test_a_generation_in_flight_is_waited_for_or_fenced_and_later_ones_wait_for_the_update(
    tmp_path: Path, endless: bool
) -> None:
    clock = Clock()
    async with serving(tmp_path, job(drain_timeout_s=10), clock=clock) as served:
        first, patient = await served.begin("e", kind="eval"), await served.begin("e", kind="eval")
        leases, engine = await served.begin_batch(), served.backend.engine
        engine.hold()
        early = asyncio.create_task(served.chat(first, "early"))
        await eventually(lambda: engine.active, lambda active: active == 1)
        ended = await asyncio.gather(*(served.end(lease) for lease in leases))
        assert [answer.status for answer in ended] == [200] * 4
        await served.until(state="ROLLING_POST")
        late = asyncio.create_task(served.chat(patient, "late"))
        await eventually(lambda: served.rollout.counts["calls"], lambda calls: calls == 6)
        assert (engine.active, served.backend.learner.version) == (1, 0)
        if endless:
            clock.now += 11
            assert ((await early).status, (await early).code) == (409, "lease_lost")
        engine.release()
        assert endless or (await early).body["system_fingerprint"] == "policy-0"
        assert (await late).body["system_fingerprint"] == "policy-1"


async def test_a_training_that_breaks_down_by_itself_is_told_apart_and_logged(tmp_path: Path) -> None:
    tracker = RecordingTracker()

    def broken(batch: Batch) -> Mapping[str, float]:
        raise NotFinite("loss nan")

    async with serving(tmp_path, job(steps=3), tracker=lambda _: tracker) as served:
        await served.play_step()
        assert (await served.until(step=1))["not_finite"] is False
        served.backend.learner.update = broken  # type: ignore[method-assign]
        await served.play_step()
        status = await served.until(state="FAILED", reason="loss nan")
    assert (status["not_finite"], status["step"]) == (True, 1)
    assert tracker.logged[-1] == (2, {"training/not_finite": 1.0})


async def test_an_update_that_breaks_fails_the_server_and_tells_those_who_wait(served: Served) -> None:
    served.backend.learner.fail_next = "loss is NaN"
    waiting = [asyncio.create_task(served.play(task)) for task in "aabb"]
    await asyncio.gather(*waiting)
    begun = await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 10})
    assert (begun.status, begun.code) == (500, "server_failed")
    assert "loss is NaN" in begun.message
    status = await served.until(state="FAILED", reason="loss is NaN", updating=False)
    assert status["step"] == 0
    restart = await served.post("/engine/start", served.admin)
    assert (restart.status, restart.code) == (500, "server_failed")
    assert (await served.post("/engine/stop", served.admin)).body["state"] == "OFFLINE"
    await served.post("/engine/start", served.admin)
    await served.until(state="ROLLING", reason=None)


async def test_the_watchdog_sees_a_dead_backend_and_frees_who_waits_in_calls_and_begins(served: Served) -> None:
    lease = await served.begin("a")
    for task in "abb":
        await served.begin(task)
    served.backend.engine.hold()
    call = asyncio.create_task(served.chat(lease, "hi"))
    begin = asyncio.create_task(served.post("/episodes", served.admin, {"task_id": "c", "wait_s": 30}))
    await eventually(lambda: served.backend.engine.active, lambda active: active == 1)
    served.backend.die("CUDA error")
    for answer in (await call, await begin, await served.chat(lease, "hi"), await served.end(lease)):
        assert (answer.status, answer.code) == (500, "server_failed")
        assert "CUDA error" in answer.message


@pytest.mark.parametrize(
    "place",
    ["FakeBackend.start", "FakeEngine.generate", "FakeLearner.update", "FakeBackend.publish", "FakeLearner.save"],
)
async def test_a_backend_that_breaks_anywhere_fails_the_server_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def broken(*_: object) -> Any:
        raise BackendError(f"broke at {place}")

    async with serving(tmp_path, start=False) as served:
        monkeypatch.setattr(f"swarm.backends.fake.{place}", broken)
        served.server.load(job(steps=1))
        await served.server.start()
        with contextlib.suppress(AssertionError):
            await served.play_step()
        status = await served.until(state="FAILED")
        assert f"broke at {place}" in status["reason"]
        told = await served.post("/episodes", served.admin, {"task_id": "t", "wait_s": 5})
        assert (told.code, place in told.message) == ("server_failed", True)


async def test_a_tracker_that_cannot_finish_is_told_and_the_engine_can_start_again(tmp_path: Path) -> None:
    class FullDisk(RecordingTracker):
        def finish(self) -> None:
            raise OSError("disk full")

    queue = [FullDisk(), RecordingTracker()]
    async with serving(tmp_path, tracker=lambda _: queue.pop(0)) as served:
        stopped = await served.post("/engine/stop", served.admin)
        assert (stopped.status, stopped.code) == (500, "server_failed")
        assert "disk full" in stopped.message
        assert served.backend.stopped
        assert (await served.status())["state"] == "OFFLINE"
        assert (await served.post("/engine/start", served.admin)).status == 200
        await served.until(state="ROLLING")


async def test_a_start_while_the_engine_still_stops_boots_it_afterwards(tmp_path: Path) -> None:
    slow = Slow(job())
    queue: list[FakeBackend] = [slow, FakeBackend(job())]
    async with serving(tmp_path, backend=lambda _: queue.pop(0)) as served:
        await served.play_step()
        await served.until(state="WEIGHT_SYNCING")
        stopping = asyncio.create_task(served.post("/engine/stop", served.admin))
        await served.until(state="OFFLINE")
        starting = asyncio.create_task(served.post("/engine/start", served.admin))
        refused = await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 5})
        assert (refused.status, refused.code) == (503, "engine_unavailable")
        slow.go.set()
        assert (await stopping).status == (await starting).status == 200
        await served.until(state="ROLLING", step=1)  # its batch was settled: it is learned again, by the new engine
        assert slow.stopped


class Slow(FakeBackend):
    def __init__(self, wanted: Job) -> None:
        super().__init__(wanted)
        self.go, update = threading.Event(), self.learner.update

        def slow(batch: Batch) -> Mapping[str, float]:
            assert self.go.wait(120)
            return update(batch)

        self.learner.update = slow  # type: ignore[method-assign]


Outcomes = list[tuple[float, bool | None]]


async def due(served: Served, step: int, episodes: int) -> None:
    await served.play_to(step)
    await served.until(awaited_evaluations=episodes, state="ROLLING")


async def evaluated_at(served: Served, step: int, *outcomes: bool) -> None:
    await due(served, step, len(outcomes))
    await served.evaluate(*outcomes)
    await eventually(served.status, lambda status: (status["evaluation"] or {}).get("step") == step)


def saved(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("checkpoints/*/step-*")}


async def test_training_waits_every_k_steps_the_last_one_too_and_then_it_is_finished(tmp_path: Path) -> None:
    wanted = job(steps=4, eval_every=2, evaluation_episodes=2)
    async with serving(tmp_path, wanted) as served:
        await due(served, 1, 0)
        await evaluated_at(served, 2, True, False)
        await served.play_step()
        await served.play_step()
        last = await served.until(step=4, awaited_evaluations=2)
        assert not last["finished"]
        assert (await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 0})).status == 429
        waits = await eventually(served.status, lambda status: status["waiting"] is not None)
        assert_golden(waits["waiting"])
        waiting = asyncio.create_task(served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 20}))
        await served.evaluate(True, True)
        done = await served.until(finished=True)
        assert (await waiting).code == "job_finished", "nobody begins in vain what is never trained"
        assert done["best"] == {"step": 4, "episodes": 2, "reward": 1.0, "success": 1.0} == done["evaluation"]
        assert served.rollout.counts["drop_job_finished"] == 0


async def test_the_best_checkpoint_outlives_the_newest_ones_until_another_is_better(tmp_path: Path) -> None:
    wanted = job(steps=9, eval_every=1, evaluation_episodes=4, checkpoints_kept=1, checkpoint_every=100)
    good, bad, perfect = (True, True, True, False), (True, False, False, False), (True,) * 4
    async with serving(tmp_path, wanted) as served:
        await evaluated_at(served, 1, *bad)
        await evaluated_at(served, 2, *good)
        await evaluated_at(served, 3, *bad)
        await evaluated_at(served, 4, *good)
        assert (await served.status())["best"]["step"] == 2, "of equal ones the earlier"
        assert saved(tmp_path) == {"step-000002", "step-000004"}
        told = await served.get("/checkpoints")
        assert [one["step"] for one in told["checkpoints"]] == [4, 2]
        assert told["best"] == {"step": 2, "episodes": 4, "reward": 0.75, "success": 0.75}
        await evaluated_at(served, 5, *perfect)
        await evaluated_at(served, 6, *bad)
        await eventually(lambda: saved(tmp_path), lambda found: found == {"step-000005", "step-000006"})
        await served.server.stop()
        assert (await served.get("/checkpoints"))["best"]["step"] == 5, "also while the engine is off"


async def test_evaluations_at_named_steps_keep_no_best_and_tell_nobody_what_they_came_to(tmp_path: Path) -> None:
    """A study's evaluator plays hidden tasks then, and who trains may read the status."""
    wanted = job(steps=3, evaluate_after=(1,), evaluation_episodes=1)
    async with serving(tmp_path, wanted) as served:
        await due(served, 1, 1)
        await served.evaluate(True)
        await served.play_step()
        status = await served.until(step=2, state="ROLLING")
        history = await served.get("/history")
    assert (status["best"], status["evaluation"]) == (None, None)
    assert "eval/" not in str(history)


def test_a_schedule_that_contradicts_itself_or_never_comes_is_refused_and_no_step_depends_on_one() -> None:
    with pytest.raises(ValidationError, match=r"evaluate_after or eval_every; found both \(\[1\] and 2\)"):
        job(steps=4, evaluate_after=(1,), eval_every=2)
    with pytest.raises(ValidationError, match=r"eval_every.*found 3 and 2"):
        job(steps=2, eval_every=3)
    with pytest.raises(ValidationError, match="eval_every"):
        job(eval_every=0)
    for wrong in ((2, 1), (1, 1), (0,)):
        with pytest.raises(ValidationError, match="evaluate_after"):
            job(evaluate_after=wrong)
    for scheduled in (job(eval_every=1), job(evaluate_after=(1,), evaluation_episodes=8)):
        assert scheduled.continues(job())
        assert job(eval_every=None, evaluate_after=()).digest() == job().digest() != scheduled.digest()
    every = job(steps=5, eval_every=2)
    assert [step for step in range(6) if every.evaluates_after(step)] == [2, 4]


@pytest.mark.parametrize(
    ("outcomes", "success"),
    [([(1.0, True), (0.0, False)], 0.5), ([(1.0, True), (0.0, None)], None), ([(1.0, None), (0.0, None)], None)],
)
def test_an_evaluation_knows_success_where_every_episode_said_it(outcomes: Outcomes, success: float | None) -> None:
    found = summarise_evaluation(7, outcomes)
    assert found == EvaluationSummary(step=7, episodes=2, reward=0.5, success=success)
    told: Mapping[str, float] = evaluation_metrics(found)
    assert parse_evaluation(7, told) == found
    assert parse_evaluation(7, {"critic/rewards/mean": 1.0}) is None


async def test_who_evaluates_ends_with_a_server_that_failed_and_after_a_while_with_one_that_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.environments.play.ENGINE_OFF_S", 0.2)
    async with (
        serving(tmp_path, job(evaluate_after=(1,))) as served,
        AsyncSwarmClient(served.url, served.admin) as client,
        asyncio.timeout(120),
    ):
        served.server.training.fail("its learner broke")
        with pytest.raises(ServerFailed, match="its learner broke"):
            await anext(pending_evaluations(client, 64))
        await client.stop()
        with pytest.raises(EngineUnavailable, match="is off"):
            await anext(pending_evaluations(client, 64))
    async with AsyncSwarmClient(served.url, "gone") as client, asyncio.timeout(120):
        with pytest.raises(Unreachable):
            await anext(pending_evaluations(client, 64))


async def test_an_evaluation_longer_than_a_lease_costs_no_group_its_episodes(tmp_path: Path) -> None:
    clock = Clock()
    wanted = job(evaluate_after=(1,), evaluation_episodes=1, surplus_groups=1, episodes_per_step=2)
    async with serving(tmp_path, wanted, clock=clock) as served:
        await asyncio.gather(served.play("b", 1.0), served.play("a", 1.0), served.play("a", 0.0))
        await served.until(state="ROLLING", step=1, awaited_evaluations=1)
        clock.now += 10 * wanted.lease_ttl_s
        served.rollout.sweep()
        await served.evaluate(True)
        await served.play("b", 0.0)
        assert (await served.until(finished=True))["step"] == 2


async def test_an_evaluation_is_one_clients_whoever_else_evaluates(tmp_path: Path) -> None:
    tasks = get_environment("guess").tasks("hidden")[:2]
    async with (
        serving(tmp_path, job(steps=3, eval_every=1, evaluation_episodes=2)) as served,
        AsyncSwarmClient(served.url, served.server.keys.role_key("client")) as client,
    ):
        await due(served, 1, 2)
        evaluations = pending_evaluations(client, 2)
        await served.evaluate(True)
        assert (await served.status())["awaited_evaluations"] == 1
        assert await anext(evaluations) == (1, 2)
        results = await client.evaluate(said, tasks, worst=0.0)
        status = await eventually(served.status, lambda status: status["evaluation"] is not None)
        assert (status["evaluation"]["episodes"], status["evaluation"]["reward"]) == (2, 0.5)
    require_version(results, 1)
    with pytest.raises(InvalidRequest):
        require_version(results, 2)


async def said(episode: Episode[Any]) -> float:
    await episode.chat([{"role": "user", "content": "hi"}])
    return 0.5


def test_a_look_at_what_is_new_frees_its_cycles() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    gc.collect()
    gc.disable()
    try:
        new = weakref.ref(Cycle())
        collect_new()
        assert new() is None
    finally:
        gc.enable()
