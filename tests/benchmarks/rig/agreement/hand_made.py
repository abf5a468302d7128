"""Trainings that were written by hand, and never made."""

from __future__ import annotations

from rig.agreement.served import AgreementSize, Backend, ServedTraining
from rig.agreement.trainings import BACKENDS

SIZE = AgreementSize(("guess", "arith"), seeds=5, steps=2, episodes_per_step=16, held_out=8)


def training(environment: str, backend: Backend, seed: int, end: float) -> ServedTraining:
    return ServedTraining(environment, backend, seed, 0.3, end, (end - 0.2, end - 0.1), 2e-6, 30.0, 60.0)


def trainings(verl_less_local: float) -> list[ServedTraining]:
    """Return five seeds of both environments and backends, a little noise in each."""
    return [
        training(name, backend, seed, 0.7 + 0.01 * ((seed * 3 + (backend == "verl")) % 5)
                 + (verl_less_local if backend == "verl" else 0.0))
        for name in SIZE.environments for backend in BACKENDS for seed in range(5)
    ]  # fmt: skip
