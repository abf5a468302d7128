"""The type of an agent: an async function of an episode that returns its reward, or a `Worth`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from swarm.client.episode import Episode


class Worth(Protocol):
    """A reward with the answer to whether the task was solved."""

    @property
    def reward(self) -> float:
        """What is trained on."""
        ...

    @property
    def success(self) -> bool | None:
        """Whether the task was solved, None where nobody says; logged only."""
        ...


Result = float | tuple[float, bool] | Worth
Agent = Callable[[Episode[Any]], Awaitable[Result]]


class AgentFailed(Exception):
    """The agent failed too often in a row; the message quotes the last failure."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What one finished evaluation episode was worth."""

    task_id: str
    sample: int
    """0 for the first play of a task, 1 for the second, ..."""
    reward: float
    success: bool | None
    policy_version: int
    facts: Mapping[str, float] = field(default_factory=dict)
    """Named numbers that the agent's answer has beside its reward (`facts`); empty for one without."""
    tokens: int | None = None
    """Tokens that the policy sampled in it, as the server counted; None where it does not tell."""


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """What a rollout did: episodes ended, mean reward and success of them, and what was dropped by reason."""

    episodes: int
    reward_mean: float
    success_mean: float | None
    dropped: dict[str, int]


def facts_of(result: Result) -> Mapping[str, float]:
    """Return the named numbers of an agent's answer; none for an answer without."""
    return dict(getattr(result, "facts", None) or {})


def worth_of(result: Result) -> tuple[float, bool | None]:
    """Return reward and success of an agent's answer; raise TypeError for anything that is not a result."""
    if isinstance(result, bool):
        return float(result), result
    if isinstance(result, int | float):
        return float(result), None
    if isinstance(result, tuple):
        reward, success = result
        return float(reward), bool(success)
    if hasattr(result, "reward") and hasattr(result, "success"):
        return float(result.reward), None if result.success is None else bool(result.success)
    raise TypeError(f"an agent returns a reward, (reward, success) or an Outcome; found {type(result).__name__}")
