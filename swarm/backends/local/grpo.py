"""GRPO's mathematics, as functions of flat tensors over the sampled tokens of a minibatch.

M is the number of sampled tokens, V the vocabulary. There is no padding and no mask: every entry is a token that
was sampled and is trained once. Sources: GRPO, arXiv 2402.03300 (advantages over a group); Dr. GRPO, arXiv
2503.20783 (without the division by the standard deviation); PPO, arXiv 1707.06347 (clipped ratio); k3, Schulman,
"Approximating KL divergence" (2020).
Knows nothing of models, optimisers or rows.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

_EPSILON = 1e-6
Weighting = Literal["episode", "token"]


def group_advantages(rewards: Sequence[float], groups: Sequence[str], *, normalize: bool) -> list[float]:
    """Return each episode's reward less its group's mean, over the group's (sample) standard deviation if asked.

    A group whose rewards are all equal, and so a group of one, has advantage 0: it compares nothing.
    """
    members: defaultdict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    baselines = {group: _baseline(values, normalize) for group, values in members.items()}
    return [
        (reward - mean) / scale
        for reward, (mean, scale) in zip(rewards, (baselines[group] for group in groups), strict=True)
    ]


def _baseline(rewards: Sequence[float], normalize: bool) -> tuple[float, float]:
    if min(rewards) == max(rewards):
        return rewards[0], 1.0
    return statistics.fmean(rewards), statistics.stdev(rewards) + _EPSILON if normalize else 1.0


def constant_groups(rewards: Sequence[float], groups: Sequence[str]) -> int:
    """Return how many groups have equal rewards throughout: they teach nothing."""
    seen: defaultdict[str, set[float]] = defaultdict(set)
    for reward, group in zip(rewards, groups, strict=True):
        seen[group].add(reward)
    return sum(len(values) == 1 for values in seen.values())


def token_weights(counts: Sequence[int], weights: Sequence[float], weighting: Weighting) -> list[float]:
    """Return the weight of one sampled token of each episode, given its number of tokens and its own weight.

    A token-sum with these weights is, by `episode`, the weighted mean over the episodes of the mean over each one's
    tokens: it does not matter how many rows or tokens an episode has, and one without tokens still counts in the
    denominator. By `token` it is the weighted mean over all sampled tokens.
    """
    sizes = [weight * (count if weighting == "token" else 1) for count, weight in zip(counts, weights, strict=True)]
    total = math.fsum(sizes)
    return [
        weight / (total * (1 if weighting == "token" else count)) if weight and count else 0.0
        for count, weight in zip(counts, weights, strict=True)
    ]


def all_logprobs(logits: Tensor, temperature: float) -> Tensor:
    """Return fp32 log-probs (M, V) of logits (M, V) at the sampling temperature."""
    return (logits.float() / temperature).log_softmax(-1)


def entropy(logprobs: Tensor) -> Tensor:
    """Return the entropy (M,) in nats of distributions given by log-probs (M, V)."""
    return -(logprobs.exp() * logprobs).sum(-1)


def policy_loss(logprobs: Tensor, old: Tensor, advantages: Tensor, clip_ratio: float) -> tuple[Tensor, Tensor]:
    """Return the clipped surrogate's loss (M,) and where the clip bites (M,), bool; all arguments are (M,).

    -min(r A, clip(r, 1 - eps, 1 + eps) A) with r = exp(logprobs - old): PPO, equation 7.
    """
    ratio = (logprobs - old).exp()
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    return torch.maximum(free, held), held > free


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return the k3 estimate (M,) of KL(policy || reference) at the sampled tokens: never negative."""
    gap = reference - logprobs
    return gap.exp() - gap - 1
