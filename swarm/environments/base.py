"""The seam: what an environment is. Tasks by split, a game that judges one play, and a scripted player to imitate.

The game is a pure state machine over chat messages: it opens, takes the policy's answers, and says what the play was
worth. The built-in agent (`swarm.environments.playing.play`) only carries messages between game and model, so
the reward is the game's alone. Splits are disjoint: `train` is for training clients, `search` for exploration, `hidden`
for the evaluator of studies.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

Split = Literal["train", "search", "hidden"]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `id` is unique in its environment; `data` is what the game needs to pose and judge it."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one play was worth: the reward trained on, and whether the task was solved."""

    reward: float
    success: bool


class Game(Protocol):
    """One play of one task."""

    def opening(self) -> list[Message]:
        """Return the messages before the policy's first answer."""
        ...

    def answer(self, text: str) -> Message | None:
        """Take the policy's answer; return the next message to it, or None when the play is over."""
        ...

    def outcome(self) -> Outcome:
        """Return what the play was worth so far."""
        ...


class Environment(ABC):
    """Tasks, games and a scripted player, under one name."""

    name: ClassVar[str]
    """Name in jobs and on the command line."""
    title: ClassVar[str]
    """What a person reads: a few words."""
    synonyms: ClassVar[tuple[str, ...]]
    """How people name it in a topic (lower case)."""
    measures: ClassVar[str]
    """What success means, in one clause: `the number is found within 5 guesses`."""

    @abstractmethod
    def tasks(self, split: Split) -> tuple[Task, ...]:
        """Return all tasks of a split, in a fixed order."""

    @abstractmethod
    def game(self, task: Task) -> Game:
        """Return a fresh play of a task."""

    def kind(self, task: Task) -> str:
        """Return which kind of task it is, where kinds differ in difficulty; empty where there is one kind."""
        return ""

    @abstractmethod
    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return one whole play by the mediocre scripted player: the warm start's demonstration."""
