"""Sums: add two numbers and answer with the result, in one turn.

A task is a pair of summands; splits are disjoint by the unordered pair, so that 7+12 is not learned from 12+7.
The answer is right or wrong; the game knows no half-right sums.
"""

from __future__ import annotations

import random
import re
from functools import cache
from typing import ClassVar

from swarm.environments.base import Environment, Game, Message, Outcome, Split, Task
from swarm.environments.splits import split_of

_LARGEST = 40
_RIGHT = 0.4
_SLIPS = (-10, -1, 1, 10)
_NUMBER = re.compile(r"\d+")


class ArithGame:
    """One sum, asked once."""

    def __init__(self, left: int, right: int) -> None:
        self._left, self._right = left, right
        self._success = False

    def opening(self) -> list[Message]:
        """Return the question."""
        return [{"role": "user", "content": f"{self._left}+{self._right}"}]

    def answer(self, text: str) -> Message | None:
        """Judge the answer, which must hold exactly one number; the play is over either way."""
        numbers = _NUMBER.findall(text)
        self._success = len(numbers) == 1 and int(numbers[0]) == self._left + self._right
        return None

    def outcome(self) -> Outcome:
        """Return 1 for the right sum, 0 otherwise."""
        return Outcome(reward=float(self._success), success=self._success)


class Arith(Environment):
    """Add two numbers."""

    name: ClassVar[str] = "arith"
    title: ClassVar[str] = "sums of two numbers"
    synonyms: ClassVar[tuple[str, ...]] = (
        "arithmetic", "addition", "sums", "adding numbers", "math", "maths", "arith", "single-turn",
    )  # fmt: skip
    measures: ClassVar[str] = "the sum is right"

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """Return every ordered pair whose unordered pair is in `split`."""
        return _tasks(split)

    def game(self, task: Task) -> Game:
        """Return a fresh play of `task`."""
        return ArithGame(task.data["left"], task.data["right"])

    def kind(self, task: Task) -> str:
        """Return whether the sum has a carry."""
        left, right = str(task.data["left"]), str(task.data["right"])
        carries = any(int(a) + int(b) > 9 for a, b in zip(reversed(left), reversed(right), strict=False))
        return "with a carry" if carries else "without a carry"

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by a hasty adder: right two times in five, otherwise off by one or by a carry."""
        total = task.data["left"] + task.data["right"]
        said = total if rng.random() < _RIGHT else max(0, total + rng.choice(_SLIPS))
        return [*self.game(task).opening(), {"role": "assistant", "content": str(said)}]


@cache
def _tasks(split: Split) -> tuple[Task, ...]:
    numbers = range(1, _LARGEST + 1)
    return tuple(
        Task(id=f"arith-{left}-{right}", data={"left": left, "right": right})
        for left in numbers
        for right in numbers
        if split_of(f"arith-{min(left, right)}-{max(left, right)}") == split
    )
