"""Clients of the first release go on reading a server that knows more than they, and later ones ask for it."""

from __future__ import annotations

from pathlib import Path

from swarm.client import AsyncSwarmClient
from tests.swarm.earlier_wire import EarlierCheckpoints, EarlierEpisode, EarlierEpisodes
from tests.swarm.server.support import job, serving


async def test_a_checkpoint_that_is_the_best(tmp_path: Path) -> None:
    wanted = job(steps=2, eval_every=1, evaluation_episodes=1)
    async with serving(tmp_path, wanted) as served, AsyncSwarmClient(served.url, served.admin) as client:
        await served.play_step()
        await served.until(awaited_evaluations=1, state="ROLLING")
        await served.evaluate(True)
        await served.until(awaited_evaluations=0)
        best = (await client.checkpoints()).best
        assert best is not None
        assert best.step == 1
        assert EarlierCheckpoints.model_validate(await served.get("/checkpoints")).checkpoints[-1].step == 1


async def test_calls_that_earn_by_themselves(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncSwarmClient(served.url, served.admin, code="0" * 64) as client:
        lease = await served.begin("t")
        assert (await served.chat(lease, headers={"x-ajet-agent": "solver"})).status == 200
        await served.end(lease, 1.0, by_agent={"solver": 0.5})
        (call,) = (await client.episode(lease["episode_id"])).record
        assert (call.reward, call.agent) == (0.5, "solver")
        EarlierEpisodes.model_validate(await served.get("/episodes"))
        EarlierEpisode.model_validate(await served.get(f"/episodes/{lease['episode_id']}"))
