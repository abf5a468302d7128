"""The harness's evaluator: plays a split with the serving policy and writes down every outcome.

Which tasks are played, and in which order, follows from the seed alone; the games judge, so that nothing a
training client says enters. The file is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swarm.client import AsyncSwarmClient, EpisodeResult
from swarm.environments.base import Environment, Split, Task
from swarm.environments.play import agent_of


async def evaluate(
    client: AsyncSwarmClient, environment: Environment, split: Split, *, episodes: int, seed: int, concurrency: int
) -> dict[str, Any]:
    """Play `episodes` episodes of a split and return their outcomes as JSON values.

    If the split has fewer tasks than that, each is played equally often, give or take one.
    """
    results: list[EpisodeResult] = []
    for sample, tasks in enumerate(rounds(environment.tasks(split), episodes, seed)):
        played = await client.evaluate(agent_of(environment), tasks, concurrency=concurrency)
        results += [EpisodeResult(r.task_id, sample, r.reward, r.success, r.policy_version) for r in played]
    versions = {result.policy_version for result in results}
    return {
        "environment": environment.name,
        "split": split,
        "policy_version": max(versions),
        "episodes": [
            {"task_id": r.task_id, "sample": r.sample, "success": bool(r.success), "reward": r.reward} for r in results
        ],
    }


def rounds(tasks: Sequence[Task], episodes: int, seed: int) -> list[list[Task]]:
    """Return the tasks to play, a list per round, `episodes` in all; a seeded choice without repeats in a round."""
    rng = random.Random(seed)
    full, rest = divmod(episodes, len(tasks))
    return [rng.sample(tasks, len(tasks)) for _ in range(full)] + ([rng.sample(tasks, rest)] if rest else [])


def write_outcomes(path: Path, outcomes: dict[str, Any]) -> None:
    """Write the outcomes as JSON under a temporary name, then rename."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(outcomes))
    os.replace(draft, path)
