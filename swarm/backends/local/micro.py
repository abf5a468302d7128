"""Micro-batches: rows laid out for one forward and backward, within a budget of tokens.

Promises: each row is in exactly one micro-batch; a micro-batch's features stand in the order of its rows' sampled
tokens, as `rows.flat_tokens` has them, whatever the layout. What a step learns does not depend on the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from swarm.backends.local.policy import Policy
from swarm.backends.local.rows import Row


class MicroBatch(Protocol):
    """Rows that one forward computes together."""

    @property
    def rows(self) -> Sequence[Row]:
        """The rows, in the order of their features."""
        ...

    @property
    def tokens(self) -> int:
        """Ids that are fed to the model, padding included."""
        ...

    def features(self, policy: Policy) -> Tensor:
        """Return what `policy.head` turns into logits (M, F), at the place before each of the M sampled tokens."""
        ...


class PaddedRows:
    """Rows side by side, padded right with id 0; causal attention keeps the padding from every real token."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.ids = torch.nn.utils.rnn.pad_sequence([row.ids for row in rows], batch_first=True)
        """(B, T)"""
        counts = torch.tensor([len(row.places) for row in rows])
        starts = torch.arange(len(rows)) * self.ids.shape[1]
        self.places = torch.cat([row.places for row in rows]) + starts.repeat_interleave(counts)
        """(M,), in ids flattened."""

    @property
    def tokens(self) -> int:
        """Ids that are fed to the model, padding included."""
        return self.ids.numel()

    def features(self, policy: Policy) -> Tensor:
        """Return what `policy.head` turns into logits (M, F)."""
        found = policy.features(self.ids.to(policy.device), use_cache=False)
        return found.flatten(0, 1)[self.places.to(policy.device)]


def padded_rows(rows: Sequence[Row], tokens: int) -> Iterator[PaddedRows]:
    """Split rows, longest first, so that no micro-batch holds more than `tokens` padded ids (but always one row)."""
    taken: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
        if taken and (len(taken) + 1) * len(taken[0].ids) > tokens:
            yield PaddedRows(taken)
            taken = []
        taken.append(row)
    if taken:
        yield PaddedRows(taken)
