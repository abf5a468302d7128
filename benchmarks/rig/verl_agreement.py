"""Trainings of either backend, and the verdict on what they differ by: what `verl_agreement.py` holds for equal.

One training is as users of a backend run it: a swarm server as `ajet swarm start` begins one, scripted agents over
HTTP, and evaluations of held-out tasks by the same server before the first step and after the last one. Servers of both
backends run with the Python of `AJET_VERL_PYTHON`, so that nothing differs but the backend. Each training has a server,
a Ray and a vLLM of its own: a server that ends a training ends its Ray, too.

A claim for each environment and each of `MARGINS`: that of a two-armed study with the test `paired`, judged by
`studies.verdicts`. The backends agree where every one of them is `equivalent`. Margins were written down before any
training was made for it. Success is a share, 0 to 1. Training alone moves it by 0.2 to 0.4 in these jobs: a margin of
0.1 is well below what is learned, and about twice what 216 plays and five seeds can tell apart.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

from research.installation.servers import Binding, start_swarm, stop_swarm
from rig.plots import figures
from rig.training import ONE_THREAD, judged
from swarm.client import AsyncSwarmClient
from swarm.environments.base import PlainEnvironment, Task
from swarm.environments.play import agent_of
from swarm.environments.registry import BUILT_IN
from swarm.job import Job, TinyModel

ALPHA: Final = 0.05
"""Level of each of the two one-sided tests. All claims must hold for the backends to agree, so none is corrected for
the others: an intersection-union test (Berger 1982) keeps this level as a whole."""
MARGINS: Final[Mapping[str, float]] = {"end": 0.1, "curve": 0.1}
"""Largest difference that counts as none: `end` is success on held-out tasks after the last step, `curve` the mean of
training success over all steps."""


Backend = Literal["local", "verl"]
BACKENDS: Final[tuple[Backend, ...]] = ("local", "verl")
BOOT_S: Final = 900.0
MOST_STEPS: Final = 500
"""Steps that a page of a server's history holds."""
_SUCCESS: Final = "critic/success/mean"
_APART: Final = "training/rollout_probs_diff_max"


@dataclass(frozen=True, slots=True)
class AgreementSize:
    """How much each training is; `held_out` tasks are played `attempts` times each."""

    environments: tuple[str, ...]
    seeds: int
    steps: int
    episodes_per_step: int
    held_out: int
    attempts: int = 1


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


def job_of(environment: str, backend: Backend, seed: int, size: AgreementSize) -> Job:
    """Return the job of a training: but for `backend` the same in both arms.

    Rows are linear, as `verl` has no trees, and heads have 32 numbers, as vLLM has no attention for fewer on a CPU.
    """
    return Job(
        environment=environment, backend=backend, model=TinyModel(head_size=32), seed=seed, steps=size.steps,
        episodes_per_step=size.episodes_per_step, merging="linear", device="cpu", checkpoint_every=size.steps,
    )  # fmt: skip


def trained(folder: Path, models: Path, job: Job, size: AgreementSize) -> ServedTraining:
    """Carry one training out on a server of its own in `folder`."""
    began = time.monotonic()
    server = start_swarm(folder, models=models, port=0, variables=ONE_THREAD, binding=Binding(backend="verl"))
    try:
        return asyncio.run(_trained(server.url, server.admin_token, job, size, began))
    finally:
        stop_swarm(server, grace_s=60.0)


async def _trained(url: str, token: str, job: Job, size: AgreementSize, began: float) -> ServedTraining:
    environment = BUILT_IN[job.environment]
    tasks = list(environment.tasks("train"))
    random.Random(job.seed).shuffle(tasks)
    hidden = random.Random(0).sample(list(environment.tasks("hidden")), size.held_out)  # the same for every training
    async with AsyncSwarmClient(url, token) as client:
        await client.ensure_training(job, timeout_s=BOOT_S)
        booted = time.monotonic()
        before = await _success(client, environment, hidden, size.attempts)
        rolling = time.monotonic()
        await client.rollout(agent_of(environment), tasks, concurrency=job.max_concurrency)
        ended = time.monotonic()
        end = await _success(client, environment, hidden, size.attempts)
        page = await client.history(keys=(_SUCCESS, _APART), limit=MOST_STEPS)
    steps = page.steps
    if [step.step for step in steps] != list(range(1, job.steps + 1)):
        raise RuntimeError(f"expected the history of {job.steps} steps, found that of {len(steps)}")
    return ServedTraining(
        environment=job.environment, backend="verl" if job.backend == "verl" else "local", seed=job.seed,
        before=before, end=end, success=tuple(round(step.metrics[_SUCCESS], 5) for step in steps),
        largest_difference=max(step.metrics[_APART] for step in steps),
        boot_s=round(booted - began, 1), train_s=round(ended - rolling, 1),
    )  # fmt: skip


async def _success(
    client: AsyncSwarmClient, environment: PlainEnvironment, tasks: Sequence[Task], attempts: int
) -> float:
    results = await client.evaluate(agent_of(environment), tasks, samples=attempts)
    return fmean(bool(result.success) for result in results)


MEASURES: Final[Mapping[str, Callable[[ServedTraining], float]]] = {
    "end": lambda training: training.end,
    "curve": lambda training: training.curve,
}
MEANINGS: Final = {"end": "success on held-out tasks after the last step", "curve": "mean training success"}


def of_environment(environment: str, trainings: Sequence[ServedTraining], held_out: int) -> dict[str, Any]:
    """Return the figures of one environment: both arms, what training gained in each, and the verdicts."""
    own = [training for training in trainings if training.environment == environment]
    arms: dict[str, list[ServedTraining]] = {
        backend: sorted((each for each in own if each.backend == backend), key=lambda each: each.seed)
        for backend in BACKENDS
    }
    verdicts = {}
    for name, measure in MEASURES.items():
        values = {backend: {each.seed: measure(each) for each in arm} for backend, arm in arms.items()}
        verdicts[name] = {"margin": MARGINS[name], **judged(
            environment, values, meaning=MEANINGS[name], episodes=held_out, test="paired", alpha=ALPHA,
            margin=MARGINS[name],
        )}  # fmt: skip
    return {"arms": {backend: _figures(arm) for backend, arm in arms.items()}, "verdicts": verdicts}


def _figures(arm: Sequence[ServedTraining]) -> dict[str, Any]:
    return {
        **{name: figures([measure(each) for each in arm]) for name, measure in MEASURES.items()},
        "before": figures([each.before for each in arm]),
        "gain": figures([each.end - each.before for each in arm]),
        "success by step": [list(each.success) for each in arm],
        "largest difference of a probability": max(each.largest_difference for each in arm),
        "seconds": {name: round(fmean(getattr(each, name) for each in arm), 1) for name in ("boot_s", "train_s")},
    }
