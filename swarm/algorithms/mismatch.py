"""How far learner and engine disagree on sampled tokens, and the guard that stops training.

p is a token's probability under the weights the update begins with, q what it was sampled with, w the off-policy
weight; names and definitions are verl's (0.9.1). Memory is a few numbers; every value is finite, 0 without tokens
(log-probs below -100 count as -100). An update with too few tokens of its own weights neither adds to the guard's count
nor resets it; a checkpoint saves the count.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from swarm.algorithms.losses import LOG_RATIO_BOUND
from swarm.rendering.messages import BackendError

_log = logging.getLogger(__name__)

_LOWEST = -100.0
_ESS_EPSILON = 1e-8


class PolicyDifference:
    """Running sums over tokens. `cap` bounds the correction's weights."""

    def __init__(self, cap: float) -> None:
        self._cap = cap
        self._tokens = 0
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64)
        self._worst = self._heaviest = 0.0
        self._lightest = math.inf

    def add(self, begun: Tensor, rollout: Tensor, weights: Tensor) -> None:
        """Add M tokens' log-probs, begun and sampled, and weights: (M,), on the CPU, float64."""
        if not len(begun):
            return
        begun, rollout = begun.clamp(min=_LOWEST), rollout.clamp(min=_LOWEST)
        self._tokens += len(begun)
        p, q = begun.exp(), rollout.exp()
        gap = (p - q).abs()
        log_ratio = (begun - rollout).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        ratio = log_ratio.exp()
        spread = [gap, gap.square(), p, q, p.square(), q.square(), p * q]
        masks = [mask.double() for mask in (ratio > self._cap, ratio < 1 / self._cap, weights == 0)]
        ratios = [rollout - begun, ratio - log_ratio - 1, ratio.square()]
        self._sums += torch.stack([*spread, weights, weights.square(), *masks, *ratios]).sum(1)
        self._worst = max(self._worst, gap.max().item())
        self._heaviest = max(self._heaviest, weights.max().item())
        self._lightest = min(self._lightest, weights.min().item())

    def merge(self, other: PolicyDifference) -> None:
        self._tokens += other._tokens
        self._sums += other._sums
        self._worst, self._heaviest = max(self._worst, other._worst), max(self._heaviest, other._heaviest)
        self._lightest = min(self._lightest, other._lightest)

    def metrics(self) -> Mapping[str, float]:
        """Return Pearson's correlation of MiniMax-M1 (arXiv 2506.13585), Kong's effective sample size as a part of the
        tokens, and means over tokens."""
        tokens = max(1, self._tokens)
        mean = dict(zip(_SUMS, (self._sums / tokens).tolist(), strict=True))
        spread = max(0.0, mean["gap2"] - mean["gap"] ** 2) * (tokens / max(1, tokens - 1))
        p2, q2 = mean["p2"] - mean["p"] ** 2, mean["q2"] - mean["q"] ** 2
        scale = math.sqrt(p2) * math.sqrt(q2) if p2 > 0 and q2 > 0 else 0.0
        shared = mean["pq"] - mean["p"] * mean["q"]
        squares = mean["w2"] / (mean["w"] + _ESS_EPSILON) ** 2
        return {
            "training/rollout_probs_diff_valid": float(self._tokens > 0),
            "training/rollout_probs_diff_mean": mean["gap"],
            "training/rollout_probs_diff_max": self._worst,
            "training/rollout_probs_diff_std": math.sqrt(spread),
            "training/rollout_actor_probs_pearson_corr": max(-1.0, min(1.0, shared / scale)) if scale else 0.0,
            "rollout_corr/rollout_is_mean": mean["w"],
            "rollout_corr/rollout_is_max": self._heaviest,
            "rollout_corr/rollout_is_min": self._lightest if self._tokens else 0.0,
            "rollout_corr/rollout_is_std": math.sqrt(max(0.0, mean["w2"] - mean["w"] ** 2)),
            "rollout_corr/rollout_is_eff_sample_size": 1 / squares if squares > 0 else 0.0,
            "rollout_corr/rollout_is_ratio_fraction_high": mean["high"],
            "rollout_corr/rollout_is_ratio_fraction_low": mean["low"],
            "rollout_corr/rollout_is_oob_ratio": mean["high"] + mean["low"],
            "rollout_corr/rollout_rs_masked_fraction": mean["masked"],
            "rollout_corr/kl": mean["q-p log"],
            "rollout_corr/k3_kl": mean["k3"],
            "rollout_corr/chi2_token": mean["ratio2"] - 1 if self._tokens else 0.0,
        }


_SUMS = ("gap", "gap2", "p", "q", "p2", "q2", "pq", "w", "w2", "high", "low", "masked", "q-p log", "k3", "ratio2")
"""What is summed over tokens, in the order of `PolicyDifference.add`."""


PATIENCE = 3
"""Updates in a row above the limit that stop a training: a single one may be an outlier."""
MIN_TOKENS = 32
"""Fewest tokens for which an update is judged: in bfloat16 single tokens may well be above the limit."""


class MismatchGuard:
    """Counts the updates in a row whose error was above `limit`."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.above = 0
        """How many there were up to now; a checkpoint saves it."""

    def check(self, error: float, tokens: int) -> None:
        """Record an update's `token_mult_prob_error`, a mean over `tokens`; BackendError after `PATIENCE` in a row."""
        if tokens < MIN_TOKENS:
            return
        self.above = self.above + 1 if error > self._limit else 0
        if self.above >= PATIENCE:
            said = (
                f"learner and engine disagree about tokens sampled by the weights this update began with: the mean of "
                f"exp |difference of log-probs| is {error:.4g}, above the job's mismatch_limit of {self._limit:g} for "
                f"{self.above} updates in a row. Look at what makes the engine compute otherwise than the learner "
                f"(dtype, temperature or a cut of the distribution, keys and values of older weights, another "
                f"attention implementation); raise mismatch_limit only if so much is expected"
            )
            _log.error("event=mismatch reason=%r", said)
            raise BackendError(said)
