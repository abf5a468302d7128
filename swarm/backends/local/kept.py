"""What a decoder keeps of each token it has read: keys and values, so many layers and heads of so many numbers each.

Promises: the figures are what the model hands to its cache, measured by feeding it one token; a model that keeps
anything else, or not the same in every layer, is one BackendError. On the meta device it costs nothing, and where a
layer's experts do not run on shapes alone, the first layer speaks for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swarm.backends.protocols import BackendError


@dataclass(frozen=True, slots=True)
class Kept:
    """Layers, heads that have keys and values of their own, and the widths of a head's key and value."""

    layers: int
    heads: int
    key_width: int
    value_width: int

    @property
    def numbers(self) -> int:
        """Numbers that are kept of one token."""
        return self.layers * self.heads * (self.key_width + self.value_width)


@torch.no_grad()
def kept(model: Any) -> Kept:
    """Return what `model` keeps of a token; raise BackendError where that is not keys and values of every layer."""
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
    return Kept(len(cache.shapes), heads, key_width, value_width)


class _Recording:
    """A cache that notes (heads, key width, value width) by layer and keeps nothing."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.shapes[layer] = keys.shape[1], keys.shape[3], values.shape[3]
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        return 0
