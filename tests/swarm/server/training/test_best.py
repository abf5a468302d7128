"""A training that is evaluated every k steps, and keeps the checkpoint that was evaluated best."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from swarm.server.training.evaluations import as_metrics, in_metrics, summed_up
from swarm.wire import EvaluationSummary
from tests.swarm.server.support import Served, eventually, job, serving

Outcomes = list[tuple[float, bool | None]]


async def evaluated_at(served: Served, step: int, *outcomes: bool) -> None:
    """Play up to a step whose evaluation is due, and evaluate it."""
    for done in range((await served.status())["step"], step):
        await served.play_step()
        await served.until(step=done + 1, state="ROLLING")
    await served.until(awaited_evaluations=len(outcomes), state="ROLLING")
    await served.evaluate(*outcomes)
    await eventually(served.status, lambda status: (status["evaluation"] or {}).get("step") == step)


def saved(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("checkpoints/*/step-*")}


def damage(folder: Path) -> None:
    """Empty the folder of the first checkpoint."""
    files = list(folder.glob("checkpoints/*/step-000001/*"))
    assert files
    for file in files:
        file.unlink()


async def checkpoints(served: Served) -> dict[str, Any]:
    return dict(await served.get("/checkpoints?labels=true"))


async def test_training_waits_every_k_steps_the_last_one_too_and_then_it_is_finished(tmp_path: Path) -> None:
    wanted = job(steps=4, eval_every=2, evaluation_episodes=2)
    async with serving(tmp_path, wanted) as served:
        await served.play_step()
        await served.until(step=1, state="ROLLING", awaited_evaluations=0)
        await evaluated_at(served, 2, True, False)
        await served.play_step()
        await served.play_step()
        last = await served.until(step=4, awaited_evaluations=2)
        assert not last["finished"]
        assert (await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 0})).status == 429
        waits = await eventually(served.status, lambda status: status["waiting"] is not None)
        assert waits["waiting"] == "the end waits for 2 evaluation episodes of version 4"
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


async def test_what_was_evaluated_is_not_evaluated_again_after_a_restart_and_the_best_stays(tmp_path: Path) -> None:
    wanted = job(steps=6, eval_every=2, evaluation_episodes=2, checkpoints_kept=1, checkpoint_every=1)
    async with serving(tmp_path, wanted) as served:
        await evaluated_at(served, 2, True, True)
        await evaluated_at(served, 4, True, False)
    async with serving(tmp_path, wanted) as served:
        status = await served.until(step=4, awaited_evaluations=0)
        assert (status["best"]["step"], status["evaluation"]["step"]) == (2, 4)
        assert status["metrics"]["eval/success/mean"] == 0.5
        assert saved(tmp_path) == {"step-000002", "step-000004"}
        await evaluated_at(served, 6, False, False)
        await served.until(finished=True)
    async with serving(tmp_path, wanted) as served:
        assert (await served.until(finished=True))["best"]["step"] == 2, "and a finished training stays finished"


async def test_an_evaluation_that_the_server_s_death_cut_short_is_played_again_whole(tmp_path: Path) -> None:
    """Its checkpoint was saved before, and what was played of it counts for nothing."""
    wanted = job(steps=4, eval_every=1, evaluation_episodes=2, checkpoint_every=100)
    async with serving(tmp_path, wanted) as served:
        await served.play_step()
        await served.until(step=1, state="ROLLING", awaited_evaluations=2)
        await served.evaluate(True)
        assert saved(tmp_path) == {"step-000001"}
    async with serving(tmp_path, wanted) as served:
        status = await served.until(step=1, awaited_evaluations=2)
        assert (status["best"], status["evaluation"]) == (None, None)
        assert [one.step for one in served.backend.learner.batches] == [], "nothing is learned again"
        await evaluated_at(served, 1, False, False)
        assert (await served.status())["best"] == {"step": 1, "episodes": 2, "reward": 0.0, "success": 0.0}


async def test_an_evaluation_of_fewer_episodes_does_not_win_by_luck_and_the_job_may_ask_for_another_number(
    tmp_path: Path,
) -> None:
    wanted = job(steps=4, eval_every=1, evaluation_episodes=8)
    async with serving(tmp_path, wanted) as served:
        await evaluated_at(served, 1, *[True] * 7, False)
    async with serving(tmp_path, wanted.model_copy(update={"evaluation_episodes": 1})) as served:
        await evaluated_at(served, 2, True)
        status = await served.status()
        assert (status["evaluation"]["success"], status["best"]["step"]) == (1.0, 1)


async def test_the_weights_of_a_step_that_is_learned_again_keep_their_evaluation(tmp_path: Path) -> None:
    """The checkpoint of step 1 was damaged: step 1 is learned from the store, where its evaluation is too."""
    wanted = job(steps=4, eval_every=1, evaluation_episodes=1, checkpoints_kept=4)
    async with serving(tmp_path, wanted) as served:
        await evaluated_at(served, 1, True)
    damage(tmp_path)
    async with serving(tmp_path, wanted) as served:
        status = await served.until(step=1, awaited_evaluations=0)
        assert [one.step for one in served.backend.learner.batches] == [1]
        assert (status["best"]["step"], status["evaluation"]["step"]) == (1, 1)
        history = (await served.get("/history"))["steps"]
        assert history[0]["metrics"]["eval/success/mean"] == 1.0


async def test_evaluations_at_named_steps_keep_no_best_and_tell_nobody_what_they_came_to(tmp_path: Path) -> None:
    """A study's evaluator plays hidden tasks then, and who trains may read the status."""
    wanted = job(steps=3, evaluate_after=(1,), evaluation_episodes=1)
    async with serving(tmp_path, wanted) as served:
        await served.play_step()
        await served.until(step=1, state="ROLLING", awaited_evaluations=1)
        await served.evaluate(True)
        await served.play_step()
        status = await served.until(step=2, state="ROLLING")
        history = await served.get("/history")
    assert (status["best"], status["evaluation"]) == (None, None)
    assert "eval/" not in str(history)


def test_a_schedule_that_contradicts_itself_or_never_comes_is_refused_and_no_step_depends_on_one() -> None:
    with pytest.raises(ValidationError, match=r"evaluate_after or eval_every; found both \(\[1\] and 2\)"):
        job(steps=4, evaluate_after=(1,), eval_every=2)
    with pytest.raises(ValidationError, match=r"eval_every of at most steps.*found 3 and 2"):
        job(steps=2, eval_every=3)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        job(eval_every=0)
    assert job(eval_every=1).continues(job())
    assert job(eval_every=None).digest() == job().digest() != job(eval_every=1).digest()
    every = job(steps=5, eval_every=2)
    assert [step for step in range(6) if every.evaluates_after(step)] == [2, 4]


@pytest.mark.parametrize(
    ("outcomes", "success"),
    [([(1.0, True), (0.0, False)], 0.5), ([(1.0, True), (0.0, None)], None), ([(1.0, None), (0.0, None)], None)],
)
def test_an_evaluation_knows_success_where_every_episode_said_it(outcomes: Outcomes, success: float | None) -> None:
    found = summed_up(7, outcomes)
    assert found == EvaluationSummary(step=7, episodes=2, reward=0.5, success=success)
    told: Mapping[str, float] = as_metrics(found)
    assert in_metrics(7, told) == found
    assert in_metrics(7, {"critic/rewards/mean": 1.0}) is None
