"""The cluster learner with a critic: generalised advantage estimation (arXiv 1506.02438).

An update asks the critic for the value of each sampled token, estimates advantages and returns over the whole batch by
verl's function, and teaches critic and then policy over the same minibatches with the same token weights. A failed
update leaves both, and their optimisers, as they were, bit for bit. The critic begins as the policy's model with a head
drawn from the job's seed alone, whatever the number of ranks, and shares the policy's device.

A loss is the sum over tokens of weight times verl's term, so micro-batches and ranks add up exactly. `values`,
`value_gradient` and `value_step` exchange with the other ranks: all must be called.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.algorithms.learner import PolicyUpdate
from swarm.algorithms.objective import spread
from swarm.algorithms.rows import Row
from swarm.backends.local import checkpoint
from swarm.backends.protocols import NotFinite, TrainEpisode
from swarm.backends.verl import adapter
from swarm.backends.verl.adapter import critic_fields
from swarm.backends.verl.learner import UPDATE_S, RowPartition, VerlLearner
from swarm.backends.verl.losses import ObjectiveLoss, column, select_sampled
from swarm.backends.verl.worker import Rank
from swarm.job import Job


@dataclass(slots=True)
class ValueSums:
    """Sums over the tokens of all optimiser steps of one update; `loss` is weighted, the rest counts each as one."""

    loss: float = 0.0
    predicted: float = 0.0
    clipped: float = 0.0
    tokens: int = 0

    def merge(self, other: ValueSums) -> None:
        self.loss += other.loss
        self.predicted += other.predicted
        self.clipped += other.clipped
        self.tokens += other.tokens

    def metrics(self, steps: int) -> Mapping[str, float]:
        tokens = max(1, self.tokens)
        return {
            "critic/vf_loss": self.loss / max(1, steps),
            "critic/vf_clipfrac": self.clipped / tokens,
            "critic/vpred_mean": self.predicted / tokens,
        }


class ValueLoss:
    """verl's loss of a critic, as verl calls a loss function; `sums` are of what this rank computed in one update."""

    def __init__(self, job: Job) -> None:
        self.sums = ValueSums()
        self._job = job

    def __call__(
        self, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the micro-batch's share () of the loss times the number of ranks, and no metrics: see `sums`."""
        nothing = model_output["values"].values()[:0].sum()
        if not data["response_mask"].values().any():
            return nothing, {}
        present = select_sampled(model_output["values"], data).float()
        before, returns, weights = (column(data, name) for name in ("values", "returns", "token_weights"))
        loss, clipped = adapter.value_loss(self._job, present, before, returns, weights)
        predicted = present.detach().sum(dtype=torch.float64).item()
        self.sums.merge(ValueSums(loss.item(), predicted, clipped * len(present), len(present)))
        return loss * data["dp_size"] + nothing, {}


@dataclass(frozen=True, slots=True)
class ValueShare:
    """What a rank's part of a minibatch came to for the critic; `sums` are those of the update so far."""

    loss: float
    sums: ValueSums


class CriticRank(Rank):
    """A Ray actor's class, for the estimator `gae`."""

    def start(self, rank: int, world: int, address: str, port: int) -> float:
        seconds, begun = super().start(rank, world, address, port), time.perf_counter()
        self._critic = adapter.make_critic_engine(self._folder, self._job, self._device)
        self._engines[checkpoint.CRITIC, checkpoint.CRITIC_OPTIMIZER] = self._critic
        return seconds + time.perf_counter() - begun

    def values(self, batch: Any, longest: int) -> Tensor:
        """Return what the present critic says of a batch's sampled tokens (M,)."""
        prepared = adapter.prepare_batch(batch, self._job, longest, entropy=False)
        return select_sampled(adapter.infer(self._critic, prepared, "values"), batch).float()

    def estimate_gae(self, rewards: Sequence[float], values: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
        return adapter.estimate_gae(self._job, rewards, values, episodes)

    def begin(self, loss: ObjectiveLoss, *, undoable: bool) -> None:
        super().begin(loss, undoable=undoable)
        self._value_loss = ValueLoss(self._job)

    def value_gradient(self, batch: Any, longest: int) -> ValueShare:
        """Leave the critic's gradient of this rank's part of a minibatch, to be exchanged; weights stay."""
        prepared = adapter.prepare_batch(batch, self._job, longest, entropy=False)
        return ValueShare(adapter.gradient(self._critic, prepared, self._value_loss), self._value_loss.sums)

    def value_step(self, size: float) -> float:
        return adapter.step(self._critic, size)


class CriticLearner(VerlLearner):
    """Implements `Learner` for jobs of the estimator `gae`."""

    RANK: ClassVar[type[Rank]] = CriticRank

    def _advantages(
        self, episodes: Sequence[TrainEpisode], counts: Sequence[Mapping[int, int]]
    ) -> tuple[list[float], Mapping[int, Mapping[int, float]]]:
        """Return 0 for each episode: `_score` knows better, once the critic was asked."""
        for episode in episodes:
            self._outcome(episode)
        return [0.0] * len(episodes), {}

    def _fill_logprobs(self, update: PolicyUpdate) -> None:
        super()._fill_logprobs(update)
        rows = update.all_rows
        with update.cost.measure("values"):
            values = self._call_by_row("values", rows, UPDATE_S)
        if rows:
            with update.cost.measure("adv"):
                self._estimate(update, values)
        update.metrics |= _value_metrics(values, [row.returns for row in rows if row.returns is not None])

    def _estimate(self, update: PolicyUpdate, values: Sequence[Tensor]) -> None:
        """Fill in each token's value, advantage and return, and episodes' mean advantage; tokens go in calls' order."""
        rows, counts = update.all_rows, [len(own) for own in values]
        episodes = torch.tensor([row.episode for row in rows]).repeat_interleave(torch.tensor(counts))
        calls = [torch.zeros_like(row.targets) if row.calls is None else row.calls for row in rows]
        order = torch.cat(calls).argsort(stable=True)
        rewards = [self._outcome(episode) for episode in update.episodes]
        found = self._call_all("estimate_gae", rewards, torch.cat(list(values))[order], episodes[order])[0]
        own = [torch.empty_like(each).index_copy(0, order, each) for each in found]
        parts = zip(rows, values, *(each.split(counts) for each in own), strict=True)
        for row, *worth in parts:
            row.values, row.advantages, row.returns = worth
        update.advantages = [_mean_advantage(own) for own in update.rows]

    def _make_steps(self, steps: Sequence[Sequence[int]], update: PolicyUpdate) -> None:
        size = critic_fields(self._job).learning_rate
        norms, sums = [], ValueSums()
        with update.cost.measure("update_critic"):
            for chosen in steps:
                sums = self._value_gradient(chosen, update)
                norms.append(self._value_step(size))
        update.metrics |= {"critic/grad_norm": fmean(norms), "critic/lr": size, **sums.metrics(len(steps))}
        super()._make_steps(steps, update)

    def _value_gradient(self, chosen: Sequence[int], update: PolicyUpdate) -> ValueSums:
        """Leave the critic's gradient of a minibatch with the ranks; return the sums of the update so far."""
        rows, weights = self._minibatch(chosen, update)
        deal = RowPartition(rows, self.group.world)
        parts = [(part, deal.longest) for part in deal.batches(update.advantages, weights)]
        shares: list[ValueShare] = self.group.call("value_gradient", parts, timeout_s=UPDATE_S)
        loss = sum(share.loss for share in shares) / len(shares)
        if not math.isfinite(loss):
            raise NotFinite(f"the critic's loss is {loss}: the update was refused and the weights are as before")
        sums = ValueSums()
        for share in shares:
            sums.merge(share.sums)
        update.cost.forward += deal.tokens
        return sums

    def _value_step(self, size: float) -> float:
        norm = float(self._call_all("value_step", size)[0])
        if not math.isfinite(norm):
            raise NotFinite(f"the norm of the critic's gradient is {norm}: the update was refused, the weights kept")
        return norm


def _mean_advantage(rows: Sequence[Row]) -> float:
    """Return the mean over an episode's tokens; 0 where nothing was sampled."""
    found = [value for row in rows if row.advantages is not None for value in row.advantages.tolist()]
    return fmean(found) if found else 0.0


def _value_metrics(values: Sequence[Tensor], returns: Sequence[Tensor]) -> dict[str, float]:
    """Return verl's metrics of the values and returns (K,) of a batch's rows; 0 where nothing was sampled."""
    own = torch.cat([torch.zeros(0), *values]).double()
    due = torch.cat([torch.zeros(0), *returns]).double()
    left, spared = (((each - each.mean()) ** 2).sum() / max(1, len(own) - 1) for each in (due - own, due))
    explained = (1 - left / (spared + 1e-5)).item() if len(own) else 0.0
    return {
        **spread("critic/values", own.tolist()),
        **spread("critic/returns", due.tolist()),
        "critic/vf_explained_var": explained,
    }
