"""How far learner and engine disagree on sampled tokens, and the guard that stops training.

p is a token's probability under the weights the update begins with, q what it was sampled with, w the off-policy
weight; verl's *sequence* is the episode, and names and definitions are verl's (0.9.1). Memory is a few numbers per
episode; every value is finite, 0 without tokens (log-probs below -100 count as -100). An update with too few tokens of
its own weights neither adds to the guard's count nor resets it; a checkpoint saves the count.

When the guard stops, a third opinion (a plain forward) says which side moved: the one farther from it than
`mismatch_limit`, in the guard's measure; both or neither is said as such. Whatever happens meanwhile is part of the
sentence, never an error, and takes `OPINION_S` at most.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from swarm.algorithms.losses import LOG_RATIO_BOUND
from swarm.algorithms.rows import Row
from swarm.rendering.messages import BackendError

OPINION_S: Final = 300.0
"""Seconds after which a third opinion is given up."""
MOST_ROWS: Final = 4
"""Rows that are scored once more."""
MOST_TOKENS: Final = 256
"""Sampled tokens of each that are."""

PlainScorer = Callable[[Tensor, float], Tensor]
"""From ids (T,) and a temperature to the log-prob (T - 1,) of each id but the first, the ones before it given."""


@dataclass(frozen=True, slots=True, eq=False)
class MismatchRow:
    """A row of ids (T,) and, of the K sampled ones behind `places` (K,), the log-probs that both sides gave them."""

    ids: Tensor
    places: Tensor
    engine: Tensor
    learner: Tensor


@dataclass(frozen=True, slots=True)
class ReplicaScores:
    """Disputed rows' log-probs (K,) at temperature 1, last ones missing for want of room; or why there are none."""

    version: int = -1
    logprobs: Sequence[Tensor] = ()
    refused: str = ""


ScoreReplicas = Callable[[Sequence[MismatchRow]], Mapping[int, ReplicaScores]]
"""Asks every replica, by number."""


def find_mismatches(scored: Iterable[tuple[Row, Tensor]], version: int) -> list[MismatchRow]:
    """Return the rows whose tokens of `version` learner and engine differ about most, of rows and log-probs (K,)."""
    found = [each for row, logprobs in scored if (each := _mismatch_row(row, logprobs, version)) is not None]
    return sorted(found, key=lambda each: distance([each.engine], [each.learner]), reverse=True)[:MOST_ROWS]


def _mismatch_row(row: Row, logprobs: Tensor, version: int) -> MismatchRow | None:
    fresh = (row.versions == version).nonzero()[:MOST_TOKENS, 0]
    if not len(fresh):
        return None
    ids, last = torch.cat([row.ids, row.targets[-1:]]), int(row.places[fresh[-1]])
    return MismatchRow(ids[: last + 2], row.places[fresh], row.rollout[fresh], logprobs.float().cpu()[fresh])


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the guard's measure: the mean of exp |difference of log-probs|; what is not finite is as far as can be."""
    gaps = (torch.cat(list(one)).double() - torch.cat(list(other)).double()).abs()
    return gaps.nan_to_num(nan=LOG_RATIO_BOUND).clamp(max=LOG_RATIO_BOUND).exp().mean().item()


def diagnose_mismatch(
    rows: Sequence[MismatchRow],
    scorer: PlainScorer,
    temperature: float,
    limit: float,
    dtype: str,
    replicas: ScoreReplicas | None = None,
    version: int = 0,
) -> str:
    """Return which side moved, and of the engine which of the `replicas` it is; `version` was published last."""
    opinion = [scorer(row.ids, temperature)[row.places] for row in rows]
    engine, learner = [row.engine for row in rows], [row.learner for row in rows]
    far = {"engine": distance(engine, opinion), "learner": distance(learner, opinion)}
    measured = (
        f"of {sum(len(row.places) for row in rows)} of these tokens, scored by a plain forward in float32 over the "
        f"weights as they are published, the engine is {far['engine']:.4g} away and the learner {far['learner']:.4g}"
    )
    moved = [name for name, value in far.items() if value > limit]
    if len(moved) == 1:
        said = f"The {moved[0]} moved: {measured}."
    elif moved:
        said = f"Both moved: {measured}."
    elif (again := distance(engine, learner)) <= limit:
        said = (
            f"The learner moved: {measured}, and scored again without gradients the two are only {again:.4g} apart: "
            "its forward of the update is not the one that it scores by."
        )
    else:
        said = f"Neither moved: {measured}. That is what {dtype} rounds: mismatch_limit is too small for it."
    if "engine" in moved and replicas is not None:
        at_one = opinion if temperature == 1 else [scorer(row.ids, 1.0)[row.places] for row in rows]
        said += " " + _describe_replicas(replicas(rows), at_one, limit, version)
    return said


def _describe_replicas(
    found: Mapping[int, ReplicaScores], opinion: Sequence[Tensor], limit: float, version: int
) -> str:
    said, moved = [], []
    for number, each in sorted(found.items()):
        if each.refused:
            said.append(f"replica {number} could not be asked ({each.refused})")
            continue
        away = distance(each.logprobs, [own[: len(theirs)] for own, theirs in zip(opinion, each.logprobs, strict=True)])
        if away > limit or each.version != version:
            moved.append(number)
        older = "" if each.version == version else f", and serves version {each.version} in place of {version}"
        said.append(f"replica {number} is {away:.4g} away now{older}")
    if not said:
        return "No replica serves that could be asked."
    which = ", ".join(map(str, moved))
    word = f"It is replica {which}" if moved else "No replica that was asked is off now: one that was is made anew"
    return f"{word}: {'; '.join(said)}."


def run_diagnosis(find: Callable[[], str], seconds: float = OPINION_S) -> str:
    """Return what `find` says, or in its place why nobody can say; it runs in a thread that nobody waits for longer."""
    said: list[str] = []

    def diagnose() -> None:
        try:
            said.append(find())
        except Exception as error:  # noqa: BLE001 - the error that is told already must not be hidden by this one
            _log.warning("event=no_third_opinion", exc_info=True)
            said.append(f"Which side moved is not known: {type(error).__name__}: {' '.join(str(error).split())[:300]}.")

    thread = threading.Thread(target=diagnose, name="third-opinion", daemon=True)
    thread.start()
    thread.join(seconds)
    return said[0] if said else f"Which side moved is not known: no third opinion came within {seconds:g} s."


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
        self._episodes: dict[int, tuple[float, float, float]] = {}

    def add(self, begun: Tensor, rollout: Tensor, weights: Tensor, episodes: Tensor) -> None:
        """Add M tokens' log-probs, begun and sampled, and weights: (M,), on the CPU, float64; and episodes' numbers."""
        if not len(begun):
            return
        begun, rollout = begun.clamp(min=_LOWEST), rollout.clamp(min=_LOWEST)
        self._tokens += len(begun)
        self._sums += torch.stack(_terms(begun, rollout, weights, self._cap)).sum(1)
        self._worst = max(self._worst, (begun.exp() - rollout.exp()).abs().max().item())
        self._heaviest = max(self._heaviest, weights.max().item())
        self._lightest = min(self._lightest, weights.min().item())
        self._add_episodes(begun, rollout, episodes)

    def _add_episodes(self, begun: Tensor, rollout: Tensor, episodes: Tensor) -> None:
        numbers, slots = episodes.unique(return_inverse=True)
        parts = torch.stack([torch.ones_like(begun), begun, rollout], 1)
        added = begun.new_zeros(len(numbers), 3).index_add(0, slots, parts)
        for number, (count, ours, theirs) in zip(numbers.tolist(), added.tolist(), strict=True):
            before = self._episodes.get(number, (0.0, 0.0, 0.0))
            self._episodes[number] = (before[0] + count, before[1] + ours, before[2] + theirs)

    def merge(self, other: PolicyDifference) -> None:
        self._tokens += other._tokens
        self._sums += other._sums
        self._worst, self._heaviest = max(self._worst, other._worst), max(self._heaviest, other._heaviest)
        self._lightest = min(self._lightest, other._lightest)
        for number, added in other._episodes.items():
            before = self._episodes.get(number, (0.0, 0.0, 0.0))
            self._episodes[number] = (before[0] + added[0], before[1] + added[1], before[2] + added[2])

    def metrics(self) -> Mapping[str, float]:
        tokens = max(1, self._tokens)
        mean = dict(zip(_SUMS, (self._sums / tokens).tolist(), strict=True))
        return {
            **self._probabilities(mean, tokens),
            **self._weights(mean),
            "rollout_corr/kl": mean["q-p log"],
            "rollout_corr/k3_kl": mean["k3"],
            "rollout_corr/chi2_token": mean["ratio2"] - 1 if self._tokens else 0.0,
            **_sequence_metrics(list(self._episodes.values())),
        }

    def _probabilities(self, mean: Mapping[str, float], tokens: int) -> dict[str, float]:
        """The two probabilities: |p - q| and Pearson's correlation (MiniMax-M1, arXiv 2506.13585)."""
        bessel = tokens / max(1, tokens - 1)
        spread = max(0.0, mean["gap2"] - mean["gap"] ** 2) * bessel
        p2, q2 = mean["p2"] - mean["p"] ** 2, mean["q2"] - mean["q"] ** 2
        scale = math.sqrt(p2) * math.sqrt(q2) if p2 > 0 and q2 > 0 else 0.0
        shared = mean["pq"] - mean["p"] * mean["q"]
        return {
            "training/rollout_probs_diff_valid": float(self._tokens > 0),
            "training/rollout_probs_diff_mean": mean["gap"],
            "training/rollout_probs_diff_max": self._worst,
            "training/rollout_probs_diff_std": math.sqrt(spread),
            "training/rollout_actor_probs_pearson_corr": max(-1.0, min(1.0, shared / scale)) if scale else 0.0,
        }

    def _weights(self, mean: Mapping[str, float]) -> dict[str, float]:
        """The correction's weights; effective sample size: Kong's, as a part of the tokens."""
        squares = mean["w2"] / (mean["w"] + _ESS_EPSILON) ** 2
        return {
            "rollout_corr/rollout_is_mean": mean["w"],
            "rollout_corr/rollout_is_max": self._heaviest,
            "rollout_corr/rollout_is_min": self._lightest if self._tokens else 0.0,
            "rollout_corr/rollout_is_std": math.sqrt(max(0.0, mean["w2"] - mean["w"] ** 2)),
            "rollout_corr/rollout_is_eff_sample_size": 1 / squares if squares > 0 else 0.0,
            "rollout_corr/rollout_is_ratio_fraction_high": mean["high"],
            "rollout_corr/rollout_is_ratio_fraction_low": mean["low"],
            "rollout_corr/rollout_is_oob_ratio": mean["high"] + mean["low"],
            "rollout_corr/rollout_rs_masked_fraction": mean["masked"],
        }


_SUMS = ("gap", "gap2", "p", "q", "p2", "q2", "pq", "w", "w2", "high", "low", "masked", "q-p log", "k3", "ratio2")
"""What is summed over tokens, in the order of `_terms`."""


def _terms(begun: Tensor, rollout: Tensor, weights: Tensor, cap: float) -> list[Tensor]:
    p, q = begun.exp(), rollout.exp()
    gap = (p - q).abs()
    log_ratio = (begun - rollout).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = log_ratio.exp()
    spread = [gap, gap.square(), p, q, p.square(), q.square(), p * q]
    weighed = [weights, weights.square(), (ratio > cap).double(), (ratio < 1 / cap).double(), (weights == 0).double()]
    return [*spread, *weighed, rollout - begun, ratio - log_ratio - 1, ratio.square()]


def _sequence_metrics(episodes: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    """What is taken over episodes: number of tokens and the sums of both log-probs of each."""
    ours = [begun / count for count, begun, _ in episodes]
    theirs = [rollout / count for count, _, rollout in episodes]
    gaps = [b - a for a, b in zip(ours, theirs, strict=True)]
    whole = [max(-LOG_RATIO_BOUND, min(LOG_RATIO_BOUND, begun - rollout)) for _, begun, rollout in episodes]
    return {
        "rollout_corr/training_ppl": _mean([math.exp(-value) for value in ours]),
        "rollout_corr/rollout_ppl": _mean([math.exp(-value) for value in theirs]),
        "rollout_corr/log_ppl_diff": _mean(gaps),
        "rollout_corr/log_ppl_abs_diff": _mean([abs(gap) for gap in gaps]),
        "rollout_corr/ppl_ratio": _mean([math.exp(gap) for gap in gaps]),
        "rollout_corr/chi2_seq": _mean([math.exp(2 * value) - 1 for value in whole]),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


PATIENCE = 3
"""Updates in a row above the limit that stop a training: a single one may be an outlier."""
MIN_TOKENS = 32
"""Fewest tokens for which an update is judged: in bfloat16 single tokens may well be above the limit."""


class MismatchGuard:
    """Counts the updates in a row whose error was above `limit`."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._above = 0

    @property
    def state(self) -> int:
        return self._above

    def restore(self, state: int) -> None:
        self._above = state

    def check(self, error: float, tokens: int, diagnose: Callable[[], str] | None = None) -> None:
        """Record an update's `token_mult_prob_error`, a mean over `tokens`; BackendError after `PATIENCE` in a row."""
        if tokens < MIN_TOKENS:
            return
        self._above = self._above + 1 if error > self._limit else 0
        if self._above >= PATIENCE:
            said = (
                f"learner and engine disagree about tokens sampled by the weights this update began with: the mean of "
                f"exp |difference of log-probs| is {error:.4g}, above the job's mismatch_limit of {self._limit:g} for "
                f"{self._above} updates in a row. Look at what makes the engine compute otherwise than the learner "
                f"(dtype, temperature or a cut of the distribution, keys and values of older weights, another "
                f"attention implementation); raise mismatch_limit only if so much is expected"
            )
            _log.error("event=mismatch reason=%r", said)  # what is asked now may take long, or all memory
            raise BackendError(said if diagnose is None else f"{said}. {run_diagnosis(diagnose)}")
