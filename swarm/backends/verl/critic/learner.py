"""The cluster learner with a critic: advantages are those of generalised advantage estimation (arXiv 1506.02438).

An update asks the critic once what each sampled token is worth, estimates advantages and returns by verl's function
over the whole batch, teaches the critic, and then the policy by those advantages: both over the same minibatches, with
the same token weights.
Promises: what `learning.learner` does, of both: an update that fails leaves the critic as it was, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from swarm.backends.algorithms.metrics import spread
from swarm.backends.algorithms.rows import Row
from swarm.backends.protocols import NotFinite, TrainEpisode
from swarm.backends.verl.critic import adapter
from swarm.backends.verl.critic.loss import ValueSums
from swarm.backends.verl.critic.worker import CriticRank
from swarm.backends.verl.learning.dealing import Deal
from swarm.backends.verl.learning.learner import RankedUpdate, VerlLearner
from swarm.backends.verl.learning.worker import Rank


@dataclass(slots=True)
class _Taught:
    """What an update taught the critic so far."""

    sums: ValueSums = field(default_factory=ValueSums)
    norms: list[float] = field(default_factory=list)


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

    def _score(self, update: RankedUpdate) -> None:
        super()._score(update)
        rows = update.all_rows
        with update.cost.measured("values"):
            values = self._of_rows("values", rows, self._timeout_s)
        if rows:
            with update.cost.measured("adv"):
                self._estimate(update, values)
        update.told = {**update.told, **_worth(values, [row.returns for row in rows if row.returns is not None])}

    def _estimate(self, update: RankedUpdate, values: Sequence[Tensor]) -> None:
        """Fill in each token's value, advantage and return, and each episode's mean advantage."""
        rows, counts = update.all_rows, [len(own) for own in values]
        episodes = torch.tensor([row.episode for row in rows]).repeat_interleave(torch.tensor(counts))
        rewards = [self._outcome(episode) for episode in update.episodes]
        asked = (rewards, torch.cat(list(values)), episodes)
        found = self.group.call_all("estimated", *asked, timeout_s=self._timeout_s)[0]
        parts = zip(rows, values, found.advantages.split(counts), found.returns.split(counts), strict=True)
        for row, *own in parts:
            row.values, row.advantages, row.returns = own
        update.advantages = [_mean_advantage(own) for own in update.rows]

    def _learn(self, steps: Sequence[Sequence[int]], update: RankedUpdate) -> None:
        """Teach the critic, and then the policy."""
        taught, size = _Taught(), adapter.fields(self._job).learning_rate
        with update.cost.measured("update_critic"):
            for chosen in steps:
                self._value_gradient(chosen, update, taught)
                self._value_step(size, taught)
        told = {"critic/grad_norm": fmean(taught.norms), "critic/lr": size, **taught.sums.metrics(len(steps))}
        update.told = {**update.told, **told}
        super()._learn(steps, update)

    def _value_gradient(self, chosen: Sequence[int], update: RankedUpdate, taught: _Taught) -> None:
        """Leave the critic's gradient of a minibatch of whole episodes with the ranks."""
        rows, weights = self._minibatch(chosen, update)
        deal = Deal(rows, self.group.world)
        asked = [(part, deal.longest) for part in deal.batches(update.advantages, weights)]
        found = self.group.call("value_gradient", asked, timeout_s=self._timeout_s)
        loss = sum(each.loss for each in found) / len(found)
        if not math.isfinite(loss):
            raise NotFinite(f"the critic's loss is {loss}: the update was refused and the weights are as before")
        taught.sums = ValueSums()
        for each in found:
            taught.sums.merge(each.sums)

    def _value_step(self, size: float, taught: _Taught) -> None:
        norm = self.group.call_all("value_step", size, timeout_s=self._timeout_s)[0]
        if not math.isfinite(norm):
            raise NotFinite(f"the norm of the critic's gradient is {norm}: the update was refused, the weights kept")
        taught.norms.append(norm)


def _mean_advantage(rows: Sequence[Row]) -> float:
    """Return the mean over an episode's tokens; 0 where nothing was sampled."""
    found = [value for row in rows if row.advantages is not None for value in row.advantages.tolist()]
    return fmean(found) if found else 0.0


def _worth(values: Sequence[Tensor], returns: Sequence[Tensor]) -> dict[str, float]:
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
