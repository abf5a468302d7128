"""What a training began with, as hashes: the model's weights and its chat template.

Two trainings with equal hashes began with the same policy. An adapter's own weights are left out: they are
initialised for each job, and change nothing before they are trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

ADAPTER = "lora_"
"""In the names of an adapter's weights."""


def provenance(model: nn.Module, template: str) -> Mapping[str, str]:
    """Return the sha256 of the weights and of the chat template."""
    return {"weights": weights_hash(model), "template": hashlib.sha256(template.encode()).hexdigest()}


def weights_hash(model: nn.Module) -> str:
    """Return the sha256 over names, types, shapes and bytes of all weights but an adapter's."""
    return state_hash({_plain(name): weight for name, weight in model.state_dict().items() if ADAPTER not in name})


def serving_hash(model: nn.Module) -> str:
    """Return the same over all weights, an adapter's included, for comparing moments of one training.

    It tells no 0 from a -0: an optimiser's step of size 0 makes one of the other, which changes no product.
    """
    return state_hash(model.state_dict(), zero=0)


def state_hash(weights: Mapping[str, Tensor], zero: int | None = None) -> str:
    """Return the sha256 over names, types, shapes and bytes; with a `zero` of 0 no 0 is told from a -0."""
    return ordered_hash(sorted(weights.items()), zero)


def ordered_hash(weights: Iterable[tuple[str, Tensor]], zero: int | None = None) -> str:
    """Return the same of weights that come one by one, in the order of their names; ValueError in another order."""
    found, before = hashlib.sha256(), ""
    for name, weight in weights:
        if name <= before:
            raise ValueError(f"expected weights in the order of their names, found {name} after {before}")
        before = name
        found.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        plain = weight.detach() if zero is None else weight.detach() + zero
        found.update(plain.cpu().flatten().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _plain(name: str) -> str:
    """Return the name that a weight has without an adapter around it."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")
