"""The loss that runs inside verl's engine for each of its micro-batches: the job's, over the sampled tokens alone.

Promises: micro-batches, however the token budget cuts them, and ranks add up to exactly the minibatch's loss: FSDP
averages gradients over the ranks, so that each rank's share is multiplied by their number; a micro-batch without a
sampled token contributes 0 and still takes part in the ranks' exchange; it can be pickled.
Knows nothing of optimisers or Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.backends.algorithms.losses import Surrogate
from swarm.backends.algorithms.metrics import UpdateSums
from swarm.backends.algorithms.objective import Objective
from swarm.backends.algorithms.rows import Tokens
from swarm.backends.verl.learning import named
from swarm.backends.verl.learning.contract import batch_tokens, column, sampled
from swarm.job import Job


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """All M' tokens of a minibatch, their log-probs (M',) under the present weights, and what to draw with."""

    tokens: Tokens
    present: Tensor
    seed: int


class SharedLoss:
    """The job's `Objective`, as verl calls a loss function; `sums` are of what this rank computed in one update."""

    def __init__(self, job: Job, version: int) -> None:
        self.sums = UpdateSums(version, job.correction_cap)
        self.whole: Whole | None = None
        """The minibatch that the next micro-batches are of, where a token's term depends on those of others."""
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
        loss = self._share(present, entropy, tokens, reference, data)
        return loss * data["dp_size"] + nothing, {}

    def _share(
        self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None, data: TensorDict
    ) -> Tensor:
        return self._objective.token_loss(present, entropy, tokens, reference, self.sums)


class NamedLoss(SharedLoss):
    """The loss of the policy that the job names, by verl's function; entropy and divergence are the objective's."""

    def __init__(self, job: Job, version: int) -> None:
        super().__init__(job, version)
        self._job = job
        self._bypass = named.named(job).bypass

    def _share(
        self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None, data: TensorDict
    ) -> Tensor:
        own = self._part(present, tokens)
        if self.whole is None:
            found = named.policy_loss(self._job, own)
        else:
            found = named.policy_loss(self._job, self._of_whole(own, column(data, "places")), seed=self.whole.seed)
        self.sums.add(pg_loss=found.loss)
        # verl tells parts of all tokens, and our sums are over tokens: each counts as the part
        told = [torch.full_like(own.present, part) for part in (found.clipped, found.clipped_lower)]
        terms = Surrogate(own.present.detach(), *told)
        self.sums.add_tokens(tokens, own.present, own.proximal, terms, own.correction)
        return self._objective.with_bonuses(found.loss, own.present, entropy, tokens, reference, self.sums)

    def _part(self, present: Tensor, tokens: Tokens) -> named.Part:
        if self._bypass:
            return named.Part(tokens, present, tokens.rollout, torch.ones_like(tokens.rollout), tokens.weights)
        proximal = self._objective.proximal(present, tokens)
        return named.Part(tokens, present, proximal, self._objective.correction(proximal, tokens), tokens.weights)

    def _of_whole(self, own: named.Part, places: Tensor) -> named.Part:
        """Return the whole minibatch, in which the tokens of one micro-batch alone have weights and gradients.

        Every micro-batch sees the same values, so that all of them find the same statistics.
        """
        assert self.whole is not None
        device = own.present.device
        tokens, present = _moved(self.whole.tokens, device), self.whole.present.to(device)
        weights = torch.zeros_like(tokens.weights).index_copy(0, places, own.weights)
        part = self._part(present.index_add(0, places, own.present - own.present.detach()), tokens)
        return named.Part(tokens, part.present, part.proximal, part.correction, weights)


def _moved(tokens: Tokens, device: torch.device) -> Tokens:
    known: dict[str, Any] = {each.name: getattr(tokens, each.name) for each in fields(tokens)}
    return replace(tokens, **{name: value.to(device) for name, value in known.items() if value is not None})
