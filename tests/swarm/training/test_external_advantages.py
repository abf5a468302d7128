"""Advantages from outside: training waits for them, learns with them, and learns again with the same ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarm.training import loop
from swarm.wire import GivenAdvantages
from tests.swarm.server.support import Served, eventually, job, serving

NONE = {"batch": "", "rewards": [], "groups": []}


async def awaited(served: Served) -> dict[str, Any]:
    return dict(await eventually(lambda: served.get("/advantages", "client"), lambda batch: batch["batch"] != ""))


async def give(served: Served, batch: str, *advantages: Any) -> Any:
    return await served.post(
        "/advantages", served.server.keys.role_key("client"), {"batch": batch, "advantages": advantages}
    )


def learned(served: Served) -> list[list[float | None]]:
    return [[episode.advantage for episode in batch.episodes] for batch in served.backend.learner.batches]


async def test_a_batch_is_learned_with_what_a_client_gave_also_after_a_restart(tmp_path: Path) -> None:
    wanted = job(steps=3, checkpoint_every=3, external_advantages=True)
    async with serving(tmp_path, wanted) as served:
        assert (await served.get("/advantages"))["rewards"] == []
        await served.play_step()
        batch = await awaited(served)
        assert (batch["rewards"], batch["groups"]) == ([0.0, 1.0, 0.0, 1.0], [0, 0, 1, 1])
        assert "advantages of 4 episodes" in (await served.status())["waiting"]
        assert (await give(served, batch["batch"], 1.0)).status == 400, "one is not four"
        assert (await give(served, "another", 1.0, 2.0, 3.0, 4.0)).body == batch
        assert (await give(served, batch["batch"], 0.1, -2.0, 3.0, 1e-300)).body == NONE
        await served.until(step=1, state="ROLLING")
        assert (await give(served, batch["batch"], 0.0, 0.0, 0.0, 0.0)).body == NONE, "it is settled"
        await served.play_step()
        await awaited(served)  # and the server goes away with a batch that nobody answered
    async with serving(tmp_path, start=False) as served:
        served.server.load(wanted)
        await served.server.start()
        batch = await awaited(served)  # of what had ended
        assert learned(served) == [[0.1, -2.0, 3.0, 1e-300]]
        await give(served, batch["batch"], 1.0, 2.0, 3.0, 4.0)
        await served.until(step=2, state="ROLLING")
        assert learned(served)[1:] == [[1.0, 2.0, 3.0, 4.0]]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e300", '"1"'])
async def test_what_is_no_usable_number_is_refused_and_waited_for_on(tmp_path: Path, number: str) -> None:
    async with serving(tmp_path, job(external_advantages=True)) as served:
        await served.play_step()
        batch = await awaited(served)
        body = f'{{"batch": "{batch["batch"]}", "advantages": [1, 2, 3, {number}]}}'
        answer = await served.call("POST", "/advantages", served.admin, raw=body, content_type="application/json")
        assert answer.status == (200 if number == '"1"' else 400)
        assert (await served.get("/advantages"))["batch"] == ("" if number == '"1"' else batch["batch"])


async def test_a_batch_that_nobody_answers_fails_the_training_and_names_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ADVANTAGES_S", 0.05)
    async with serving(tmp_path, job(external_advantages=True)) as served:
        await served.play_step()
        status = await eventually(served.status, lambda status: status["state"] == "FAILED")
    assert status["reason"].startswith("advantage: expected the advantages of step 1 within")


async def test_numbers_that_come_as_training_gives_up_are_taken_by_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, job(external_advantages=True)) as served:
        await served.play_step()
        batch, training = await awaited(served), served.server.training
        for task in training._tasks:
            task.cancel()  # as a stop and the end of its patience do
        given = GivenAdvantages(batch=batch["batch"], advantages=(1.0, 2.0, 3.0, 4.0))
        assert training.take_advantages(given).batch == batch["batch"]


async def test_an_episode_of_weight_0_is_of_no_group_that_a_client_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path, job(external_advantages=True)) as served:
        for reward, weight in ((1.0, 1.0), (5.0, 0.0)):
            lease = await served.begin("a")
            await served.chat(lease)
            await served.end(lease, reward, weight=weight)
        await served.play_step("bb")
        batch = await awaited(served)
        assert (batch["rewards"], batch["groups"]) == ([1.0, 0.0, 1.0], [0, 1, 1])
        await give(served, batch["batch"], 1.0, 2.0, 3.0)
        await served.until(step=1, state="ROLLING")
        assert learned(served) == [[1.0, 0.0, 2.0, 3.0]]


async def test_a_job_without_them_waits_for_none(served: Served) -> None:
    await asyncio.wait_for(served.play_to(1), 60)
    assert learned(served) == [[None] * 4]
    assert (await give(served, "1", 1.0)).body == NONE
