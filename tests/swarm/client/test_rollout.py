"""The client's loop around an agent, against a real server: what agents get wrong is counted, and training goes on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AgentFailed, AsyncSwarmClient, Episode, NamedTask
from swarm.client.agents import Result
from swarm.errors import InvalidRequest, JobConflict, LeaseLost, ServerFailed
from swarm.wire import Ack, ServerState
from tests.swarm.server.support import Served, job, serving

TASKS = [NamedTask("a"), NamedTask("b")]
HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, job(steps=3)) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncSwarmClient]:
    async with AsyncSwarmClient(served.url, served.admin) as made:
        yield made


async def good(episode: Episode[Any]) -> float:
    await episode.chat(HI)
    return 1.0


def at_first(misplay: Callable[[], Result]) -> Any:
    """Return an agent whose first three plays end in `misplay`."""
    plays = iter(range(10_000))

    async def agent(episode: Episode[Any]) -> Result:
        await episode.chat(HI)
        return misplay() if next(plays) < 3 else 1.0

    return agent


def raises() -> float:
    raise RuntimeError("tool broke")


@pytest.mark.parametrize(
    ("misplay", "reason"),
    [
        (lambda: math.nan, "agent: InvalidRequest"),
        (lambda: math.inf, "agent: InvalidRequest"),
        (lambda: 1e300, "agent: InvalidRequest"),
        (raises, "agent: RuntimeError"),
    ],
)
async def test_a_play_without_a_usable_reward_is_dropped_and_played_again(
    served: Served, client: AsyncSwarmClient, misplay: Callable[[], Result], reason: str
) -> None:
    summary = await client.rollout(at_first(misplay), TASKS, concurrency=4)
    assert summary.dropped == {reason: 3}
    assert (summary.episodes, summary.reward_mean) == (12, 1.0)
    assert served.server.training.rollout.counts["aborted"] == 3
    assert len(served.server.training.rollout.leases) == 0


async def test_an_agent_that_always_fails_ends_the_rollout_with_its_last_error(client: AsyncSwarmClient) -> None:
    async def agent(_: Episode[Any]) -> float:
        return raises()

    with pytest.raises(AgentFailed, match="tool broke"):
        await client.rollout(agent, TASKS, concurrency=4)


async def test_a_reward_that_is_no_number_is_one_clear_error_by_hand(client: AsyncSwarmClient) -> None:
    episode = await client.begin(TASKS[0])
    with pytest.raises(InvalidRequest, match=r"reward.*nan"):
        await episode.end(math.nan)
    assert (await episode.abort()).state == "aborted"


async def test_an_engine_stopped_before_the_end_loses_the_play_and_not_the_rollout(
    served: Served, client: AsyncSwarmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, end = asyncio.Event(), Episode.end

    async def observed(episode: Episode[Any], reward: float, success: bool | None = None, **own: Any) -> Ack:
        try:
            return await end(episode, reward, success, **own)
        finally:
            answered.set()

    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        if not answered.is_set():
            await client.stop()
        return 1.0

    monkeypatch.setattr(Episode, "end", observed)
    playing = asyncio.create_task(client.rollout(agent, TASKS, concurrency=1))
    await answered.wait()
    await client.ensure_training(job(steps=3))
    summary = await playing
    assert (summary.episodes, summary.dropped) == (12, {"lease_lost": 1})


async def test_a_fenced_play_is_counted_and_played_again(served: Served, client: AsyncSwarmClient) -> None:
    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        rollout = served.server.training.rollout
        if not rollout.counts["fenced"]:
            (found,) = [open_ for open_ in rollout.leases if open_.id == episode.id]
            rollout.ledger.fence(found, "lease_expired")
            with pytest.raises(LeaseLost):
                await episode.chat(HI)
        return 1.0

    summary = await client.rollout(agent, TASKS, concurrency=4)
    assert summary.dropped == {"lease_lost": 1}
    assert summary.episodes == 12


async def test_a_server_that_fails_ends_the_rollout_with_its_reason(served: Served, client: AsyncSwarmClient) -> None:
    served.backend.learner.fail_next = "loss is NaN"
    with pytest.raises(ServerFailed, match="loss is NaN"):
        await client.rollout(good, TASKS, concurrency=8)


async def test_who_lost_the_race_to_load_a_job_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path, start=False) as served, AsyncSwarmClient(served.url, served.admin) as client:
        start = served.server.start

        async def overtaken() -> Any:
            served.server.load(job(steps=7))  # another client's POST /job comes between this one's two calls
            return await start()

        served.server.start = overtaken  # type: ignore[method-assign]
        with pytest.raises(JobConflict, match="trains job"):
            await client.ensure_training(job())
        assert (await client.status()).state is not ServerState.OFFLINE
