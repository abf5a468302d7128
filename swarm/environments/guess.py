"""The guessing game: find a secret number in a window; a wrong guess is answered with what is still possible.

A task is a window and a secret in it; the splits share no such pair. `above 4 below 15` opens a play; a guess of
7 that is too low is answered with `above 7 below 15`, so that each hint sums up all before it. Heeding the last
hint beats guessing at random, and halving what it leaves beats any other play. The game does not care how a
model writes, but an answer that does not hold exactly one number ends the play.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import ClassVar

from swarm.environments.base import Message, Outcome, PlainEnvironment, PlainGame, Split, Task, said, text_of
from swarm.environments.splits import split_of

GUESSES = 4
_HIGHEST = 20
_WIDTHS = range(10, 19)
_GIVES_UP = 0.2
_ATTENTIVE = 0.7
_JITTER = 1
_PARTIAL = 0.5
_NUMBER = re.compile(r"\d+")


class GuessGame(PlainGame):
    """One play: `GUESSES` guesses at a secret in [low, high]."""

    def __init__(self, low: int, high: int, secret: int) -> None:
        self._low, self._high, self._secret = low, high, secret
        self._width = high - low + 1
        self._left = GUESSES
        self._found = False

    @property
    def possible(self) -> tuple[int, int]:
        """Lowest and highest number that the hints so far allow."""
        return self._low, self._high

    def opening(self) -> list[Message]:
        """Return the question."""
        return [{"role": "user", "content": self._bounds()}]

    def answer(self, message: Message) -> list[Message]:
        """Judge a guess: nothing follows one that is right, the last one, or no single number; else the hint does."""
        numbers = _NUMBER.findall(text_of(message))
        if self._found or self._left == 0 or len(numbers) != 1:
            self._left = 0
            return []
        self._left -= 1
        self._judge(int(numbers[0]))
        return [] if self._found or self._left == 0 else self.opening()

    def _judge(self, guess: int) -> None:
        self._found = guess == self._secret
        if guess < self._secret:
            self._low = max(self._low, guess + 1)
        elif guess > self._secret:
            self._high = min(self._high, guess - 1)

    def _bounds(self) -> str:
        return f"above {self._low - 1} below {self._high + 1}"

    def outcome(self) -> Outcome:
        """Return success for the number found; reward 1 for it, else up to one half for narrowing it down.

        The partial reward is 0.5 times the share of the window's bits that the hints gave away.
        """
        if self._found:
            return Outcome(reward=1.0, success=True)
        missing = math.log(self._high - self._low + 1) / math.log(self._width)
        return Outcome(reward=_PARTIAL * (1.0 - missing), success=False)


class Guess(PlainEnvironment):
    """Find a number with higher/lower feedback."""

    name: ClassVar[str] = "guess"
    title: ClassVar[str] = "the guessing game"
    synonyms: ClassVar[tuple[str, ...]] = (
        "guessing game", "number guessing", "guess the number", "higher lower", "higher/lower", "guess", "multi-turn",
    )  # fmt: skip
    measures: ClassVar[str] = f"the number is found within {GUESSES} guesses"

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """Return every window and secret of `split`, by window, then secret."""
        return _tasks(split)

    def game(self, task: Task) -> GuessGame:
        """Return a fresh play of `task`."""
        return _game(task)

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        """Return the number."""
        return str(task.data["secret"])

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by someone who roughly halves what is left, but often forgets the hints and often gives up."""
        game = _game(task)
        window = game.possible
        messages = game.opening()
        hint = messages[-1:]
        while hint:
            guess = said(_mediocre(window, game.possible, rng))
            hint = game.answer(guess)
            messages += [guess, *hint]
        return messages


def _mediocre(window: tuple[int, int], possible: tuple[int, int], rng: random.Random) -> str:
    low, high = possible
    if rng.random() < _GIVES_UP:
        return "pass"
    if rng.random() < _ATTENTIVE:
        return str(min(high, max(low, (low + high) // 2 + rng.randint(-_JITTER, _JITTER))))
    return str(rng.randint(*window))


def _game(task: Task) -> GuessGame:
    return GuessGame(task.data["low"], task.data["high"], task.data["secret"])


@cache
def _tasks(split: Split) -> tuple[Task, ...]:
    windows = [(low, low + width - 1) for width in _WIDTHS for low in range(1, _HIGHEST - width + 2)]
    problems = [(low, high, secret) for low, high in windows for secret in range(low, high + 1)]
    return tuple(
        Task(
            f"guess-{low}-{high}-{secret}",
            {"low": low, "high": high, "secret": secret},
            "narrow windows" if high - low + 1 <= fmean(_WIDTHS) else "wide windows",
        )
        for low, high, secret in problems
        if split_of(f"guess-{low}-{high}-{secret}") == split
    )
