"""A micro-batch's contribution to the loss, and the metrics of one update.

A loss is a sum over tokens, so micro-batches add up whatever the layout; `docs/algorithms.md` defines each formula and
metric once. `actor/pg_loss`, `actor/entropy`, `actor/kl_loss` are weighted as the loss is and averaged over optimiser
steps; `actor/ppo_kl`, `actor/pg_clipfrac*` are means over all steps' tokens; all else counts each token once and
compares with the weights the update began with (without separate log-probs: the first step's tokens only). Every value
is finite, and `timing_s/*` do not overlap.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from swarm.algorithms import losses
from swarm.algorithms.losses import LOG_RATIO_BOUND, PolicyDifference, Surrogate, correction_weights
from swarm.algorithms.rows import Tokens
from swarm.job import Job


class UpdateSums:
    """Running sums of one update that begins with weights of `version`; `cap` is the job's `correction_cap`."""

    def __init__(self, version: int, cap: float) -> None:
        self.steps = 0
        self._version = version
        self._weighted: dict[str, float] = defaultdict(float)
        self._sums: dict[str, float] = defaultdict(float)
        self._seen: dict[int, int] = {}
        self._difference = PolicyDifference(cap)
        self.fresh = 0

    def add(self, **terms: Tensor) -> None:
        """Add one micro-batch's share of values that are averaged over optimiser steps."""
        for name, term in terms.items():
            self._weighted[name] += term.item()

    def add_tokens(self, tokens: Tokens, present: Tensor, proximal: Tensor, terms: Surrogate, weights: Tensor) -> None:
        """Add M tokens, log-probs (M,) present and as the clip compares, what it did, and the correction's weights."""
        flags = [terms.clipped.to(weights.dtype), terms.dual_clipped.to(weights.dtype)]
        columns = torch.stack([present.detach(), proximal, tokens.rollout, weights, *flags]).cpu().double()
        present, proximal, rollout, weights, clipped, dual_clipped = columns.unbind()
        versions, episodes = torch.stack([tokens.versions, tokens.episodes]).cpu().unbind()
        self._sums["tokens"] += len(present)
        self._sums["drift"] += (proximal - present).sum().item()
        self._sums["clipped"] += clipped.sum().item()
        self._sums["dual_clipped"] += dual_clipped.sum().item()
        # whether this optimiser step is the first with these episodes: minibatches are whole episodes
        if all(self._seen.setdefault(number, self.steps) == self.steps for number in episodes.unique().tolist()):
            self._sums["once"] += len(versions)
            self._sums["age"] += (self._version - versions).sum().item()
            begun = present if self.steps == 0 else tokens.proximal
            if begun is not None:
                self._difference.add(begun.cpu().double(), rollout, weights)
        if self.steps == 0:
            gaps = (present - rollout)[versions == self._version]
            self.fresh += len(gaps)
            self._sums["error"] += gaps.abs().clamp(max=LOG_RATIO_BOUND).exp().sum().item()

    def merge(self, other: "UpdateSums") -> None:
        self.steps = max(self.steps, other.steps)
        self.fresh += other.fresh
        for own, theirs in ((self._weighted, other._weighted), (self._sums, other._sums)):
            for name, total in theirs.items():
                own[name] += total
        self._seen |= other._seen
        self._difference.merge(other._difference)

    @property
    def mismatch(self) -> float:
        """Mean exp |log-prob now - when sampled| over the first step's `fresh` tokens, of the update's own version."""
        return self._sums["error"] / max(1, self.fresh)

    def metrics(self) -> Mapping[str, float]:
        sums, tokens = self._sums, max(1, self._sums["tokens"])
        return {
            **{f"actor/{name}": total / max(1, self.steps) for name, total in self._weighted.items()},
            "actor/ppo_kl": sums["drift"] / tokens,
            "actor/pg_clipfrac": sums["clipped"] / tokens,
            "actor/pg_clipfrac_lower": sums["dual_clipped"] / tokens,
            "training/token_mult_prob_error": self.mismatch,
            **self._difference.metrics(),
            "offpolicy/token_weighted_policy_age": sums["age"] / max(1, sums["once"]),
        }


def advantage_metrics(advantages: Sequence[float]) -> Mapping[str, float]:
    """Return what describes a batch's advantages, over episodes; 0 where it is empty."""
    return {
        "critic/advantages/mean": math.fsum(advantages) / max(1, len(advantages)),
        "critic/advantages/max": float(max(advantages, default=0)),
        "critic/advantages/min": float(min(advantages, default=0)),
    }


class UpdateCost:
    """Seconds and tokens of one update, counted while it runs."""

    def __init__(self, trained: int) -> None:
        self.forward = 0
        self._trained = trained
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._seconds[part] = self._seconds.get(part, 0.0) + time.perf_counter() - begun

    def metrics(self) -> Mapping[str, float]:
        """The throughput is of all parts together."""
        return {
            **{f"timing_s/{part}": seconds for part, seconds in self._seconds.items()},
            "tokens/trained": float(self._trained),
            "tokens/forward": float(self.forward),
            "tokens/trained_per_s": self._trained / max(1e-9, sum(self._seconds.values())),
        }


class Objective:
    """A job's loss. `token_loss` is called for each micro-batch, with the sums of the update that it adds to."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._several = job.epochs * job.minibatches > 1
        self._off = job.rollout_correction == "off"
        self._sequences = job.algorithm == "gspo"
        self.needs_sequences = self._sequences and (self._several or self._off)
        """Whether a minibatch of several micro-batches must begin with a pass that fills `Tokens.sequence`."""

    def needs_proximal(self, *, stale: bool) -> bool:
        """Whether an update must begin with a pass that computes `Tokens.proximal`; `stale`: it has older tokens."""
        return self._several and not self._off and stale

    def sequences(self, parts: Sequence[tuple[Tensor, Tokens]]) -> list[Tensor]:
        """Return `Tokens.sequence` of each micro-batch, of its tokens and their present log-probs (M,)."""
        ratios = [present.detach() - self.proximal(present, tokens) for present, tokens in parts]
        means = losses.episode_means(torch.cat(ratios), torch.cat([tokens.episodes for _, tokens in parts]))
        return list(means.split([len(ratio) for ratio in ratios]))

    def token_loss(
        self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None, sums: UpdateSums
    ) -> Tensor:
        """Return the share () of M tokens in the loss of their minibatch, from the targets' log-probs and entropy (M,),
        with gradient. reference (M,): log-probs of the sampled tokens; None where the job has no KL. Where
        `Tokens.sequence` is needed and missing, all tokens of each episode must be among these."""
        job, proximal = self._job, self.proximal(present, tokens)
        high = job.clip_ratio if job.clip_ratio_high is None else job.clip_ratio_high
        if self._sequences:
            mean = tokens.sequence
            if mean is None:
                mean = losses.episode_means(present.detach() - proximal, tokens.episodes)
            ratio = losses.sequence_log_ratio(present, mean)
        else:
            ratio = losses.token_log_ratio(present, proximal)
        terms = losses.ppo_surrogate(ratio, tokens.advantages, job.clip_ratio, high, job.dual_clip)
        correction = self.correction(proximal, tokens)
        loss = (tokens.weights * correction * terms.loss).sum()
        sums.add(pg_loss=loss)
        sums.add_tokens(tokens, present, proximal, terms, correction)
        entropy = entropy if job.entropy_coef > 0 else entropy.detach()
        return self.add_bonuses(loss, present, entropy, tokens, reference, sums)

    def add_bonuses(
        self, loss: Tensor, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None, sums: UpdateSums
    ) -> Tensor:
        """Return the policy's `loss` () with entropy bonus and KL penalty; the arguments are those of `token_loss`."""
        job = self._job
        with torch.set_grad_enabled(job.entropy_coef > 0 and torch.is_grad_enabled()):
            bonus = (tokens.weights * entropy).sum()
        if job.entropy_coef > 0:
            loss = loss - job.entropy_coef * bonus
        if reference is not None:
            divergence = (tokens.weights * losses.divergence(present, reference, job.kl_estimator)).sum()
            loss = loss + job.kl_coef * divergence
            sums.add(kl_loss=divergence)
        sums.add(entropy=bonus)
        return loss

    def correction(self, proximal: Tensor, tokens: Tokens) -> Tensor:
        """Return the off-policy factor (M,) of each token's policy loss: the tokens' own where they have one."""
        if tokens.correction is not None:
            return tokens.correction if tokens.kept is None else tokens.correction * tokens.kept
        ratio = losses.token_log_ratio(proximal, tokens.rollout).exp()
        return correction_weights(ratio, self._job.rollout_correction, self._job.correction_cap)

    def proximal(self, present: Tensor, tokens: Tokens) -> Tensor:
        """Return the proximal log-probs (M,), without gradient: see `docs/algorithms.md`, off-policy correction."""
        if self._off:
            return tokens.rollout
        if not self._several:
            return present.detach()
        return tokens.rollout if tokens.proximal is None else tokens.proximal
