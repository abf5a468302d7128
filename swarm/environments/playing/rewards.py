"""Rewards from a file: what a play of a built-in environment is worth, judged by a user's function.

    reward(task, messages, outcome) -> float

`task` is {"id", "data"}, `messages` the whole conversation with the policy's last answer, `outcome` the game's own
{"reward", "success"}. It is called once after each training play, async or plain, with copies: whether the task was
solved remains the game's decision. A value that is no finite number, or does not come within `MOST_S`, is a failed
play with its reason.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from swarm.client.agents import UnusableReward
from swarm.environments.base import Message, Outcome, Task
from swarm.environments.playing.code import call, load, where_of

MOST_S = 10.0
"""Seconds that one call may take; a play as a whole may take far longer, as a policy does."""


class RewardFailed(Exception):
    """A reward function raised, took too long, or returned what cannot be trained on."""


class RewardNotFinite(RewardFailed, UnusableReward):
    """A reward function returned what is no finite number."""


class Reward:
    """A reward function from a file."""

    def __init__(self, function: Callable[..., Any], most_s: float = MOST_S) -> None:
        self._function = function
        self._most_s = most_s

    @classmethod
    def load(cls, place: str) -> Reward:
        """Load `FILE.py[:NAME]`; raises InvalidRequest."""
        return cls(load(place, "reward", takes="task, messages, outcome"))

    async def __call__(self, task: Task, messages: list[Message], outcome: Outcome) -> Outcome:
        """Return what the play is worth by the function, and whether it was solved by the game."""
        shown = (
            {"id": task.id, "data": dict(task.data)},
            messages,
            {"reward": outcome.reward, "success": outcome.success},
        )
        try:
            async with asyncio.timeout(self._most_s) as limit:
                worth = await call(self._function, *copy.deepcopy(shown))
        except Exception as error:
            if limit.expired():
                raise RewardFailed(f"the reward function did not return within {self._most_s:g} s") from error
            said = f"{type(error).__name__}: {error}{where_of(error)}"
            raise RewardFailed(f"the reward function raised {said}") from error
        return Outcome(reward=_number(worth), success=outcome.success)


def _number(found: Any) -> float:
    if (number := finite(found)) is None:
        raise RewardNotFinite(f"expected the reward function to return a finite number, found {found!r:.80}")
    return number


def finite(value: Any) -> float | None:
    """Return a real number as a float; None for what is none, or is not finite."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
