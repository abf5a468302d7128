"""A rank's shards of weights and optimiser, by parameter name: copied, put back, and made whole for others.

Promises: names are those of the model's own parameters; what `put_back` restores is bit-exact; `whole` gives full
tensors under Hugging Face's names, adapters merged into what they are on, and tied embeddings under both names.
Does not know files, Ray or verl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_HEAD, _ADAPTED = "lm_head.weight", ".base_layer"
_PREFIX = "base_model.model."
"""What peft puts before the names of a model with an adapter."""


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """This rank's parts of the trained weights, and of AdamW's state by `PARAMETER/KEY`."""

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]


def copied(module: nn.Module, optimizer: torch.optim.Optimizer) -> Shards:
    """Return copies, on the CPU, of all that a step changes."""
    own = trained(module)
    weights = {name: _copy(weight) for name, weight in own.items()}
    moments = {
        f"{name}/{key}": _copy(value) for name, weight in own.items() for key, value in optimizer.state[weight].items()
    } if optimizer.state else {}  # fmt: skip
    return Shards(weights, moments)


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that learn, by name."""
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of this rank's parts of the parameters that learn, by name."""
    return {name: _local(weight).shape for name, weight in trained(module).items()}


def _local(value: Any) -> Tensor:
    """Return this rank's part of a tensor, which shares its memory."""
    found: Tensor = (value.to_local() if hasattr(value, "to_local") else value).detach()
    return found


def _copy(value: Tensor) -> Tensor:
    return _local(value).to("cpu", copy=True)


@torch.no_grad()
def put_back(module: nn.Module, optimizer: torch.optim.Optimizer, shards: Shards) -> None:
    """Put weights and AdamW's state back as they were copied."""
    own = trained(module)
    put_weights(module, shards.weights)
    optimizer.state.clear()
    for path, value in shards.moments.items():
        name, key = path.rsplit("/", 1)
        optimizer.state[own[name]][key] = value.clone() if key == "step" else _like(own[name], value)


@torch.no_grad()
def put_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights back as they were copied."""
    for name, weight in trained(module).items():
        _local(weight).copy_(weights[name])


def _like(weight: Tensor, value: Tensor) -> Tensor:
    """Return this rank's `value` sharded as the weight is."""
    found = torch.zeros_like(weight)
    _local(found).copy_(value)
    return found


@torch.no_grad()
def whole(module: Any, *, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield name and full tensor, on the CPU, of all that the model consists of, in the order of the names.

    All ranks must take every one. An adapter's product is added to the weight that it is on: what is yielded is the
    plain model.
    """
    state: Mapping[str, Tensor] = module.state_dict()
    for name, own in sorted(_sources(module, state).items()):
        full = _full(state[own])
        if _ADAPTED in own and own.endswith(".weight"):
            full = full + _adapter(module, state, own)
        yield name, full.to("cpu", dtype, copy=True)


def _sources(module: Any, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return by each name of the plain model the model's own one; of a head that is tied, the embeddings'."""
    found = {own.removeprefix(_PREFIX).replace(_ADAPTED, ""): own for own in state if ".lora_" not in own}
    embeddings = next((own for name, own in found.items() if name.endswith("embed_tokens.weight")), None)
    if getattr(module.config, "tie_word_embeddings", False) and embeddings is not None:
        found.setdefault(_HEAD, embeddings)
    return found


def _full(value: Any) -> Tensor:
    found: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found


def _adapter(module: Any, state: Mapping[str, Tensor], name: str) -> Tensor:
    """Return what the adapter on a weight adds to it (arXiv 2106.09685, section 4.1)."""
    base = name.split(_ADAPTED)[0]
    down, up = (_full(state[f"{base}.lora_{side}.default.weight"]) for side in ("A", "B"))
    scaling: float = module.get_submodule(base).scaling["default"]
    return up @ down * scaling
