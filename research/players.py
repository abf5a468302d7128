"""Who plays in an attempt: the client that trains and the evaluators that measure, each from its start to its end.

The same command plays in a process and in a container; what differs is who starts it and how its end is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from research.attempt_folder import AttemptFolder, Order, Role
from research.crew import Crew

MODULE = "swarm.environments"
TRANSCRIPTS = 2
"""Plays that an evaluator writes down for the report: the same tasks before and after training."""


@dataclass(frozen=True, slots=True)
class Account:
    """What an attempt's outcome says of its players; empty for processes, of which nobody sees it."""

    refused: Mapping[str, int] = field(default_factory=dict)
    """Requests that were refused, by who asked and why."""
    evaluations: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each evaluation that was handed over, by its stage."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds from each one's launch to its first model call, by its role: `client_start`."""


class Player(Protocol):
    """One of them, at work."""

    @property
    def failure(self) -> str:
        """How it came to a bad end, in a word: `died`, `out_of_memory`, ..."""
        ...

    async def ended(self) -> int:
        """Wait until it has ended and its results are in place; return 0 if all went well."""
        ...

    async def stop(self) -> None:
        """End it before its work is done; its `ended` tells then, as ever."""
        ...

    def last_words(self) -> str:
        """Return how it ended and the end of what it said, in one line."""
        ...


class Players(Protocol):
    """Starts them; leaving its context ends those that are still at work."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def start(self, role: Role) -> Player:
        """Start the player of a role."""
        ...

    def account(self) -> Account:
        """Return what is known of them so far."""
        ...


class ProcessPlayers:
    """Processes of the attempt's own crew, which ends them."""

    def __init__(self, crew: Crew, folder: AttemptFolder, order: Order, url: str, token: str) -> None:
        self._crew = crew
        self._folder = folder
        self._order = order
        self._url = url
        self._token = token

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def start(self, role: Role) -> Player:
        """Start the process of a role."""
        out = self._folder.evaluation("initial" if role == "evaluator-initial" else "final")
        arguments = playing(self._order, role, server=self._url, out=str(out))
        return await self._crew.start(role, MODULE, *arguments, log=self._folder.log(role), AJET_TOKEN=self._token)

    def account(self) -> Account:
        """Return nothing: processes speak to the server themselves."""
        return Account()


def playing(order: Order, role: Role, *, server: str, out: str) -> tuple[str, ...]:
    """Return the arguments with which `swarm.environments` plays a role; an evaluator writes to `out`."""
    spec = order.spec
    common = ("--environment", spec.environment, "--server", server, "--seed", str(spec.seed))
    if role == "client":
        return ("play", *common, "--concurrency", str(order.job.max_concurrency))
    metric = spec.metric
    size = ("--split", metric.split, "--episodes", str(metric.episodes), "--transcripts", str(TRANSCRIPTS))
    return ("evaluate", *common, *size, "--out", out)
