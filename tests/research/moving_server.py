"""A swarm server with the local backend whose optimiser moves the weights whatever its step size, for attempts."""

from __future__ import annotations

import sys

import torch

from swarm.backends.local.learner import Optimizer
from swarm.server.__main__ import main

_step = Optimizer.step


def _moves(optimizer: Optimizer, step_size: float) -> None:
    with torch.no_grad():
        next(iter(optimizer.masters.values())).mul_(1 + 1e-6)
    _step(optimizer, step_size)


if __name__ == "__main__":
    Optimizer.step = _moves  # type: ignore[method-assign]
    sys.exit(main())
