"""What one sampled token weighs in the loss of a minibatch.

Promises: a loss is the sum over tokens of weight times term, so that it does not matter how an episode's tokens are
spread over rows and micro-batches; only ratios of the episodes' own weights count; one of weight 0 changes nothing,
not even a denominator.
Knows nothing of rewards or models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from swarm.job import Job


def token_weights(job: Job, counts: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Return the weight of one sampled token of each episode, given its number of tokens n_i and its own weight w_i.

    `dr_grpo` (arXiv 2503.20783, listing 1): w_i / (sum of w x max_context), whatever n_i is. Else by the job's
    `loss_weighting`: `episode` (GRPO, arXiv 2402.03300, equation 3): w_i / (sum of w x n_i); `token` (DAPO, arXiv
    2503.14476, equation 12): w_i / (sum of w x n). By the first two an episode without tokens still counts in the
    denominator.
    """
    constant = job.algorithm == "dr_grpo"
    by_token = job.loss_weighting == "token" and not constant
    sizes = [weight * (count if by_token else 1) for count, weight in zip(counts, weights, strict=True)]
    total = math.fsum(sizes)
    shares = [job.max_context if constant else 1 if by_token else count for count in counts]
    return [
        weight / (total * share) if weight and count else 0.0
        for count, weight, share in zip(counts, weights, shares, strict=True)
    ]


def minibatch_weights(job: Job, counts: Sequence[int], weights: Sequence[float], chosen: Sequence[int]) -> list[float]:
    """Return the weight of a token of each episode in a minibatch of the `chosen` ones; 0 for all others."""
    members = set(chosen)
    return token_weights(job, counts, [own if number in members else 0.0 for number, own in enumerate(weights)])


def minibatches(episodes: int, wanted: int, order: torch.Generator) -> Iterator[list[int]]:
    """Yield near-equal parts of a fresh permutation of the episodes: none dropped, none empty."""
    parts = min(wanted, max(1, episodes))
    drawn = torch.randperm(episodes, generator=order) if parts > 1 else torch.arange(episodes)
    for part in drawn.tensor_split(parts):
        yield part.tolist()
