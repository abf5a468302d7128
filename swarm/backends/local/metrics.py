"""The learner's metrics, under verl's names.

Promises: `actor/pg_loss`, `actor/entropy` and `actor/kl_loss` are weighted as the loss is and
averaged over optimiser steps; `actor/ppo_kl` and `actor/pg_clipfrac` are means over trained tokens;
`training/rollout_probs_diff_*` compare the learner's probabilities with the engine's in the first optimiser step,
before any weight has changed, so they measure the two forwards and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from swarm.backends.local.grpo import constant_groups
from swarm.backends.protocols import Batch


class Sums:
    """Running sums of one update."""

    def __init__(self) -> None:
        self.steps = 0
        self._weighted: dict[str, float] = {}
        self._tokens = 0
        self._drift = 0.0
        self._clipped = 0.0
        self._first_tokens = 0
        self._gap = 0.0
        self._worst = 0.0

    def add(self, **terms: Tensor) -> None:
        """Add one micro-batch's share of values that are averaged over optimiser steps."""
        for name, term in terms.items():
            self._weighted[name] = self._weighted.get(name, 0.0) + term.item()

    def add_tokens(self, logprobs: Tensor, old: Tensor, clipped: Tensor) -> None:
        """Add one micro-batch's tokens: present log-probs (M,), the engine's (M,) and where the clip bit (M,)."""
        self._tokens += len(old)
        self._drift += (old - logprobs).sum().item()
        self._clipped += clipped.sum().item()
        if self.steps == 0:
            gap = (logprobs.exp() - old.exp()).abs()
            self._first_tokens += len(old)
            self._gap += gap.sum().item()
            self._worst = max(self._worst, gap.max().item())

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the whole update; every value is finite, also when nothing was sampled."""
        tokens = max(1, self._tokens)
        return {
            **{f"actor/{name}": total / max(1, self.steps) for name, total in self._weighted.items()},
            "actor/ppo_kl": self._drift / tokens,
            "actor/pg_clipfrac": self._clipped / tokens,
            "training/rollout_probs_diff_mean": self._gap / max(1, self._first_tokens),
            "training/rollout_probs_diff_max": self._worst,
        }


def batch_metrics(batch: Batch, advantages: Sequence[float]) -> Mapping[str, float]:
    """Return what describes the batch itself: advantages over episodes, constant groups; 0 where it is empty."""
    episodes = batch.episodes
    return {
        "critic/advantages/mean": sum(advantages) / max(1, len(advantages)),
        "critic/advantages/max": max(advantages, default=0.0),
        "critic/advantages/min": min(advantages, default=0.0),
        "batch/constant_groups": float(
            constant_groups([episode.reward for episode in episodes], [episode.group for episode in episodes])
        ),
    }
