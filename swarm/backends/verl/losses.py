"""The job's loss inside verl's engine, and verl's own functions by name (pinned to 0.9).

verl's *sequence* is an episode here: a row of a padded (E, R) batch with all its sampled tokens and no others. Touched:
the tables of `core_algos`, `rollout_corr_helper`, and the configurations they read (`AlgoConfig`, `ActorConfig`,
`PolicyLossConfig`, `RolloutCorrectionConfig`). To be called on a rank, whose platform verl was told.

Micro-batches and ranks add up to exactly the minibatch's loss, a sum over tokens of weight times verl's term: FSDP
averages gradients, so each rank's share is multiplied by their number. A micro-batch without a sampled token
contributes 0 and still takes part in the exchange. The loss can be pickled; all is pure but for draws with the given
seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.algorithms.losses import Surrogate
from swarm.algorithms.objective import Objective, UpdateSums
from swarm.algorithms.rows import Tokens
from swarm.backends.verl.adapter import batch_tokens, column, select_sampled
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.verl_config import ESTIMATORS, VerlAlgorithm, VerlFields

_UNBOUND: Final = 1e9
"""A bound on ratios that holds none: verl clamps them to e^20."""
_DPPO_TRUNCATION: Final = 20.0
"""Largest ratio in the dppo losses: what verl's functions take where they are told none."""
_BY_ADVANTAGES: Final = frozenset({"geo_mean", "bypass_mode"})
"""Losses in which weights are put by way of the advantages: one averages other factors over its sequences, one ignores
them. Both are in proportion to the advantages."""


def verl_names(job: Job) -> VerlAlgorithm:
    return (job.verl or VerlFields()).algorithm


def require_functions(job: Job) -> None:
    """Raise BackendError where the verl that is installed lacks a function that the job names."""
    names = verl_names(job)
    if names == VerlAlgorithm():
        return
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    for kind, name, there in (
        ("advantage_estimator", names.estimator, names.estimator in ADV_ESTIMATOR_REGISTRY),
        ("policy_loss", names.loss, names.loss in POLICY_LOSS_REGISTRY),
        ("rollout_correction", names.correction, hasattr(RolloutCorrectionConfig, names.correction or "")),
    ):
        if name is not None and not there:
            raise BackendError(f"verl.{kind}: expected {name}, which verl 0.9.1 has; the verl installed here has none")


def advantages(job: Job, rewards: Sequence[float], groups: Sequence[str], tokens: Sequence[int]) -> list[float]:
    """Return each episode's advantage by verl's estimator; `tokens` are their numbers of sampled tokens.

    The reward is at the last sampled token, and nothing is discounted, so that all tokens of an episode have the same.
    An episode without tokens counts in its group's baseline. Of a group of one `grpo_passk` has no second: 0.
    Where nothing was sampled all have 0, for verl can take no mean of it.
    """
    name = verl_names(job).estimator
    assert name is not None
    alone = [name == "grpo_passk" and list(groups).count(group) < 2 for group in groups]
    compared = [number for number, single in enumerate(alone) if not single]
    found = [0.0] * len(rewards)
    if compared and any(tokens):
        counts = torch.tensor([tokens[number] for number in compared])
        scores = torch.tensor([rewards[number] for number in compared])
        values = _estimate(job, name, scores, [groups[number] for number in compared], counts)
        for number, value in zip(compared, values.tolist(), strict=True):
            found[number] = value
    return found


def _estimate(job: Job, name: str, scores: Tensor, groups: Sequence[str], counts: Tensor) -> Tensor:
    """Return the advantages (E,) of episodes by their rewards (E,) and numbers of tokens (E,)."""
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    mask = (torch.arange(max(1, int(counts.max()))) < counts[:, None]).long()
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(len(counts)), (counts - 1).clamp(min=0)] = scores
    arguments: dict[str, Any] = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": np.array(groups, dtype=object),
        "config": AlgoConfig(gamma=1.0, norm_adv_by_std_in_grpo=job.normalize_advantage),
    }
    if ESTIMATORS[name].normalizes and name != "grpo_passk":  # which reads it in the configuration
        arguments["norm_adv_by_std_in_grpo"] = job.normalize_advantage
    try:
        values: Tensor = get_adv_estimator_fn(name)(**arguments)[0]
    except ValueError as error:  # what verl raises for a batch that it cannot compare
        raise BackendError(f"verl.advantage_estimator {name}: verl refused the batch: {error}") from error
    return values[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class RolloutCorrection:
    """Off-policy factors (M,) of tokens, which of them are kept (M,), bool, and verl's metrics of both."""

    factors: Tensor
    kept: Tensor
    metrics: Mapping[str, float]


def correct_rollout(job: Job, proximal: Tensor, rollout: Tensor, episodes: Tensor) -> RolloutCorrection:
    """Return what the job's decoupled preset makes of M tokens: log-probs under two policies, and episodes' numbers."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    if not len(proximal):
        return RolloutCorrection(proximal, proximal.bool(), {})
    preset, sequences = _preset(job), Sequences(episodes)
    mask = sequences.pad(torch.ones_like(episodes))
    weights, kept, metrics = compute_rollout_correction_and_rejection_mask(
        sequences.pad(proximal),
        sequences.pad(rollout),
        mask,
        rollout_is=preset.rollout_is,
        rollout_is_threshold=preset.rollout_is_threshold,
        rollout_is_batch_normalize=preset.rollout_is_batch_normalize,
        rollout_rs=preset.rollout_rs,
        rollout_rs_threshold=preset.rollout_rs_threshold,
    )
    factors = torch.ones_like(proximal) if weights is None else sequences.unpad(weights.batch["rollout_is_weights"])
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return RolloutCorrection(factors, sequences.unpad(kept).bool(), finite)


def _preset(job: Job) -> Any:
    from verl.trainer.config.algorithm import RolloutCorrectionConfig

    name = verl_names(job).correction
    return RolloutCorrectionConfig(rollout_is=None) if name is None else getattr(RolloutCorrectionConfig, name)()


class Sequences:
    """Where the M tokens of E episodes stand in a padded (E, R) tensor: those of one are in order, from the left."""

    def __init__(self, episodes: Tensor) -> None:
        _, self._rows, counts = episodes.unique(return_inverse=True, return_counts=True)
        order = self._rows.argsort(stable=True)
        places = torch.arange(len(episodes), device=episodes.device)
        self._columns = torch.empty_like(places)
        self._columns[order] = places - (counts.cumsum(0) - counts).repeat_interleave(counts)
        self._shape = (len(counts), int(counts.max()))

    def pad(self, values: Tensor) -> Tensor:
        """Return values (M,) as (E, R), 0 elsewhere, with their gradient."""
        return values.new_zeros(self._shape).index_put((self._rows, self._columns), values)

    def unpad(self, values: Tensor) -> Tensor:
        """Return of values (E, R) those (M,) of the tokens."""
        return values[self._rows, self._columns]


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """What verl's loss is called with, of M > 0 tokens; all tensors are (M,).

    present: log-probs with gradient; proximal: those that the clip compares with; correction: off-policy factors;
    weights: what each token weighs in the loss that is wanted, 0 for those of others.
    """

    tokens: Tokens
    present: Tensor
    proximal: Tensor
    correction: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """A loss () with its gradient, and the parts of the tokens that verl says it clipped."""

    loss: Tensor
    clipped: float
    clipped_lower: float


def policy_loss(job: Job, part: TokenBatch, *, seed: int | None = None) -> LossOutput:
    """Return verl's loss of a part; a loss that draws, draws with `seed`.

    Where a sequence's loss cannot be told apart into its tokens' (`geo_mean`), its value is shared out by their weights
    and its gradient is whole for each token that `present` has one for: they too add up over parts.
    """
    name = verl_names(job).loss
    assert name is not None
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        if name != "geo_mean":
            return _call_verl_loss(job, name, part, part.weights)
        found = _call_verl_loss(job, name, part, part.tokens.weights)
        with torch.no_grad():
            share = _call_verl_loss(job, name, part, part.weights).loss
        return LossOutput(found.loss - found.loss.detach() + share, found.clipped, found.clipped_lower)


def _call_verl_loss(job: Job, name: str, part: TokenBatch, weights: Tensor) -> LossOutput:
    """Return what verl's function says, with its factors and its mode of adding up so chosen that `weights` hold."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    tokens, sequences = part.tokens, Sequences(part.tokens.episodes)
    kept = torch.ones_like(tokens.episodes) if tokens.kept is None else tokens.kept.long()
    mask, weighed, factors = sequences.pad(kept), sequences.pad(weights), sequences.pad(part.correction)
    advantages = sequences.pad(tokens.advantages)
    if name == "geo_mean":  # a mean over the sequences, each of which weighs what its tokens do together
        advantages = advantages * weighed.sum(1, keepdim=True) * len(mask)
    elif name in _BY_ADVANTAGES:
        advantages = advantages * weighed
    elif name == "sapo":  # always a mean over a sequence's tokens
        factors = factors * weighed * mask.sum(1, keepdim=True)
    else:
        factors = factors * weighed
    loss, metrics = get_policy_loss_fn(name)(
        old_log_prob=sequences.pad(part.proximal),
        log_prob=sequences.pad(part.present),
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode="token-sum",
        config=_actor_config(job, name),
        rollout_is_weights=factors,
    )
    clipped, lower = (float(metrics.get(f"actor/{each}", 0.0)) for each in ("pg_clipfrac", "pg_clipfrac_lower"))
    return LossOutput(loss, clipped, lower)


def _actor_config(job: Job, name: str) -> Any:
    from verl.workers.config import ActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    unbound = _DPPO_TRUNCATION if name.startswith("dppo_") else _UNBOUND
    high = job.clip_ratio if job.clip_ratio_high is None else job.clip_ratio_high
    return ActorConfig(
        strategy="fsdp2",
        rollout_n=job.group_size,
        use_dynamic_bsz=True,
        clip_ratio=job.clip_ratio,
        clip_ratio_low=job.clip_ratio,
        clip_ratio_high=high,
        clip_ratio_c=unbound if job.dual_clip is None else job.dual_clip,
        loss_agg_mode="token-sum",
        policy_loss=PolicyLossConfig(loss_mode=name, rollout_correction=_preset(job)),
        global_batch_info={"dp_size": 1, "batch_num_tokens": None, "global_batch_size": 1, "loss_scale_factor": None},
    )


@dataclass(frozen=True, slots=True, eq=False)
class WholeMinibatch:
    """All M' tokens of a minibatch, their log-probs (M',) under the present weights, and what to draw with."""

    tokens: Tokens
    present: Tensor
    seed: int


class ObjectiveLoss:
    """The job's `Objective`, as verl calls a loss function; `sums` are of what this rank computed in one update."""

    def __init__(self, job: Job, version: int) -> None:
        self.sums = UpdateSums(version, job.correction_cap)
        self.whole: WholeMinibatch | None = None
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
        present, entropy = (
            select_sampled(model_output["log_probs"], data),
            select_sampled(model_output["entropy"], data),
        )
        loss = self._share(present, entropy, tokens, reference, data)
        return loss * data["dp_size"] + nothing, {}

    def _share(
        self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None, data: TensorDict
    ) -> Tensor:
        return self._objective.token_loss(present, entropy, tokens, reference, self.sums)


class VerlLoss(ObjectiveLoss):
    """The loss of the policy that the job names, by verl's function; entropy and divergence are the objective's."""

    def __init__(self, job: Job, version: int) -> None:
        super().__init__(job, version)
        self._job = job
        self._bypass = verl_names(job).bypass

    def _share(
        self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None, data: TensorDict
    ) -> Tensor:
        own = self._token_batch(present, tokens)
        if self.whole is None:
            found = policy_loss(self._job, own)
        else:
            found = policy_loss(self._job, self._whole_token_batch(own, column(data, "places")), seed=self.whole.seed)
        self.sums.add(pg_loss=found.loss)
        # verl tells parts of all tokens, and our sums are over tokens: each counts as the part
        told = [torch.full_like(own.present, part) for part in (found.clipped, found.clipped_lower)]
        terms = Surrogate(own.present.detach(), *told)
        self.sums.add_tokens(tokens, own.present, own.proximal, terms, own.correction)
        return self._objective.add_bonuses(found.loss, own.present, entropy, tokens, reference, self.sums)

    def _token_batch(self, present: Tensor, tokens: Tokens) -> TokenBatch:
        if self._bypass:
            return TokenBatch(tokens, present, tokens.rollout, torch.ones_like(tokens.rollout), tokens.weights)
        proximal = self._objective.proximal(present, tokens)
        return TokenBatch(tokens, present, proximal, self._objective.correction(proximal, tokens), tokens.weights)

    def _whole_token_batch(self, own: TokenBatch, places: Tensor) -> TokenBatch:
        """Return the whole minibatch, in which one micro-batch's tokens alone have weights and gradients: all see
        the same values, and find the same statistics."""
        assert self.whole is not None
        device = own.present.device
        tokens, present = _move_tokens(self.whole.tokens, device), self.whole.present.to(device)
        weights = torch.zeros_like(tokens.weights).index_copy(0, places, own.weights)
        part = self._token_batch(present.index_add(0, places, own.present - own.present.detach()), tokens)
        return TokenBatch(tokens, part.present, part.proximal, part.correction, weights)


def _move_tokens(tokens: Tokens, device: torch.device) -> Tokens:
    known: dict[str, Any] = {each.name: getattr(tokens, each.name) for each in fields(tokens)}
    return replace(tokens, **{name: value.to(device) for name, value in known.items() if value is not None})
