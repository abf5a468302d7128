"""The loss that runs inside verl's engine for each of its micro-batches: our objective over the sampled tokens alone.

Promises: micro-batches, however the token budget cuts them, and ranks add up to exactly the minibatch's loss: FSDP
averages gradients over the ranks, so that each rank's share is multiplied by their number; a micro-batch without a
sampled token contributes 0 and still takes part in the ranks' exchange; it can be pickled.
Knows nothing of optimisers or Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor

from swarm.backends.algorithms.metrics import UpdateSums
from swarm.backends.algorithms.objective import Objective
from swarm.backends.verl.learning.contract import batch_tokens, sampled
from swarm.job import Job


class SharedLoss:
    """The job's `Objective`, as verl calls a loss function; `sums` are of what this rank computed in one update."""

    def __init__(self, job: Job, version: int) -> None:
        self.sums = UpdateSums(version, job.correction_cap)
        self._objective = Objective(job)

    def __call__(
        self, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the micro-batch's share () of the loss times the number of ranks, and no metrics: see `sums`."""
        nothing = model_output["log_probs"].values()[:0].sum()
        if not data["response_mask"].values().any():
            return nothing, {}
        tokens, reference = batch_tokens(data)
        present, entropy = sampled(model_output["log_probs"], data), sampled(model_output["entropy"], data)
        loss = self._objective.token_loss(present, entropy, tokens, reference, self.sums)
        return loss * data["dp_size"] + nothing, {}
