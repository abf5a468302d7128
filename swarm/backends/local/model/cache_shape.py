"""The shape of a decoder's key-value cache: how many layers and heads of how many numbers it caches of each token.

Promises: the figures are measured on what the model hands to its cache when it is fed one token; a model that caches
anything else, or not the same in every layer, is one BackendError. On the meta device it costs nothing; where a layer's
experts do not run on shapes alone, the first layer stands for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swarm.backends.protocols import BackendError


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Layers, heads that have keys and values of their own, and the widths of a head's key and value."""

    layers: int
    heads: int
    key_width: int
    value_width: int

    @property
    def numbers(self) -> int:
        """Numbers that are cached of one token."""
        return self.layers * self.heads * (self.key_width + self.value_width)


@torch.no_grad()
def measure_cache_shape(model: Any) -> CacheShape:
    """Return the shape of `model`'s cache; raise BackendError where that is not keys and values of every layer."""
    weight, cache = model.get_input_embeddings().weight, _Recording()
    with torch.device(weight.device):
        zero = torch.zeros(1, 1, dtype=torch.long)
        mask = torch.zeros(1, 1, 1, 1, dtype=weight.dtype)
        try:
            model(input_ids=zero, attention_mask=mask, position_ids=zero, past_key_values=cache, use_cache=True)
        except Exception as error:
            if not weight.is_meta or not cache.shapes:
                raise BackendError(
                    f"expected a model that reads on from keys and values alone, found that {model.config.model_type} "
                    f"does not ({type(error).__name__}: {error}): choose another model"
                ) from error
            layers = model.config.get_text_config(decoder=True).num_hidden_layers  # experts do not run on shapes alone
            cache.shapes |= dict.fromkeys(range(layers), cache.shapes[0])
    found = set(cache.shapes.values())
    if sorted(cache.shapes) != list(range(len(cache.shapes))) or len(found) != 1:
        raise BackendError(
            f"expected a model that keeps keys and values of the same shape in every layer, found that "
            f"{model.config.model_type} keeps {sorted(found) or 'none'}: choose another model"
        )
    heads, key_width, value_width = found.pop()
    return CacheShape(len(cache.shapes), heads, key_width, value_width)


def slot_bytes(shape: CacheShape, dtype: torch.dtype, positions: int) -> int:
    """Return the bytes that one row of `positions` takes."""
    return shape.numbers * (positions + 1) * dtype.itemsize


def slots_within(shape: CacheShape, dtype: torch.dtype, positions: int, limit: int, wanted: int) -> int:
    """Return how many rows of `positions`, at most `wanted`, fit in `limit` bytes; raise BackendError if none does."""
    needed = slot_bytes(shape, dtype, positions)
    if limit < needed:
        raise BackendError(
            f"a sequence of max_context {positions} takes {needed:,} bytes of key-value cache and kv_cache_bytes "
            f"allows {limit:,}: set kv_cache_bytes to {needed:,} or more, or a shorter max_context"
        )
    return min(wanted, limit // needed)


class _Recording:
    """A cache that records (heads, key width, value width) by layer and stores no tensor."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.shapes[layer] = keys.shape[1], keys.shape[3], values.shape[3]
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        return 0
