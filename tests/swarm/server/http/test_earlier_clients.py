"""Clients of the first release go on reading a server that knows more than they, and later ones ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swarm.client import AsyncSwarmClient
from tests.swarm.earlier_wire import EarlierCheckpoints, EarlierEpisode, EarlierEpisodes, EarlierStreams
from tests.swarm.server.support import Clock, Served, job, serving


async def told(served: Served, path: str, method: str = "GET", body: Any = None) -> Any:
    answer = await served.call(method, path, served.admin, body)
    assert answer.status == 200, answer
    return answer.body


async def play(served: Served, stream: str) -> None:
    body = {"task_id": "t", "stream": stream, "wait_s": 10.0}
    lease = await told(served, "/episodes", "POST", body)
    assert (await served.chat(lease, "hi")).status == 200
    assert (await served.end(lease)).status == 200


async def test_a_stream_that_is_missing(tmp_path: Path) -> None:
    wanted = job(steps=3, streams={"a": 1, "b": 1}, missing_stream="renormalise", missing_stream_s=60)
    clock = Clock()
    async with serving(tmp_path, wanted, clock=clock) as served, AsyncSwarmClient(served.url, served.admin) as client:
        served.rollout.sweep()
        await play(served, "a")
        clock.now += 61
        await play(served, "a")
        served.rollout.sweep()
        for _ in range(2):
            await play(served, "a")
        await served.until(step=1, state="ROLLING")
        assert {each.name: each.missing for each in (await client.streams()).streams} == {"a": False, "b": True}
        assert {each.name: each.missing for each in (await client.share({"a": 1, "b": 3})).streams}["b"]
        EarlierStreams.model_validate(await told(served, "/streams"))
        EarlierStreams.model_validate(await told(served, "/streams", "POST", {"shares": {"a": 1, "b": 1}}))


async def test_a_checkpoint_that_is_the_best(tmp_path: Path) -> None:
    wanted = job(steps=2, eval_every=1, evaluation_episodes=1)
    async with serving(tmp_path, wanted) as served, AsyncSwarmClient(served.url, served.admin) as client:
        await served.play_step()
        await served.until(awaited_evaluations=1, state="ROLLING")
        lease = await served.begin("t", kind="eval")
        assert (await served.chat(lease, "hi")).status == 200
        await served.end(lease, 1.0, success=True)
        await served.until(awaited_evaluations=0)
        best = (await client.checkpoints()).best
        assert best is not None
        assert best.step == 1
        assert EarlierCheckpoints.model_validate(await told(served, "/checkpoints")).checkpoints[-1].step == 1


async def test_calls_that_earn_by_themselves(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncSwarmClient(served.url, served.admin, code="0" * 64) as client:
        lease = await served.begin("t")
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
        sent = {"authorization": f"Bearer {lease['api_key']}", "x-ajet-agent": "solver"}
        async with served.http.post(f"{served.url}/v1/chat/completions", json=body, headers=sent) as answer:
            assert answer.status == 200
        await served.end(lease, 1.0, by_agent={"solver": 0.5})
        (call,) = (await client.episode(lease["episode_id"])).record
        assert (call.reward, call.agent) == (0.5, "solver")
        EarlierEpisodes.model_validate(await told(served, "/episodes"))
        EarlierEpisode.model_validate(await told(served, f"/episodes/{lease['episode_id']}"))
