"""What planners know of reward functions: whether a topic asks for one, what one is given, and what is said without.

A reward function is code, so only a language model writes one and only a container runs one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Any

from swarm.environments.base import PlainEnvironment
from swarm.environments.registry import environments

_NAMED = re.compile(
    r"\breward[ -](?:function|shaping|design|hint|code)s?\b"
    r"|\b(?:shaped|shaping|dense|denser|sparse|sparser|custom|different|better|new|own|other|alternative|generated)"
    r" rewards?\b",
    re.IGNORECASE,
)
FOR_RULES = (
    "a reward function is code, which a language model writes (--planner llm --planner-model NAME) and a container "
    "runs (--sandbox docker)"
)
NOT_OFFERED = (
    "The topic names a reward function; it is code, which only containers run, and this study's runs are in none "
    "(--sandbox docker), so none could be proposed."
)
_PLAY = 4
"""Seed of the scripted player in the examples."""


def names_reward(topic: str) -> bool:
    """Return whether a topic asks about reward functions."""
    return _NAMED.search(topic) is not None


def examples(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return, for each environment of plain games, what a reward is called with after one play of a training task."""
    plain = ((name, environments()[name]) for name in names)
    return [{"environment": name, **_example(own)} for name, own in plain if isinstance(own, PlainEnvironment)]


def _example(environment: PlainEnvironment) -> dict[str, Any]:
    task = environment.tasks("train")[0]
    messages = environment.imitate(task, random.Random(_PLAY))
    game = environment.game(task)
    game.opening()
    for message in messages:
        if message["role"] == "assistant":
            game.answer(message)
    outcome = game.outcome()
    return {
        "task": {"id": task.id, "data": dict(task.data)},
        "messages": messages,
        "outcome": {"reward": outcome.reward, "success": outcome.success},
    }
