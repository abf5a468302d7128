"""What a micro-batch of sampled tokens contributes to an optimiser step's loss, and what is measured on the way.

Promises: a loss is a sum over tokens, so that micro-batches add up to their minibatch whatever the layout; each
formula stands, with its source, in the functions used here.
Knows nothing of models, rows or optimisers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swarm.backends.local import grpo
from swarm.backends.local.metrics import Sums
from swarm.backends.local.rows import Tokens
from swarm.job import Job


class Objective:
    """A job's loss. `loss` is called for each micro-batch, with the sums of the update that it adds to."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def loss(self, every: Tensor, tokens: Tokens, reference: Tensor | None, sums: Sums) -> Tensor:
        """Return the share () of M tokens in the loss of their minibatch.

        every (M, V): log-probs under the present weights, at the job's temperature, with gradient. reference (M,): of
        the sampled tokens under the frozen reference; None where the job has no KL.
        """
        job = self._job
        logprobs = every.gather(-1, tokens.targets[:, None])[:, 0]
        terms, clipped = grpo.policy_loss(logprobs, tokens.rollout, tokens.advantages, job.clip_ratio)
        policy_loss = loss = (tokens.weights * terms).sum()
        with torch.set_grad_enabled(job.entropy_coef > 0 and torch.is_grad_enabled()):
            entropy = (tokens.weights * grpo.entropy(every)).sum()
        if job.entropy_coef > 0:
            loss = loss - job.entropy_coef * entropy
        if reference is not None:
            divergence = (tokens.weights * grpo.k3(logprobs, reference)).sum()
            loss = loss + job.kl_coef * divergence
            sums.add(kl_loss=divergence)
        sums.add(pg_loss=policy_loss, entropy=entropy)
        sums.add_tokens(logprobs.detach(), tokens.rollout, clipped)
        return loss
