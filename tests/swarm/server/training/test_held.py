"""A training that waits after steps of its schedule until their weights were evaluated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from swarm.client import AsyncSwarmClient, Episode
from swarm.environments import get_environment
from swarm.environments.playing.during import awaited, require_of
from swarm.errors import EngineUnavailable, InvalidRequest, ServerFailed, Unreachable
from tests.swarm.server.support import Clock, Served, eventually, job, serving


async def begun(served: Served) -> int:
    return (await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 0})).status


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_after_its_step_training_waits_for_the_evaluation_and_then_goes_on(
    tmp_path: Path, max_staleness: int
) -> None:
    wanted = job(steps=3, evaluate_after=(1, 2), evaluation_episodes=3, max_staleness=max_staleness)
    async with serving(tmp_path, wanted) as served:
        for step in (1, 2):
            await served.play_step()
            await served.until(state="ROLLING", step=step, awaited_evaluations=3)
            assert await begun(served) == 429
            await served.evaluate(True, True)
            assert (await served.status())["awaited_evaluations"] == 1
            assert await begun(served) == 429
            await served.evaluate(True)
            await served.until(awaited_evaluations=0, policy_version=step)
        await served.play_step()
        assert (await served.until(finished=True))["step"] == 3


async def test_who_finds_no_place_and_who_looks_are_told_that_an_evaluation_is_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path, job(evaluate_after=(1,), evaluation_episodes=2)) as served:
        await served.play_step()
        await served.until(state="ROLLING", step=1, awaited_evaluations=2)
        refused = await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 0})
        assert refused.message.startswith("training waits for 2 evaluation episodes of version 1")
        status = await eventually(served.status, lambda status: status["waiting"] is not None)
        assert status["waiting"] == "step 2 waits for 2 evaluation episodes of version 1"
        await served.evaluate(True, True)
        await served.until(awaited_evaluations=0, waiting=None)


async def test_who_evaluates_ends_with_a_server_that_failed_and_after_a_while_with_one_that_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.environments.playing.during.ENGINE_OFF_S", 0.2)
    async with (
        serving(tmp_path, job(evaluate_after=(1,))) as served,
        AsyncSwarmClient(served.url, served.admin) as client,
        asyncio.timeout(20),
    ):
        served.server.training.fail("its learner broke")
        with pytest.raises(ServerFailed, match="its learner broke"):
            await anext(awaited(client, 64))
        await client.stop()
        with pytest.raises(EngineUnavailable, match="is off"):
            await anext(awaited(client, 64))
    async with AsyncSwarmClient(served.url, "gone") as client, asyncio.timeout(20):
        with pytest.raises(Unreachable):
            await anext(awaited(client, 64))


async def test_an_evaluation_that_began_with_other_weights_is_none_of_the_awaited(tmp_path: Path) -> None:
    async with serving(tmp_path, job(evaluate_after=(1,), evaluation_episodes=1)) as served:
        early = await served.begin("t", kind="eval")
        await served.play_step()
        await served.until(state="ROLLING", step=1, awaited_evaluations=1)
        await served.end(early)
        assert (await served.status())["awaited_evaluations"] == 1


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


async def test_a_client_that_evaluates_too_is_noticed_by_who_was_to_evaluate(tmp_path: Path) -> None:
    """It takes plays of the awaited ones, so that training goes on before all of them are played."""
    task = get_environment("guess").tasks("hidden")[0]
    wanted = job(steps=3, evaluate_after=(1, 2), evaluation_episodes=2)
    async with serving(tmp_path, wanted) as served:
        client = AsyncSwarmClient(served.url, served.server.keys.role("client"))
        async with client:
            await served.play_step()
            await served.until(state="ROLLING", step=1, awaited_evaluations=2)
            evaluations = awaited(client, 2)
            await served.evaluate(True)
            with pytest.raises(InvalidRequest, match=r"found one that waits for 1.*let nobody else evaluate"):
                await anext(evaluations)
            first = await client.evaluate(said, [task])
            await served.until(awaited_evaluations=0)
            await served.play_step()
            await served.until(state="ROLLING", step=2, awaited_evaluations=2)
            second = await client.evaluate(said, [task])
    with pytest.raises(InvalidRequest, match=r"found 1 that began with version 2.*let nobody else evaluate"):
        require_of([*first, *second], 1)
    require_of(first, 1)


async def said(episode: Episode[Any]) -> float:
    await episode.chat([{"role": "user", "content": "hi"}])
    return 1.0


async def test_the_end_of_an_evaluation_tells_its_tokens_to_who_asks_and_says_the_same_again(tmp_path: Path) -> None:
    async with serving(tmp_path, job()) as served:
        lease = await served.begin("t", kind="eval")
        spent = 0
        for _ in range(2):
            answer = await served.chat(lease, "hi")
            spent += answer.body["usage"]["completion_tokens"]
        asked = f"/episodes/{lease['episode_id']}/end"
        first, again = [
            (await served.post(f"{asked}?tokens=true", lease["lease_token"], {"reward": 1.0})).body for _ in range(2)
        ]
        plain = (await served.post(asked, lease["lease_token"], {"reward": 1.0})).body
        wrong = await served.post(f"{asked}?token=true", lease["lease_token"], {"reward": 1.0})
    assert spent > 0
    assert first == again == {"episode_id": lease["episode_id"], "state": "ended", "tokens": spent}
    assert plain == {"episode_id": lease["episode_id"], "state": "ended"}, "as clients of earlier releases know it"
    assert wrong.status == 400


async def test_a_client_is_told_the_tokens_of_each_play_that_it_evaluates(tmp_path: Path) -> None:
    tasks = get_environment("guess").tasks("hidden")[:3]
    async with (
        serving(tmp_path, job()) as served,
        AsyncSwarmClient(served.url, served.server.keys.role("client")) as client,
    ):
        results = await client.evaluate(said, tasks)
        listed = {episode.task_id: episode.tokens for episode in (await client.episodes()).episodes}
    assert {result.task_id: result.tokens for result in results} == listed
    assert all(tokens > 0 for tokens in listed.values())


def test_a_schedule_is_steps_in_growing_order_and_no_step_depends_on_it() -> None:
    for wrong in ((2, 1), (1, 1), (0,)):
        with pytest.raises(ValidationError, match=r"growing order|greater than or equal to 1"):
            job(evaluate_after=wrong)
    plain = job()
    scheduled = job(evaluate_after=(1,), evaluation_episodes=8)
    assert scheduled.continues(plain)
    assert plain.digest() == job(evaluate_after=()).digest() != scheduled.digest()
