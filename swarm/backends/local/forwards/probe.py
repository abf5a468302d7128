"""The check that a fused forward computes what its model does: both run a few tokens and their logits are compared.

Promises: `fused_forward` returns a forward that met the model's own logits within rounding (`rounding.py`), by a
prefill at other positions in every row and by single tokens after it, over a cache, with its adapter, if any, at work;
or raises CannotFuse, which says why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from swarm.backends.local.forwards.fused import FusedForward
from swarm.backends.local.forwards.projections import CannotFuse, disturbed_adapters
from swarm.backends.local.forwards.rounding import beyond_rounding

_PREFILL, PROBED = 10, 12
"""Tokens of a row that are fed at once, and all of them."""
_SHIFT = 7


def fused_forward(model: Any, head: Callable[[Tensor], Tensor], rows: Sequence[Sequence[int]]) -> FusedForward:
    """Return the fused forward of `model`, whose features `head` turns into logits; raise CannotFuse if it has none.

    `rows`: two of PROBED ids each that the check feeds. Nobody else may run the model meanwhile.
    """
    fused = FusedForward(model)
    _require_own_logits(model, head, fused, rows)
    return fused


@torch.no_grad()
def _require_own_logits(
    model: Any, head: Callable[[Tensor], Tensor], fused: FusedForward, rows: Sequence[Sequence[int]]
) -> None:
    embeddings = model.get_input_embeddings().weight
    ids = torch.tensor(rows, device=embeddings.device)

    def own() -> Tensor:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
        return logits.flatten(0, 1)

    with disturbed_adapters(model):
        found = head(_features(fused, ids, embeddings.dtype).flatten(0, 1))
        if found.shape != own().shape:
            raise CannotFuse("its logits are more than the product of its features with its output embeddings")
        apart = beyond_rounding(model, own, found)
    if apart is not None:
        raise CannotFuse(f"its logits and those of the fused forward are not the same: {apart}")


def _features(fused: FusedForward, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return features (2, L, F) of ids (2, L): some at once, the others one by one."""
    cache, columns = _GrowingCache(), torch.arange(PROBED, device=ids.device)
    positions = columns + torch.tensor([[0], [_SHIFT]], device=ids.device)
    later = columns > columns[:, None]
    mask = torch.zeros(2, 1, PROBED, PROBED, dtype=dtype, device=ids.device).masked_fill_(later, -torch.inf)
    cuts = [0, *range(_PREFILL, PROBED + 1)]
    parts = [
        fused(ids[:, start:end], positions[:, start:end], mask[:, :, start:end, :end], cache)
        for start, end in pairwise(cuts)
    ]
    return torch.cat(parts, 1)


class _GrowingCache:
    """Keys and values of every layer in the order they came, (B, Hkv, S, D)."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if layer in self._seen:
            before = self._seen[layer]
            keys, values = torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)
        self._seen[layer] = keys, values
        return keys, values
