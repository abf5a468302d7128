"""The guessing game: find a secret number in a window, told only `higher` or `lower` after each guess.

Each task has its own window and its own secret. Splits are disjoint by *window*, so that a policy meets every
window of the hidden split for the first time. Finding a number takes memory of all the feedback so far, and
halving what is left beats any other play: there is something to learn that no single answer teaches.
The game promises nothing about how a model writes: an answer with no number, or several, ends the play.
"""

from __future__ import annotations

import random
import re
from functools import cache
from typing import ClassVar

from swarm.environments.base import Environment, Game, Message, Outcome, Split, Task
from swarm.environments.splits import split_of

GUESSES = 4
_LOWEST, _HIGHEST = 1, 48
_WIDTHS = (12, 13, 14, 15, 16)
_ATTENTIVE = 0.3
_NUMBER = re.compile(r"\d+")


class GuessGame:
    """One play: `GUESSES` guesses at a secret in [low, high]."""

    def __init__(self, low: int, high: int, secret: int) -> None:
        self._low, self._high, self._secret = low, high, secret
        self._left = GUESSES
        self._found = False

    def opening(self) -> list[Message]:
        """Return the question."""
        return [{"role": "user", "content": f"number from {self._low} to {self._high}"}]

    def answer(self, text: str) -> Message | None:
        """Judge a guess: None when it is right, the last one, or no single number; otherwise the hint."""
        if self._found or self._left == 0:
            return None
        numbers = _NUMBER.findall(text)
        self._left = self._left - 1 if len(numbers) == 1 else 0
        self._found = len(numbers) == 1 and int(numbers[0]) == self._secret
        if self._found or self._left == 0:
            return None
        hint = "higher" if int(numbers[0]) < self._secret else "lower"
        return {"role": "user", "content": hint}

    def outcome(self) -> Outcome:
        """Return 1 for the number found, 0 otherwise."""
        return Outcome(reward=float(self._found), success=self._found)


class Guess(Environment):
    """Find a number with higher/lower feedback."""

    name: ClassVar[str] = "guess"
    title: ClassVar[str] = "the guessing game"
    synonyms: ClassVar[tuple[str, ...]] = (
        "guessing game", "number guessing", "guess the number", "higher lower", "higher/lower", "guess", "multi-turn",
    )  # fmt: skip
    measures: ClassVar[str] = f"the number is found within {GUESSES} guesses"

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """Return every (window, secret) whose window is in `split`, by window, then secret."""
        return _tasks(split)

    def game(self, task: Task) -> Game:
        """Return a fresh play of `task`."""
        return GuessGame(task.data["low"], task.data["high"], task.data["secret"])

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by a player who heeds the hints at every third guess or so, and else forgets them."""
        low, high = task.data["low"], task.data["high"]
        game = self.game(task)
        messages = game.opening()
        left, right = low, high
        hint: Message | None = messages[-1]
        while hint is not None:
            guess = rng.randint(left, right) if rng.random() < _ATTENTIVE else rng.randint(low, high)
            messages.append({"role": "assistant", "content": str(guess)})
            hint = game.answer(str(guess))
            if hint is not None:
                messages.append(hint)
                left, right = (
                    (max(left, guess + 1), right) if hint["content"] == "higher" else (left, min(right, guess - 1))
                )
        return messages


@cache
def _tasks(split: Split) -> tuple[Task, ...]:
    windows = [(low, low + width - 1) for low in range(_LOWEST, _HIGHEST + 1) for width in _WIDTHS]
    return tuple(
        Task(id=f"guess-{low}-{high}-{secret}", data={"low": low, "high": high, "secret": secret})
        for low, high in windows
        if high <= _HIGHEST and split_of(f"guess-{low}-{high}") == split
        for secret in range(low, high + 1)
    )
