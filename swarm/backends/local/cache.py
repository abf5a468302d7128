"""The key-value cache: one slot per sequence, one position per token, read and written by whole batches.

Promises: what `update` returns for a row holds exactly the keys and values written to that row's slot before;
positions a batch pads go to a scratch position past the end that no mask admits.
Does not know which tokens a slot holds or whether they are still valid: `slots.py` does.
Stands in for a `transformers` Cache: a decoder layer needs `update` alone when it is given a 4D mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROUND = 16


class SlotCache:
    """Keys and values, each (layers, slots, positions + 1, heads, width); the last position is scratch."""

    def __init__(self, config: Any, slots: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, slots, positions + 1, heads, width)
        self.scratch = positions
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._columns = torch.arange(positions, device=device)
        self._rows = self._flat = self._columns
        self._seen = 0

    def bind(self, rows: Tensor, positions: Tensor, end: int) -> Tensor:
        """Aim the next forward at slots `rows` (B,) and `positions` (B, T); return its mask (B, 1, T, S), bool.

        `end` is one past the greatest real position; S is `end`, rounded up to spare kernels odd shapes.
        """
        self._seen = min(self.scratch, -(-end // _ROUND) * _ROUND)
        self._rows = rows
        self._flat = (rows[:, None] * (self.scratch + 1) + positions).flatten()
        return self._columns[: self._seen] <= positions[:, None, :, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values (B, heads, T, width); return the rows' whole history (B, heads, S, width)."""
        return self._swap(self._keys[layer], keys), self._swap(self._values[layer], values)

    def _swap(self, store: Tensor, fresh: Tensor) -> Tensor:
        store.view(-1, *store.shape[2:]).index_copy_(0, self._flat, fresh.transpose(1, 2).flatten(0, 1))
        return store[:, : self._seen].index_select(0, self._rows).transpose(1, 2)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for store in (self._keys, self._values):
            store[:, target, :length] = store[:, source, :length]

    def get_seq_length(self, *_: Any) -> int:
        """Return 0: positions are given to the model, never inferred from the cache."""
        return 0
