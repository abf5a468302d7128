"""Streams through the client: who begins again goes on where the stream stands, and shares change while training."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.errors import Forbidden, InvalidRequest, JobConflict
from swarm.wire import tasks_digest
from tests.golden import assert_golden
from tests.swarm.factories import HI, good
from tests.swarm.server.support import Served, eventually, job, serving

TASKS = [NamedTask(name) for name in "abcde"]


@pytest.mark.parametrize(
    ("died_after", "cursor", "goes_on_with"), [(6, 3, "ddeeaa"), (5, 2, "cddeeaa"), (2, 1, "bbccddeeaa")]
)
async def test_a_restarted_client_goes_on_from_the_breakpoint(
    client: AsyncSwarmClient, died_after: int, cursor: int, goes_on_with: str
) -> None:
    played: list[str] = []
    enough, dead = asyncio.Event(), asyncio.Event()

    async def agent(episode: Episode[Any]) -> float:
        if len(played) == died_after and not dead.is_set():
            enough.set()
            await dead.wait()
        await episode.chat(HI)
        played.append(episode.task.id)
        return 1.0

    first = asyncio.create_task(client.rollout(agent, TASKS, concurrency=1))
    await enough.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    dead.set()
    assert "".join(played) == "aabbcc"[:died_after]
    (stream,) = (await client.streams()).streams
    assert (stream.name, stream.cursor, stream.share) == ("default", cursor, None)
    played[:] = []
    summary = await client.rollout(agent, TASKS, concurrency=1)
    assert "".join(played) == goes_on_with
    assert summary.episodes == len(goes_on_with)


@pytest.mark.slow
async def test_any_number_of_clients_share_one_pass_over_the_tasks_through_a_server_restart(tmp_path: Path) -> None:
    """Four clients, each with an order of its own: in every pass each task is played as often as a group takes."""
    tasks, played = [NamedTask(f"t{number}") for number in range(8)], Counter[str]()
    wanted = job(steps=8, episodes_per_step=8, group_size=2)

    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        played[episode.task.id] += 1
        return 1.0

    async def roll(served: Served, shift: int) -> None:
        async with AsyncSwarmClient(served.url, served.admin) as client:
            await client.rollout(agent, tasks[shift:] + tasks[:shift], concurrency=3)

    async with serving(tmp_path, wanted) as served:
        rolling = [asyncio.create_task(roll(served, shift)) for shift in range(4)]
        await eventually(lambda: served.server.training.step, lambda step: step >= 3)
        for one in rolling:
            one.cancel()
        await asyncio.gather(*rolling, return_exceptions=True)
    async with serving(tmp_path, wanted) as served:
        await asyncio.gather(*(roll(served, shift) for shift in range(2)))
        trained = await served.call("GET", "/episodes?limit=1000", served.admin)
    consumed = Counter(e["task_id"] for e in trained.body["episodes"] if e["state"] in ("in_step", "consumed"))
    assert consumed == {task.id: 8 for task in tasks}, "64 episodes are four passes over eight tasks, in groups of two"
    assert sum(played.values()) >= 64


@pytest.mark.parametrize("others", [TASKS[:4], [*TASKS, NamedTask("f")], [NamedTask("a")] * 5])
async def test_a_client_with_other_tasks_is_refused_by_the_streams_name_and_told_what_to_do(
    client: AsyncSwarmClient, others: list[NamedTask]
) -> None:
    known = await client.register_tasks(TASKS)
    with pytest.raises(JobConflict, match=r"'default'") as refusal:
        await client.rollout(good, others)
    assert known.digest[:12] in str(refusal.value)
    assert tasks_digest(t.id for t in others)[:12] in str(refusal.value)
    assert_golden(str(refusal.value))
    await client.register_tasks(others, "mine")
    assert (await client.begin_next(known)).task.id == "a"


async def test_a_mix_of_streams_is_exact_in_every_batch_whoever_is_faster(tmp_path: Path) -> None:
    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        return float(len(episode.id) % 2)

    wanted = job(steps=3, episodes_per_step=10, group_size=2, streams={"math": 3, "code": 2})
    async with serving(tmp_path, wanted) as served, AsyncSwarmClient(served.url, served.admin) as client:
        await asyncio.gather(
            client.rollout(agent, [NamedTask("m")], concurrency=16, stream="math"),
            client.rollout(agent, [NamedTask("c")], concurrency=2, stream="code"),
        )
        metrics = (await served.until(finished=True))["metrics"]
        streams = {stream.name: stream for stream in (await client.streams()).streams}
    assert (metrics["stream/math/episodes"], metrics["stream/code/episodes"]) == (6, 4)
    assert metrics["stream/math/share"] == pytest.approx(0.6)
    assert {name: stream.groups_trained for name, stream in streams.items()} == {"math": 9, "code": 6}
    assert {name: stream.share for name, stream in streams.items()} == {"math": 0.6, "code": 0.4}


async def test_shares_can_be_changed_while_training_by_an_admin(served: Served, client: AsyncSwarmClient) -> None:
    await client.begin(NamedTask("t"), stream="whatever")
    changed = await client.share({"a": 30, "b": 10})
    assert {stream.name: stream.share for stream in changed.streams} == {"a": 0.75, "b": 0.25, "whatever": None}
    with pytest.raises(InvalidRequest, match="stream"):
        await client.begin(NamedTask("t"), stream="unknown")
    with pytest.raises(InvalidRequest, match="above 0"):
        await client.share({"a": 0})
    async with AsyncSwarmClient(served.url, served.server.keys.role_key("client")) as other:
        assert len((await other.streams()).streams) == 3
        with pytest.raises(Forbidden):
            await other.share({"a": 1})
