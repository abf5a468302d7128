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


@dataclass(frozen=True, slots=True)
class Earned:
    """A reward with what single calls and single agents of the episode earned of it (`Episode.end`)."""

    reward: float
    success: bool | None = None
    by_call: Mapping[int, float] = field(default_factory=dict)
    by_agent: Mapping[str, float] = field(default_factory=dict)


Result = float | tuple[float, bool] | Worth
Agent = Callable[[Episode[Any]], Awaitable[Result]]


class AgentFailed(Exception):
    """The agent failed too often in a row; the message quotes the last failure."""


class WrongResult(TypeError):
    """An agent returned what is no result; the message says what was expected, and what was found."""


class UnusableReward(ValueError):
    """An agent returned a reward that cannot be trained on, such as NaN."""


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
    failed: str = ""
    """The error by which its agent failed it; it is worth what `evaluate` was told, and not solved."""


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
    """Return reward and success of an agent's answer; raise WrongResult for anything that is not a result."""
    try:
        return _worth_of(result)
    except (TypeError, ValueError) as error:
        found = "nothing (None)" if result is None else f"{type(result).__name__}: {result!r:.60}"
        raise WrongResult(
            f"expected an agent to return a reward, (reward, solved) or an Outcome; found {found}"
        ) from error


def _worth_of(result: Result) -> tuple[float, bool | None]:
    if isinstance(result, bool):
        return float(result), result
    if isinstance(result, int | float):
        return float(result), None
    if isinstance(result, tuple):
        reward, success = result
        return float(reward), bool(success)
    if hasattr(result, "reward") and hasattr(result, "success"):
        return float(result.reward), None if result.success is None else bool(result.success)
    raise TypeError(type(result).__name__)
