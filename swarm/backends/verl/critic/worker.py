"""A rank that has its shard of a critic too, on the same device as that of the policy.

Promises: what `learning.worker` does, for both: `undo` puts the critic and its optimiser back, bit for bit, and a
checkpoint has both. `values`, `value_gradient` and `value_step` exchange with the other ranks: all must be called.
What is exported for those who answer is the policy alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from swarm.backends.verl.learning import adapter as engines
from swarm.backends.verl.learning import shards
from swarm.backends.verl.learning.worker import Loss, Rank
from swarm.backends.verl.saving import sharded

if TYPE_CHECKING:
    from swarm.backends.verl.critic.adapter import Estimated
    from swarm.backends.verl.critic.loss import ValueSums


@dataclass(frozen=True, slots=True)
class ValueShare:
    """What a rank's part of a minibatch came to for the critic; `sums` are those of the update so far."""

    loss: float
    sums: ValueSums


class CriticRank(Rank):
    """A Ray actor's class, for the estimator `gae`."""

    WEIGHTS: ClassVar[tuple[str, ...]] = (sharded.MODEL, sharded.CRITIC)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._critic: Any = None
        self._value_loss: Any = None
        self._critic_before: shards.Shards | None = None

    def start(self, rank: int, world: int, address: str, port: int) -> float:
        """Join the others, load policy and critic and shard them; return the seconds that took."""
        from swarm.backends.verl.critic import adapter

        seconds, begun = super().start(rank, world, address, port), time.perf_counter()
        self._critic = adapter.engine(self._folder, self._job, self._device)
        return seconds + time.perf_counter() - begun

    def values(self, batch: Any, longest: int) -> Tensor:
        """Return what the present critic says of a batch's sampled tokens (M,)."""
        from swarm.backends.verl.critic import adapter
        from swarm.backends.verl.learning.contract import sampled

        prepared = engines.prepared(batch, self._job, longest, entropy=False)
        return sampled(adapter.values(self._critic, prepared), batch).float()

    def estimated(self, rewards: Sequence[float], values: Tensor, episodes: Tensor) -> Estimated:
        """Return the advantages and returns of a batch's tokens (M,); `rewards` are by the episodes' numbers."""
        from swarm.backends.verl.critic import adapter

        return adapter.estimated(self._job, rewards, values, episodes)

    def begin(self, loss: Loss, *, undoable: bool) -> None:
        """Begin an update. The critic is always kept for `undo`: it learns before the policy does."""
        from swarm.backends.verl.critic.loss import ValueLoss

        super().begin(loss, undoable=undoable)
        self._value_loss = ValueLoss(self._job)
        self._critic_before = self._copied_critic()

    def _copied_critic(self) -> shards.Shards:
        return shards.copied(self._critic.module, self._critic.optimizer)

    def value_gradient(self, batch: Any, longest: int) -> ValueShare:
        """Leave the critic's gradient of this rank's part of a minibatch, to be exchanged; weights stay."""
        prepared = engines.prepared(batch, self._job, longest, entropy=False)
        return ValueShare(engines.gradient(self._critic, prepared, self._value_loss), self._value_loss.sums)

    def value_step(self, size: float) -> float:
        """Change the critic by the clipped gradient, unless it is not finite; return the norm it had."""
        return engines.step(self._critic, size)

    def undo(self) -> None:
        """Put everything back as it was when the update began, and forget the gradients."""
        super().undo()
        self._critic.optimizer_zero_grad()
        if self._critic_before is not None:
            shards.put_back(self._critic.module, self._critic.optimizer, self._critic_before)
        self._critic_before = None

    def _sets(self) -> sharded.Sets:
        own = self._copied_critic()
        return {**super()._sets(), sharded.CRITIC: own.weights, sharded.CRITIC_OPTIMIZER: own.moments}

    def _take(self, saved: sharded.Sets) -> None:
        super()._take(saved)
        found = shards.Shards(saved[sharded.CRITIC], saved.get(sharded.CRITIC_OPTIMIZER, {}))
        shards.put_back(self._critic.module, self._critic.optimizer, found)
