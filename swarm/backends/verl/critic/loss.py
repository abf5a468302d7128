"""The critic's loss, which runs inside verl's engine for each of its micro-batches, and what it measures on the way.

Promises: micro-batches and ranks add up to exactly the minibatch's loss, as the policy's do (`learning.loss`).
Knows nothing of optimisers or Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.backends.verl.critic import adapter
from swarm.backends.verl.learning.contract import column, sampled
from swarm.job import Job


@dataclass(slots=True)
class ValueSums:
    """Sums over the tokens of all optimiser steps of one update; `loss` is weighted, the rest counts each as one."""

    loss: float = 0.0
    predicted: float = 0.0
    clipped: float = 0.0
    tokens: int = 0

    def merge(self, other: ValueSums) -> None:
        """Add the sums of other tokens of the same optimiser steps, as another rank took them."""
        self.loss += other.loss
        self.predicted += other.predicted
        self.clipped += other.clipped
        self.tokens += other.tokens

    def metrics(self, steps: int) -> Mapping[str, float]:
        """Return verl's metrics of an update of so many optimiser steps."""
        tokens = max(1, self.tokens)
        return {
            "critic/vf_loss": self.loss / max(1, steps),
            "critic/vf_clipfrac": self.clipped / tokens,
            "critic/vpred_mean": self.predicted / tokens,
        }


class ValueLoss:
    """verl's loss of a critic, as verl calls a loss function; `sums` are of what this rank computed in one update."""

    def __init__(self, job: Job) -> None:
        self.sums = ValueSums()
        self._job = job

    def __call__(
        self, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the micro-batch's share () of the loss times the number of ranks, and no metrics: see `sums`."""
        nothing = model_output["values"].values()[:0].sum()
        if not data["response_mask"].values().any():
            return nothing, {}
        present = sampled(model_output["values"], data).float()
        before, returns, weights = (column(data, name) for name in ("values", "returns", "token_weights"))
        loss, clipped = adapter.value_loss(self._job, present, before, returns, weights)
        predicted = present.detach().sum(dtype=torch.float64).item()
        self.sums.merge(ValueSums(loss.item(), predicted, clipped * len(present), len(present)))
        return loss * data["dp_size"] + nothing, {}
