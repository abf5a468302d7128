"""The key-value cache: one row per sequence, one position per token, read and written by whole batches.

Promises: what `update` returns for a row holds exactly the keys and values written to that row before; positions a
batch pads go to a scratch position past the end that no mask admits. A batch over neighbouring rows reads a view of
the memory and copies nothing, so whoever chooses the rows keeps those that run side by side (`exchange` moves them).
Does not know which tokens a row holds or whether they are still valid: `slots.py` does.
Stands in for a `transformers` Cache: a decoder layer needs `update` alone when it is given a 4D mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import prod
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.backends.local.model.cache_shape import CacheShape

_ROUND = 16


class SlotCache:
    """Keys, and values, (layers, rows, heads, positions + 1, width) each; the last position is scratch.

    A forward is prepared by `bind(rows, positions, end)`, which returns its mask, and then calls in every layer
    `update(keys, values, layer)`, keys and values (B, heads, T, width), which returns those rows' whole history up to
    `end`, (B, heads, S, width) each. For neighbouring rows these are views with strides (heads * (positions + 1) *
    width, (positions + 1) * width, width, 1): the first two dimensions flatten without a copy.
    """

    def __init__(self, shape: CacheShape, slots: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        self.scratch = positions
        sizes = (shape.layers, slots, shape.heads, positions + 1)
        self._memory = [_zeros((*sizes, width), dtype, device) for width in (shape.key_width, shape.value_width)]
        self._lines = _by_layer(memory.view(shape.layers, -1, memory.shape[-1]) for memory in self._memory)
        """All positions of a layer's keys, then of its values, one below the other."""
        starts = torch.arange(slots * shape.heads, device=device).view(slots, shape.heads, 1)
        self._starts = starts * (positions + 1)
        """Where each row's heads begin in a layer's lines, (rows, heads, 1)."""
        self._columns = torch.arange(positions, device=device)
        self._never = torch.tensor(-torch.inf, dtype=dtype, device=device)
        self._flat = self._columns
        self._gathered: Tensor | None = None
        self._history: Sequence[Tensor] = ()

    def bind(self, rows: npt.NDArray[np.int64], positions: Tensor, end: int) -> Tensor:
        """Aim the next forward at `rows` (B,) and `positions` (B, T); return its mask (B, 1, T, S), added to scores.

        `end` is one past the greatest real position; S is `end`, rounded up to spare kernels odd shapes.
        """
        seen = min(self.scratch, -(-end // _ROUND) * _ROUND)
        first, last = int(rows[0]), int(rows[0]) + len(rows)
        if (rows == np.arange(first, last)).all():
            self._gathered, taken, starts = None, slice(first, last), self._starts[first:last]
        else:
            self._gathered, taken = torch.from_numpy(rows).to(positions.device), slice(None)
            starts = self._starts[self._gathered]
        self._history = _by_layer(memory[:, taken, :, :seen] for memory in self._memory)
        self._flat = (starts + positions[:, None]).flatten()
        return torch.where(self._columns[:seen] > positions[:, None, :, None], self._never, 0.0)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values (B, heads, T, width); return the rows' whole history (B, heads, S, width)."""
        return self._swap(2 * layer, keys), self._swap(2 * layer + 1, values)

    def _swap(self, place: int, fresh: Tensor) -> Tensor:
        self._lines[place].index_copy_(0, self._flat, fresh.flatten(0, 2))
        history = self._history[place]
        return history if self._gathered is None else history.index_select(0, self._gathered)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row to another."""
        for memory in self._memory:
            memory[:, target, :, :length] = memory[:, source, :, :length]

    def wipe(self) -> None:
        """Forget all numbers, also those that no mask admits."""
        for memory in self._memory:
            memory.zero_()

    def exchange(self, one: int, other: int, length: int) -> None:
        """Let two rows change places, as far as their first `length` positions."""
        kept = [memory[:, one, :, :length].clone() for memory in self._memory]
        self.copy(other, one, length)
        for memory, moved in zip(self._memory, kept, strict=True):
            memory[:, other, :, :length] = moved

    def get_seq_length(self, *_: Any) -> int:
        """Return 0: positions are given to the model, never inferred from the cache."""
        return 0


def _zeros(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros that on a CPU take memory page by page, once they are written: most rows stay far from full."""
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    return torch.frombuffer(mmap(-1, prod(sizes) * dtype.itemsize), dtype=dtype).view(sizes)


def _by_layer(memories: Iterable[Tensor]) -> Sequence[Tensor]:
    """Return each layer's keys and values in turn, of both memories (layers, ...)."""
    return list(chain.from_iterable(zip(*(memory.unbind() for memory in memories), strict=True)))
