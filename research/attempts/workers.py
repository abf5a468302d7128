"""The workers of an attempt: the client that trains and the evaluators that measure, each from its start to its end.

The same command runs in a process and in a container; what differs is who starts it and how its end is reported.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from research.attempts.processes import ManagedProcess, ProcessGroup
from research.environments.bring import path_with
from research.environments.record import hand_out
from research.files import write_bytes
from research.results.attempt_files import AttemptFolder, AttemptSpec, EvaluationName, Role
from swarm.environments.base import Split, Task
from swarm.environments.brought import is_brought
from swarm.environments.registry import get_environment
from swarm.environments.tasks_file import to_json

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
    """Processes of the attempt's own group, which ends them.

    Each works in a folder of its own, which holds what its role is given of a brought environment and is gone once it
    has ended, before the next one begins: hidden tasks are handed to evaluators alone. Nothing stops a process from
    looking elsewhere.
    """

    def __init__(self, processes: ProcessGroup, folder: AttemptFolder, spec: AttemptSpec, url: str, token: str) -> None:
        self._processes = processes
        self._folder = folder
        self._spec = spec
        self._url = url
        self._token = token
        self._running: dict[Role, ManagedProcess] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            await self._processes.end(process)
        # What the code of an environment started may write on: that hides no reason why the attempt ended.
        shutil.rmtree(self._folder.all_given, ignore_errors=True)

    async def start(self, role: Role) -> Worker:
        """Start the process of a role."""
        out = "" if role == "client" else str(self._folder.evaluation(evaluation_of(role)))
        arguments = playing(self._spec, role, server=self._url, out=out)
        variables = {"AJET_TOKEN": self._token, **path_with(self._spec.packages)}
        self._take_back()
        given = self._folder.given(role)
        given.mkdir(parents=True)
        self._running[role] = started = await self._processes.start(
            role, MODULE, *arguments, *self._brought(role, given), log=self._folder.log(role), directory=given,
            **variables,
        )  # fmt: skip
        return started

    def _brought(self, role: Role, given: Path) -> tuple[str, ...]:
        """Put what a role is given of a brought environment into a folder; return the arguments that say so."""
        environment = environment_of(self._spec, role)
        if not is_brought(environment):
            return ()
        tasks, environments = given / "tasks.json", given / "environments"
        write_bytes(tasks, to_json(tasks_of(self._spec, role)).encode(), durable=False)
        hand_out(environment, environments)
        return ("--environments", str(environments), "--tasks", str(tasks))

    def _take_back(self) -> None:
        """Take back what was given, in this life or an earlier one, but for what those have that still run."""
        kept = {self._folder.given(role) for role, process in self._running.items() if process.runs}
        for given in self._folder.all_given.glob("*"):
            if given not in kept:
                shutil.rmtree(given)

    def account(self) -> Account:
        """Return nothing: processes speak to the server themselves."""
        return Account()


def tasks_of(spec: AttemptSpec, role: Role) -> tuple[Task, ...]:
    """Return the tasks that a role is given: the client's are for training, an evaluator's are hidden from it."""
    split: Split = "train" if role == "client" else spec.run.metric.split
    return tuple(get_environment(environment_of(spec, role)).tasks(split))


def environment_of(spec: AttemptSpec, role: Role) -> str:
    """Return the environment that a role plays: the run's own, or the other one that its metric is of."""
    other = spec.other_environment if role == "evaluator-other" else None
    return other or spec.run.environment


def evaluation_of(role: Role) -> EvaluationName:
    """Return which of the evaluations an evaluator makes."""
    names: Mapping[Role, EvaluationName] = {
        "evaluator-initial": "initial", "evaluator-during": "during", "evaluator-final": "final",
        "evaluator-other": "other",
    }  # fmt: skip
    return names[role]


def playing(spec: AttemptSpec, role: Role, *, server: str, out: str) -> tuple[str, ...]:
    """Return the arguments with which `swarm.environments` plays a role; an evaluator writes to `out`."""
    run = spec.run
    bounds = ("--seed", str(run.seed), "--timeout", f"{spec.play_s:g}")
    common = ("--environment", environment_of(spec, role), "--server", server, *bounds)
    if role == "client":
        return ("play", *common, "--concurrency", str(spec.job.max_concurrency))
    metric = run.metric
    hidden = ("evaluate", *common, "--split", metric.split, "--out", out)
    if role == "evaluator-during":
        assert metric.schedule is not None
        return (*hidden, "--episodes", str(metric.schedule.episodes), "--during")
    return (*hidden, "--episodes", str(metric.episodes), "--transcripts", str(TRANSCRIPTS))
