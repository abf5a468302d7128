"""Loss terms, off-policy weights and token weights of sampled tokens, and how far learner and engine disagree on them.

Functions of flat tensors of M sampled tokens (V the vocabulary), with no padding and no mask. Three policies: *present*
(differentiated), *proximal* (the weights the update begins with), *rollout* (sampled). The clip bounds the ratio of
present to proximal; the off-policy weight corrects proximal to rollout (decoupled PPO, arXiv 2110.00641). A loss is the
sum over tokens of weight times term, however tokens are spread over rows and micro-batches.

Of the disagreement names and definitions are verl's (0.9.1): p is a token's probability under the weights the update
begins with, q what it was sampled with, w the off-policy weight. Every value is finite, 0 without tokens.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from swarm.job import Job
from swarm.rendering.messages import BackendError

log = logging.getLogger(__name__)
Correction = Literal["off", "truncate", "mask"]

LOG_RATIO_BOUND = 20.0
"""Log ratios of tokens beyond this count as this: e to it is finite, and so is its square."""
_SEQUENCE_BOUND = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """PPO's loss (M,), and where (M,), bool, the clip and the dual clip set it."""

    loss: Tensor
    clipped: Tensor
    dual_clipped: Tensor


def entropy(logprobs: Tensor) -> Tensor:
    """Return the entropy (M,) in nats of distributions by log-probs (M, V); without a gradient some rows at a time."""
    if torch.is_grad_enabled():
        return -(logprobs.exp() * logprobs).sum(-1)
    parts = logprobs.split(64)
    return torch.cat([-(part.exp() * part).sum(-1) for part in parts])


def token_log_ratio(present: Tensor, proximal: Tensor) -> Tensor:
    """Return log r (M,) of each token: PPO, arXiv 1707.06347, section 3."""
    return (present - proximal).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def sequence_log_ratio(present: Tensor, mean: Tensor) -> Tensor:
    """Return log s_t (M,), with s_t = sg[s] x pi_t / sg[pi_t]: GSPO, arXiv 2507.18071, equation 14 (GSPO-token). mean
    (M,): log s, the mean log ratio of all tokens of the token's episode (equation 7), without gradient."""
    return (mean + present - present.detach()).clamp(max=_SEQUENCE_BOUND)


def episode_means(values: Tensor, episodes: Tensor) -> Tensor:
    """Return for each token the mean of `values` (M,) over all tokens with the same number in `episodes` (M,)."""
    if not len(values):
        return values
    sums = values.new_zeros(int(episodes.max()) + 1).index_add(0, episodes, values)
    counts = values.new_zeros(len(sums)).index_add(0, episodes, torch.ones_like(values))
    return (sums / counts)[episodes]


def ppo_surrogate(
    log_ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> Surrogate:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A): PPO, arXiv 1707.06347, equation 7; all arguments are (M,). Two
    widths: DAPO's clip-higher, arXiv 2503.14476, equation 10. `dual`: where A < 0 the loss is at most -`dual` A
    (dual-clip PPO, arXiv 1912.09729), so that a token far from the old policy has no gradient."""
    ratio = log_ratio.exp()
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - low, 1 + high)
    loss, bitten = torch.maximum(free, held), held > free
    if dual is None:
        return Surrogate(loss, bitten, torch.zeros_like(bitten))
    most = -advantages * dual
    beyond = (advantages < 0) & (loss > most)
    return Surrogate(torch.where(advantages < 0, torch.minimum(loss, most), loss), bitten, beyond)


def divergence(present: Tensor, reference: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Return an estimate (M,) of KL(present || reference) at the sampled tokens, from their log-probs (M,): Schulman,
    "Approximating KL divergence" (2020); k3 is also GRPO's, arXiv 2402.03300, equation 4."""
    gap = present - reference
    match estimator:
        case "k1":
            return gap
        case "k2":
            return gap.square() / 2
        case "k3":
            gap = gap.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
            return (-gap).exp() + gap - 1


def correction_weights(ratio: Tensor, correction: Correction, cap: float) -> Tensor:
    """Return the factor (M,) of each token's policy loss, given its probability ratio (M,). `truncate`: min(ratio,
    cap), truncated importance sampling at token level (Ionides 2008; V-trace's rho, arXiv 1802.01561, equation 1).
    `mask`: the ratio itself within [1 / cap, cap] and 0 outside (IcePop's double-sided mask). `off`: 1."""
    match correction:
        case "off":
            return torch.ones_like(ratio)
        case "truncate":
            return ratio.clamp(max=cap)
        case "mask":
            return torch.where((ratio >= 1 / cap) & (ratio <= cap), ratio, 0.0)


def token_weights(job: Job, counts: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Return the weight of one sampled token of each episode, by its number of tokens n_i and its own weight w_i.
    `dr_grpo` (arXiv 2503.20783, listing 1): w_i / (sum of w x max_context). Else by `loss_weighting`: `episode` (arXiv
    2402.03300, equation 3): w_i / (sum of w x n_i); `token` (arXiv 2503.14476, equation 12): w_i / (sum of w x n)."""
    constant = job.algorithm == "dr_grpo"
    by_token = job.loss_weighting == "token" and not constant
    sizes = [weight * (count if by_token else 1) for count, weight in zip(counts, weights, strict=True)]
    total = math.fsum(sizes)
    shares = [job.max_context if constant else 1 if by_token else count for count in counts]
    return [
        weight / (total * share) if weight and count else 0.0
        for count, weight, share in zip(counts, weights, shares, strict=True)
    ]


def minibatches(episodes: int, wanted: int, order: torch.Generator) -> Iterator[list[int]]:
    parts = min(wanted, max(1, episodes))
    drawn = torch.randperm(episodes, generator=order) if parts > 1 else torch.arange(episodes)
    for part in drawn.tensor_split(parts):
        yield part.tolist()


_LOWEST = -100.0


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
        log_ratio = token_log_ratio(begun, rollout)
        ratio = log_ratio.exp()
        spread = [gap, gap.square(), p, q, p.square(), q.square(), p * q]
        masks = [mask.double() for mask in (ratio > self._cap, ratio < 1 / self._cap, weights == 0)]
        ratios = [rollout - begun, ratio - log_ratio - 1, ratio.square()]
        self._sums += torch.stack([*spread, weights, weights.square(), *masks, *ratios]).sum(1)
        self._worst = max(self._worst, gap.max().item())
        self._heaviest = max(self._heaviest, weights.max().item())
        self._lightest = min(self._lightest, weights.min().item())

    def merge(self, other: "PolicyDifference") -> None:
        self._tokens += other._tokens
        self._sums += other._sums
        self._worst, self._heaviest = max(self._worst, other._worst), max(self._heaviest, other._heaviest)
        self._lightest = min(self._lightest, other._lightest)

    def metrics(self) -> Mapping[str, float]:
        """Return Pearson's correlation (MiniMax-M1, arXiv 2506.13585), Kong's effective sample size, and means."""
        tokens = max(1, self._tokens)
        mean = dict(zip(_SUMS, (self._sums / tokens).tolist(), strict=True))
        spread = max(0.0, mean["gap2"] - mean["gap"] ** 2) * (tokens / max(1, tokens - 1))
        p2, q2 = mean["p2"] - mean["p"] ** 2, mean["q2"] - mean["q"] ** 2
        scale = math.sqrt(p2) * math.sqrt(q2) if p2 > 0 and q2 > 0 else 0.0
        shared = mean["pq"] - mean["p"] * mean["q"]
        squares = mean["w2"] / (mean["w"] + 1e-8) ** 2
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
            log.error("event=mismatch reason=%r", said)
            raise BackendError(said)
