"""The metrics of one update, under verl's names; `docs/algorithms.md` defines each one once.

Promises: `actor/pg_loss`, `actor/entropy`, `actor/kl_loss` are weighted as the loss is and averaged over optimiser
steps; `actor/ppo_kl`, `actor/pg_clipfrac*` are means over the tokens of all optimiser steps; all else counts each token
of the batch once, however many epochs there are, and compares with the weights the update began with: where those
log-probs were not computed separately, only the first optimiser step's tokens are compared, before any weight changes.
Every value is finite, also when nothing was sampled.
`timing_s/*` do not overlap (`timing_s/update_actor` is the training alone, without `timing_s/old_log_prob` and
`timing_s/ref`), and a part that did not run has no metric. `tokens/trained` counts each sampled token of the batch
once, `tokens/forward` every id that went through a forward with its backward: padding and every epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from swarm.backends.algorithms.advantages import constant_groups
from swarm.backends.algorithms.losses import LOG_RATIO_BOUND, Surrogate
from swarm.backends.algorithms.policy_difference import PolicyDifference
from swarm.backends.algorithms.rows import Tokens
from swarm.backends.protocols import Batch


class UpdateSums:
    """Running sums of one update that begins with weights of `version`; `cap` is the job's `correction_cap`."""

    def __init__(self, version: int, cap: float) -> None:
        self.steps = 0
        self._version = version
        self._weighted: dict[str, float] = {}
        self._tokens = 0
        self._drift = 0.0
        self._clipped = 0.0
        self._dual_clipped = 0.0
        self._seen: dict[int, int] = {}
        self._once = 0
        self._age = 0
        self._difference = PolicyDifference(cap)
        self.fresh = 0
        self._error = 0.0

    def add(self, **terms: Tensor) -> None:
        """Add one micro-batch's share of values that are averaged over optimiser steps."""
        for name, term in terms.items():
            self._weighted[name] = self._weighted.get(name, 0.0) + term.item()

    def add_tokens(self, tokens: Tokens, present: Tensor, proximal: Tensor, terms: Surrogate, weights: Tensor) -> None:
        """Add one micro-batch of M tokens.

        present, proximal (M,): log-probs under the present weights and under the policy the clip compares with;
        terms: what the clip did; weights (M,): the off-policy correction's.
        """
        flags = [terms.clipped.to(weights.dtype), terms.dual_clipped.to(weights.dtype)]
        columns = torch.stack([present.detach(), proximal, tokens.rollout, weights, *flags]).cpu().double()
        present, proximal, rollout, weights, clipped, dual_clipped = columns.unbind()
        versions, episodes = torch.stack([tokens.versions, tokens.episodes]).cpu().unbind()
        self._tokens += len(present)
        self._drift += (proximal - present).sum().item()
        self._clipped += clipped.sum().item()
        self._dual_clipped += dual_clipped.sum().item()
        if self._first_pass(episodes):
            self._once += len(versions)
            self._age += int((self._version - versions).sum())
            begun = present if self.steps == 0 else tokens.proximal
            if begun is not None:
                self._difference.add(begun.cpu().double(), rollout, weights, episodes)
        if self.steps == 0:
            self._add_fresh((present - rollout)[versions == self._version])

    def _first_pass(self, episodes: Tensor) -> bool:
        """Return whether this optimiser step is the first with these episodes: minibatches are whole episodes."""
        return all(self._seen.setdefault(number, self.steps) == self.steps for number in episodes.unique().tolist())

    def _add_fresh(self, gaps: Tensor) -> None:
        self.fresh += len(gaps)
        self._error += gaps.abs().clamp(max=LOG_RATIO_BOUND).exp().sum().item()

    def merge(self, other: UpdateSums) -> None:
        """Add the sums of other tokens of the same optimiser steps, as another rank took them."""
        self.steps = max(self.steps, other.steps)
        for name, total in other._weighted.items():
            self._weighted[name] = self._weighted.get(name, 0.0) + total
        for name in ("_tokens", "_drift", "_clipped", "_dual_clipped", "_once", "_age", "fresh", "_error"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._seen |= other._seen
        self._difference.merge(other._difference)

    @property
    def mismatch(self) -> float:
        """Mean exp |log-prob now - when sampled| over the `fresh` tokens, 0 where there is none.

        These are the first step's tokens of the update's own version.
        """
        return self._error / max(1, self.fresh)

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the whole update."""
        tokens = max(1, self._tokens)
        return {
            **{f"actor/{name}": total / max(1, self.steps) for name, total in self._weighted.items()},
            "actor/ppo_kl": self._drift / tokens,
            "actor/pg_clipfrac": self._clipped / tokens,
            "actor/pg_clipfrac_lower": self._dual_clipped / tokens,
            "training/token_mult_prob_error": self.mismatch,
            **self._difference.metrics(),
            "offpolicy/token_weighted_policy_age": self._age / max(1, self._once),
        }


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean, greatest and least of values as metrics; 0 where there are none."""
    return {
        f"{name}/mean": math.fsum(values) / max(1, len(values)),
        f"{name}/max": float(max(values, default=0)),
        f"{name}/min": float(min(values, default=0)),
    }


def batch_metrics(batch: Batch, advantages: Sequence[float]) -> Mapping[str, float]:
    """Return what describes the batch itself: advantages over episodes, constant groups; 0 where it is empty."""
    found = [
        (reward, episode.group)
        for episode in batch.episodes
        for reward in [each.reward for each in episode.call_rewards] or [episode.reward]
    ]
    return {
        **spread("critic/advantages", advantages),
        "batch/constant_groups": float(constant_groups([reward for reward, _ in found], [group for _, group in found])),
    }


class UpdateCost:
    """Seconds and tokens of one update, counted while it runs."""

    def __init__(self, trained: int) -> None:
        self.forward = 0
        self._trained = trained
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measured(self, part: str) -> Iterator[None]:
        """Measure a part's seconds; what is measured again is added."""
        begun = time.perf_counter()
        yield
        self._seconds[part] = self._seconds.get(part, 0.0) + time.perf_counter() - begun

    def metrics(self) -> Mapping[str, float]:
        """Return what was measured; the throughput is of all parts together."""
        return {
            **{f"timing_s/{part}": seconds for part, seconds in self._seconds.items()},
            "tokens/trained": float(self._trained),
            "tokens/forward": float(self.forward),
            "tokens/trained_per_s": self._trained / max(1e-9, sum(self._seconds.values())),
        }
