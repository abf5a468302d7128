"""The evaluator: plays tasks with the serving policy and writes down every outcome.

Which tasks are played, and in which order, follows from the seed alone; the games judge, so that nothing a
training client says enters. The file is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from swarm.client import Agent, AsyncSwarmClient, EpisodeResult
from swarm.client.agents import Result
from swarm.environments.base import Environment, Message, Outcome, Split, Task

MOST_MESSAGES: Final = 20
MOST_CHARACTERS: Final = 2000
"""What is kept of a play at most: its first messages, and of each its beginning."""
MOST_REASON: Final = 200
"""Characters that are kept of the error by which an agent failed a play."""


class Transcripts:
    """Keeps the first play of each of a few tasks, for people to read; nothing is computed from it."""

    def __init__(self, tasks: Collection[str]) -> None:
        self._tasks = list(tasks)
        self._recorded: dict[str, list[dict[str, str]]] = {}

    def record(self, task: Task, messages: list[Message]) -> None:
        """Record the conversation of a play, if it is the first of a task asked for."""
        if task.id in self._tasks and task.id not in self._recorded:
            self._recorded[task.id] = [
                {"role": str(message["role"]), "content": _beginning(shown(message))}
                for message in messages[:MOST_MESSAGES]
            ]

    def kept(self) -> list[dict[str, Any]]:
        """Return the plays kept, in the order of the tasks asked for."""
        return [{"task_id": task, "messages": self._recorded[task]} for task in self._tasks if task in self._recorded]


async def evaluate(
    client: AsyncSwarmClient,
    agent: Agent,
    tasks: Sequence[Task],
    *,
    episodes: int,
    seed: int,
    concurrency: int,
    timeout_s: float,
    worst: Result = 0.0,
) -> list[EpisodeResult]:
    """Let `agent` play `episodes` episodes of the tasks; return what each was worth, `worst` where it failed.

    If there are fewer tasks than that, each is played equally often, give or take one.
    """
    results: list[EpisodeResult] = []
    for sample, chosen in enumerate(rounds(tasks, episodes, seed)):
        played = await client.evaluate(agent, chosen, concurrency=concurrency, timeout_s=timeout_s, worst=worst)
        results += [replace(result, sample=sample) for result in played]
    return results


def worst_of(environment: Environment | None) -> Result:
    """Return what a play of an environment is worth that its agent failed: its least reward, its worst facts."""
    if environment is None:
        return 0.0
    return Outcome(environment.reward_range[0], False, {name: worst for name, (worst, _) in environment.facts.items()})


def rounds(tasks: Sequence[Task], episodes: int, seed: int) -> list[list[Task]]:
    """Return the tasks to play, a list per round, `episodes` in all; a seeded choice without repeats in a round."""
    rng = random.Random(seed)
    full, rest = divmod(episodes, len(tasks))
    return [rng.sample(tasks, len(tasks)) for _ in range(full)] + ([rng.sample(tasks, rest)] if rest else [])


def outcomes(
    results: Sequence[EpisodeResult], environment: str | None, split: Split, kept: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return the results as the evaluator's file holds them, and the plays `kept` where there are any.

    `environment` is None for tasks of no environment, whose agents need not say whether they succeeded.
    """

    def success(result: EpisodeResult) -> bool | None:
        return None if environment is None and result.success is None else bool(result.success)

    return {
        "environment": environment,
        "split": split,
        "policy_version": max(result.policy_version for result in results),
        "episodes": [
            {"task_id": r.task_id, "sample": r.sample, "success": success(r), "reward": r.reward}
            | ({"facts": dict(r.facts)} if r.facts else {})
            | ({"tokens": r.tokens} if r.tokens is not None else {})
            | ({"failed": r.failed[:MOST_REASON]} if r.failed else {})
            for r in results
        ],
        **({"transcripts": list(kept)} if kept else {}),
    }


def shown(message: Message) -> str:
    """Return what a message says as a person reads it: its text, then each tool it calls, as `name(arguments)`."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = (f"{call['name']}({call.get('arguments') or ''})" for call in calls)
    return "\n".join([*([text] if text or not calls else []), *written])


def _beginning(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a value as JSON under a temporary name, then rename."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(value))
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # on a full disk it takes the last room
        raise
