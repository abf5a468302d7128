"""The workers of an attempt: the client that trains and the evaluators that measure, each from its start to its end.

The same command runs in a process and in a container; what differs is who starts it and how its end is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from research.attempts.processes import ProcessGroup
from research.results.attempt_files import AttemptFolder, AttemptSpec, Role

MODULE = "swarm.environments"
TRANSCRIPTS = 2
"""Plays that an evaluator writes down for the report: the same tasks before and after training."""


@dataclass(frozen=True, slots=True)
class Account:
    """What an attempt's outcome says of its workers; empty for processes, which are not observed."""

    refused: Mapping[str, int] = field(default_factory=dict)
    """Requests that were refused, by who asked and why."""
    evaluations: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each evaluation that was handed over, by its stage."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds from each one's launch to its first model call, by its role: `client_start`."""


class Worker(Protocol):
    """One of them, running."""

    @property
    def failure(self) -> str:
        """How it failed, in a word: `died`, `out_of_memory`, ..."""
        ...

    async def ended(self) -> int:
        """Wait until it has ended and its results are in place; return 0 if all went well."""
        ...

    async def stop(self) -> None:
        """End it before its work is done; `ended` returns then, as always."""
        ...

    def last_words(self) -> str:
        """Return how it ended and the end of what it said, in one line."""
        ...


class Workers(Protocol):
    """Starts them; leaving its context ends those that still run."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def start(self, role: Role) -> Worker:
        """Start the worker of a role."""
        ...

    def account(self) -> Account:
        """Return what is known of them so far."""
        ...


class ProcessWorkers:
    """Processes of the attempt's own group, which ends them."""

    def __init__(self, processes: ProcessGroup, folder: AttemptFolder, spec: AttemptSpec, url: str, token: str) -> None:
        self._processes = processes
        self._folder = folder
        self._spec = spec
        self._url = url
        self._token = token

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def start(self, role: Role) -> Worker:
        """Start the process of a role."""
        out = self._folder.evaluation("initial" if role == "evaluator-initial" else "final")
        arguments = playing(self._spec, role, server=self._url, out=str(out))
        return await self._processes.start(role, MODULE, *arguments, log=self._folder.log(role), AJET_TOKEN=self._token)

    def account(self) -> Account:
        """Return nothing: processes speak to the server themselves."""
        return Account()


def playing(spec: AttemptSpec, role: Role, *, server: str, out: str) -> tuple[str, ...]:
    """Return the arguments with which `swarm.environments` plays a role; an evaluator writes to `out`."""
    run = spec.run
    common = ("--environment", run.environment, "--server", server, "--seed", str(run.seed))
    if role == "client":
        return ("play", *common, "--concurrency", str(spec.job.max_concurrency))
    metric = run.metric
    size = ("--split", metric.split, "--episodes", str(metric.episodes), "--transcripts", str(TRANSCRIPTS))
    return ("evaluate", *common, *size, "--out", out)
