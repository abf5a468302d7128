"""Evaluations during training feed nothing: token by token what is learned is what is learned without a schedule."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.local import LocalBackend
from swarm.backends.protocols import Batch
from swarm.client import Agent, AsyncSwarmClient
from swarm.environments import get_environment
from swarm.environments.play import agent_of
from swarm.job import Job, TinyModel
from swarm.timelines.node import TrainRow
from tests.swarm.server.support import Served, job, serving

pytestmark = pytest.mark.slow

STEPS = 3
SCHEDULE: dict[str, Any] = {"evaluate_after": (1, 2), "evaluation_episodes": 6}
ENVIRONMENT = get_environment("guess")


def tiny(warm_start_steps: int, **fields: Any) -> Job:
    model = TinyModel(hidden_size=16, layers=1, warm_start_steps=warm_start_steps)
    return job(backend="local", model=model, steps=STEPS, learning_rate=0.01, seed=5, **fields)


async def learned(folder: Path, models: Path, wanted: Job, clients: int) -> list[list[TrainRow]]:
    """Train with clients that take turns, and evaluate whenever training waits; return the rows of each step."""
    backend, steps = LocalBackend(wanted, models), list[list[TrainRow]]()
    await backend.start()  # torch takes its time to load; the server's start is waited for as long as others' only
    update = backend.learner.update

    def updating(batch: Batch) -> Mapping[str, float]:
        steps.append([row for episode in batch.episodes for row in episode.rows])
        return update(batch)

    backend.learner.update = updating  # type: ignore[method-assign]
    async with serving(folder, wanted, backend=lambda _: backend) as served, AsyncExitStack() as opened:
        playing = [
            await opened.enter_async_context(AsyncSwarmClient(served.url, served.admin, owner=str(number)))
            for number in range(clients)
        ]
        for step in range(STEPS):
            await train(served, wanted, step, playing)
    return steps


async def train(served: Served, wanted: Job, step: int, playing: list[AsyncSwarmClient]) -> None:
    agent, groups = agent_of(ENVIRONMENT), wanted.episodes_per_step // wanted.group_size
    if step in wanted.evaluate_after:
        await served.until(step=step, awaited_evaluations=wanted.evaluation_episodes)
        await playing[0].evaluate(agent, ENVIRONMENT.tasks("hidden")[: wanted.evaluation_episodes])
    tasks = ENVIRONMENT.tasks("train")[step * groups : (step + 1) * groups]
    places = [task for task in tasks for _ in range(wanted.group_size)]
    for number, (client, task) in enumerate(zip(itertools.cycle(playing), places, strict=False)):
        await play(client, agent, task, float(number % 2))
    await served.until(step=step + 1, updating=False)


async def play(client: AsyncSwarmClient, agent: Agent, task: Any, reward: float) -> None:
    episode = await client.begin(task, wait_s=10)
    await agent(episode)
    await episode.end(reward)


@pytest.mark.parametrize(
    ("warm_start_steps", "clients", "fields"),
    [(20, 1, {}), (20, 3, {"max_staleness": 1}), (0, 2, {"epochs": 2, "checkpoint_every": 1})],
    ids=["plain", "overlapped, three clients", "no warm start, two epochs, checkpoints"],
)
async def test_the_same_is_learned_with_evaluations_during_training_and_without(
    tmp_path: Path, warm_start_steps: int, clients: int, fields: dict[str, Any]
) -> None:
    plain, looked = [
        await learned(tmp_path / name, tmp_path / "models", tiny(warm_start_steps, **fields, **schedule), clients)
        for name, schedule in (("plain", {}), ("looked", SCHEDULE))
    ]
    assert len(plain) == len(looked) == STEPS
    for without, beside in zip(plain, looked, strict=True):
        assert [row.ids for row in beside] == [row.ids for row in without]
        assert [row.sampled for row in beside] == [row.sampled for row in without]
        found, expected = ([probability for row in rows for probability in row.logprobs] for rows in (beside, without))
        assert found == pytest.approx(expected, abs=1e-4)
