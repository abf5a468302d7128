"""What tests of the objective share."""

from __future__ import annotations

import torch
from torch import Tensor

from swarm.algorithms import losses
from swarm.algorithms.objective import Objective, UpdateSums
from swarm.algorithms.rows import Tokens
from swarm.job import Job


def loss_of(job: Job, every: Tensor, tokens: Tokens, reference: Tensor | None, sums: UpdateSums) -> Tensor:
    """Return the loss of M tokens from log-probs (M, V) of the whole vocabulary where each was sampled."""
    present = every[torch.arange(len(every), device=every.device), tokens.targets]
    return Objective(job).token_loss(present, losses.entropy(every), tokens, reference, sums)
