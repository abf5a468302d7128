"""A training that waits for evaluations, every k steps or at named ones, and keeps the best checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from swarm.client import AsyncSwarmClient, Episode
from swarm.environments import get_environment
from swarm.environments.play import pending_evaluations, require_version
from swarm.errors import EngineUnavailable, InvalidRequest, ServerFailed, Unreachable
from swarm.training.loop import evaluation_metrics, parse_evaluation, summarise_evaluation
from swarm.wire import EvaluationSummary
from tests.golden import assert_golden
from tests.swarm.server.support import Clock, Served, eventually, job, serving

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


async def checkpoints(served: Served) -> dict[str, Any]:
    return dict(await served.get("/checkpoints"))


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
        told = await checkpoints(served)
        assert [one["step"] for one in told["checkpoints"]] == [4, 2]
        assert told["best"] == {"step": 2, "episodes": 4, "reward": 0.75, "success": 0.75}
        await evaluated_at(served, 5, *perfect)
        await evaluated_at(served, 6, *bad)
        await eventually(lambda: saved(tmp_path), lambda found: found == {"step-000005", "step-000006"})
        await served.server.stop()
        assert (await checkpoints(served))["best"]["step"] == 5, "also while the engine is off"


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


async def test_who_finds_no_place_and_who_looks_are_told_that_an_evaluation_is_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path, job(evaluate_after=(1,), evaluation_episodes=2)) as served:
        await due(served, 1, 2)
        refused = await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 0})
        assert_golden(refused.message)
        status = await eventually(served.status, lambda status: status["waiting"] is not None)
        assert_golden(status["waiting"])
        await served.evaluate(True, True)
        await served.until(awaited_evaluations=0, waiting=None)


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
        found = await anext(evaluations)
        assert (found.version, found.episodes) == (1, 2)
        results = await client.evaluate(said, tasks, worst=0.0)
        status = await eventually(served.status, lambda status: status["evaluation"] is not None)
        assert (status["evaluation"]["episodes"], status["evaluation"]["reward"]) == (2, 0.5)
    require_version(results, 1)
    with pytest.raises(InvalidRequest):
        require_version(results, 2)


async def said(episode: Episode[Any]) -> float:
    await episode.chat([{"role": "user", "content": "hi"}])
    return 0.5


async def test_the_end_of_an_evaluation_tells_its_tokens_and_says_the_same_again(tmp_path: Path) -> None:
    async with serving(tmp_path, job()) as served:
        lease = await served.begin("t", kind="eval")
        spent = 0
        for _ in range(2):
            answer = await served.chat(lease, "hi")
            spent += answer.body["usage"]["completion_tokens"]
        asked = f"/episodes/{lease['episode_id']}/end"
        first, again = [(await served.post(asked, lease["lease_token"], {"reward": 1.0})).body for _ in range(2)]
    assert spent > 0
    assert first == again == {"episode_id": lease["episode_id"], "state": "ended", "tokens": spent}
