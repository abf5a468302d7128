"""The check that a fused forward computes what its model does: both run a few tokens and their logits are compared.

Promises: `fused_forward` returns a forward that met the model's own logits, by a prefill at other positions in every
row and by single tokens after it, over a cache; where there is none, a log line says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from swarm.backends.local.model.fused import CannotFuse, FusedForward

_log = logging.getLogger(__name__)

_PREFILL, _LENGTH = 4, 6
_SHIFT = 7
_EXACT, _COARSE = 1e-4, 5e-2
"""How far logits may be from the model's own, as a part of the greatest: in fp32, and in types of fewer digits."""


def fused_forward(model: Any, head: Callable[[Tensor], Tensor]) -> FusedForward | None:
    """Return the fused forward of `model`, whose features `head` turns into logits; None if it has none."""
    try:
        fused = FusedForward(model)
        _require_own_logits(model, head, fused)
    except CannotFuse as reason:
        _log.info(
            "%s generates by its own forward, which is slower than the fused one: %s", type(model).__name__, reason
        )
        return None
    return fused


@torch.no_grad()
def _require_own_logits(model: Any, head: Callable[[Tensor], Tensor], fused: FusedForward) -> None:
    embeddings = model.get_input_embeddings().weight
    ids = torch.arange(2 * _LENGTH, device=embeddings.device).view(2, -1) % len(embeddings)
    own = model(input_ids=ids, use_cache=False).logits.float().flatten(0, 1)
    found = head(_features(fused, ids, embeddings.dtype).flatten(0, 1))
    if found.shape != own.shape:
        raise CannotFuse("its logits are more than the product of its features with its output embeddings")
    apart = ((found - own).abs().max() / own.abs().max()).item()
    if not apart <= (_EXACT if embeddings.dtype == torch.float32 else _COARSE):
        raise CannotFuse(f"its logits are {apart:.1e} of the greatest apart from those of the fused forward")


def _features(fused: FusedForward, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return features (2, L, F) of ids (2, L): some at once, the others one by one."""
    cache, columns = _GrowingCache(), torch.arange(_LENGTH, device=ids.device)
    positions = columns + torch.tensor([[0], [_SHIFT]], device=ids.device)
    later = columns > columns[:, None]
    mask = torch.zeros(2, 1, _LENGTH, _LENGTH, dtype=dtype, device=ids.device).masked_fill_(later, -torch.inf)
    cuts = [0, *range(_PREFILL, _LENGTH + 1)]
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
