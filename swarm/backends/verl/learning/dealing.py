"""Rows dealt to ranks: each rank gets as many, so that their micro-batches are as many, and nearly as many ids.

Promises: each row is with exactly one rank; ranks with fewer rows get rows of padding; what ranks answer comes back in
the order in which the rows were given. Knows nothing of losses or Ray.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.backends.algorithms.rows import Row
from swarm.backends.verl.learning.contract import verl_batch


class Deal:
    """Which rows are with which rank."""

    def __init__(self, rows: Sequence[Row], world: int) -> None:
        self._rows = rows
        self._hands: list[list[int]] = [[] for _ in range(world)]
        sizes = [0] * world
        for number in sorted(range(len(rows)), key=lambda n: len(rows[n].ids), reverse=True):
            rank = sizes.index(min(sizes))
            self._hands[rank].append(number)
            sizes[rank] += len(rows[number].ids) + 1
        self._even = max(1, *map(len, self._hands)) if world > 1 else max(1, len(rows))
        self.longest = max((len(row.ids) + 1 for row in rows), default=2)
        """Ids of the longest row."""

    @property
    def tokens(self) -> int:
        """Ids that are fed to the model, those of padding rows included."""
        padding = sum(self._even - len(hand) for hand in self._hands)
        return sum(len(row.ids) + 1 for row in self._rows) + 2 * padding

    def batches(
        self, advantages: Sequence[float], weights: Sequence[float], sequence: Sequence[Tensor] = ()
    ) -> list[TensorDict]:
        """Return each rank's batch; `sequence` stands as the rows do, and `places` are among the tokens of all rows."""
        counts = [len(row.targets) for row in self._rows]
        places = torch.arange(sum(counts)).split(counts) if counts else ()
        return [
            verl_batch(
                [self._rows[number] for number in hand],
                advantages,
                weights,
                sequence=[sequence[number] for number in hand] if sequence else (),
                places=[places[number] for number in hand],
                padding=self._even - len(hand),
            )
            for hand in self._hands
        ]

    def gathered(self, answers: Sequence[Tensor]) -> list[Tensor]:
        """Return, row by row, what the ranks found for the sampled tokens (M,) of their batches."""
        found: dict[int, Tensor] = {}
        for hand, values in zip(self._hands, answers, strict=True):
            parts = values.split([len(self._rows[number].targets) for number in hand])
            found.update(zip(hand, parts, strict=True))
        return [found[number] for number in range(len(self._rows))]
