"""Sums: add two numbers and answer with the result, in one turn.

A task is a pair of summands; splits are disjoint by the unordered pair, so that 7+12 is not learned from 12+7.
The answer is right or wrong; the game knows no half-right sums.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

from swarm.environments.base import Message, Outcome, PlainEnvironment, PlainGame, Split, Task, said, text_of
from swarm.environments.splits import split_of

_LARGEST = 40
_RIGHT = 0.4
_SLIPS = (-10, -1, 1, 10)
_NUMBER = re.compile(r"\d+")


class ArithGame(PlainGame):
    """One sum, asked once."""

    def __init__(self, left: int, right: int) -> None:
        self._left, self._right = left, right
        self._success = False

    def opening(self) -> list[Message]:
        """Return the question."""
        return [{"role": "user", "content": f"{self._left}+{self._right}"}]

    def answer(self, message: Message) -> list[Message]:
        """Judge the answer, which must hold exactly one number; the play is over either way."""
        numbers = _NUMBER.findall(text_of(message))
        self._success = len(numbers) == 1 and int(numbers[0]) == self._left + self._right
        return []

    def outcome(self) -> Outcome:
        """Return 1 for the right sum, 0 otherwise."""
        return Outcome(reward=float(self._success), success=self._success)


class Arith(PlainEnvironment):
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

    def game(self, task: Task) -> ArithGame:
        """Return a fresh play of `task`."""
        return ArithGame(task.data["left"], task.data["right"])

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        """Return the sum."""
        return str(task.data["left"] + task.data["right"])

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by a hasty adder: right two times in five, otherwise off by one or by a carry."""
        total = task.data["left"] + task.data["right"]
        answer = total if rng.random() < _RIGHT else max(0, total + rng.choice(_SLIPS))
        return [*self.game(task).opening(), said(str(answer))]


@cache
def _tasks(split: Split) -> tuple[Task, ...]:
    numbers = range(1, _LARGEST + 1)
    return tuple(
        Task(f"arith-{left}-{right}", {"left": left, "right": right}, _kind(str(left), str(right)))
        for left in numbers
        for right in numbers
        if split_of(f"arith-{min(left, right)}-{max(left, right)}") == split
    )


def _kind(left: str, right: str) -> str:
    carries = any(int(a) + int(b) > 9 for a, b in zip(reversed(left), reversed(right), strict=False))
    return "with a carry" if carries else "without a carry"
