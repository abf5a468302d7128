"""Noise banks that say exactly what a test wants them to say."""

from __future__ import annotations

import math

from research.design.noise_bank import NoiseBank, Observation, model_key
from swarm.job import Job


def bank(
    sd: float = 0.02,
    *,
    runs: int = 20,
    evaluation_sd: float | None = None,
    episodes: int = 512,
    environments: tuple[str, ...] = ("guess", "arith"),
    job: Job | None = None,
) -> NoiseBank:
    """Return a bank with one group of an even number of runs in each environment, whose sample sd is exactly `sd`."""
    return NoiseBank(
        frozenset(
            entry
            for environment in environments
            for entry in group(
                sd, runs, evaluation_sd=evaluation_sd, episodes=episodes, environment=environment, job=job or Job()
            )
        )
    )


def group(
    sd: float,
    runs: int,
    *,
    evaluation_sd: float | None = None,
    episodes: int = 512,
    environment: str = "guess",
    job: Job | None = None,
    name: str = "g",
) -> list[Observation]:
    """Return runs that differ in their seed alone, half of them above and half below 0.5."""
    assert runs % 2 == 0
    base, step = job or Job(), math.sqrt((runs - 1) / runs)
    return [
        Observation(
            run=f"{environment}-{name}-{seed}", study=f"study-{name}", environment=environment, model=model_key(base),
            algorithm=base.algorithm, group=name, pairing=name, decoding="d", seed=seed, steps=base.steps,
            metric="hidden:hidden/success", episodes=episodes, value=0.5 + (-1) ** seed * sd * step,
            initial=None if evaluation_sd is None else 0.3 + (-1) ** (seed // 2) * evaluation_sd * step,
        )
        for seed in range(runs)
    ]  # fmt: skip
