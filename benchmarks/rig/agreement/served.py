"""One training of either backend as its users run it: a swarm server as `ajet swarm start` begins one, scripted agents
over HTTP, and evaluations of held-out tasks by the same server before the first step and after the last one.

Servers of both backends run with the Python of `AJET_VERL_PYTHON`, so that nothing differs but the backend. Each
training has a server, a Ray and a vLLM of its own: a server that ends a training ends its Ray, too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

from research.installation.servers import Binding, start_swarm, stop_swarm
from rig.training.training import ONE_THREAD
from swarm.client import AsyncSwarmClient
from swarm.environments.base import PlainEnvironment, Task
from swarm.environments.play import agent_of
from swarm.environments.registry import get_built_in
from swarm.job import Job, TinyModel
from swarm.snapshot import StepRecord

Backend = Literal["local", "verl"]
BOOT_S: Final = 900.0
MOST_STEPS: Final = 500
"""Steps that a page of a server's history holds."""
_SUCCESS: Final = "critic/success/mean"
_APART: Final = "training/rollout_probs_diff_max"


@dataclass(frozen=True, slots=True)
class AgreementSize:
    """How much each training is; `held_out` tasks are played once each."""

    environments: tuple[str, ...]
    seeds: int
    steps: int
    episodes_per_step: int
    held_out: int


@dataclass(frozen=True, slots=True)
class ServedTraining:
    """One training: success on held-out tasks at both ends, and of the episodes of each step."""

    environment: str
    backend: Backend
    seed: int
    before: float
    end: float
    success: tuple[float, ...]
    largest_difference: float
    """Of any sampled token's probability between engine and learner, over all steps."""
    boot_s: float
    """Seconds from the start of the server until it has the job's model loaded and would answer."""
    train_s: float

    @property
    def curve(self) -> float:
        """Mean of training success over all steps."""
        return fmean(self.success)

    @property
    def name(self) -> tuple[str, Backend, int]:
        """Which one it is."""
        return self.environment, self.backend, self.seed

    def value(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, value: dict[str, Any]) -> ServedTraining:
        """Return what `value` gave."""
        return cls(**{**value, "success": tuple(value["success"])})


def job_of(environment: str, backend: Backend, seed: int, size: AgreementSize) -> Job:
    """Return the job of a training: but for `backend` the same in both arms.

    Rows are linear, as `verl` has no trees, and heads have 32 numbers, as vLLM has no attention for fewer on a CPU.
    """
    return Job(
        environment=environment, backend=backend, model=TinyModel(head_size=32), seed=seed, steps=size.steps,
        episodes_per_step=size.episodes_per_step, merging="linear", device="cpu", checkpoint_every=size.steps,
    )  # fmt: skip


def trained(folder: Path, models: Path, job: Job, held_out: int) -> ServedTraining:
    """Carry one training out on a server of its own in `folder`."""
    began = time.monotonic()
    server = start_swarm(folder, models=models, port=0, variables=ONE_THREAD, binding=Binding(backend="verl"))
    try:
        return asyncio.run(_trained(server.url, server.admin_token, job, held_out, began))
    finally:
        stop_swarm(server, grace_s=60.0)


async def _trained(url: str, token: str, job: Job, held_out: int, began: float) -> ServedTraining:
    environment = get_built_in(job.environment)
    tasks, hidden = _tasks(environment, job.seed), _held_out(environment, held_out)
    async with AsyncSwarmClient(url, token) as client:
        await client.ensure_training(job, timeout_s=BOOT_S)
        booted = time.monotonic()
        before = await _success(client, environment, hidden)
        rolling = time.monotonic()
        await client.rollout(agent_of(environment), tasks, concurrency=job.max_concurrency)
        ended = time.monotonic()
        end = await _success(client, environment, hidden)
        page = await client.history(keys=(_SUCCESS, _APART), limit=MOST_STEPS)
    steps = _whole(page.steps, job.steps)
    return ServedTraining(
        environment=job.environment, backend="verl" if job.backend == "verl" else "local", seed=job.seed,
        before=before, end=end, success=tuple(round(step.metrics[_SUCCESS], 5) for step in steps),
        largest_difference=max(step.metrics[_APART] for step in steps),
        boot_s=round(booted - began, 1), train_s=round(ended - rolling, 1),
    )  # fmt: skip


def _whole(steps: Sequence[StepRecord], expected: int) -> Sequence[StepRecord]:
    if [step.step for step in steps] != list(range(1, expected + 1)):
        raise RuntimeError(f"expected the history of {expected} steps, found that of {len(steps)}")
    return steps


def _tasks(environment: PlainEnvironment, seed: int) -> list[Task]:
    tasks = list(environment.tasks("train"))
    random.Random(seed).shuffle(tasks)
    return tasks


def _held_out(environment: PlainEnvironment, number: int) -> list[Task]:
    """Return the same tasks for every training."""
    return random.Random(0).sample(list(environment.tasks("hidden")), number)


async def _success(client: AsyncSwarmClient, environment: PlainEnvironment, tasks: Sequence[Task]) -> float:
    results = await client.evaluate(agent_of(environment), tasks)
    return fmean(bool(result.success) for result in results)
