"""LoRA (arXiv 2106.09685) by peft: a small trained addition to every linear layer but the head, over frozen weights.

Promises: the adapter is part of the model that serves, so that it serves at once; the same seed makes the same adapter
bit for bit on every device (A random, B zero: the policy begins as the model it was); `frozen_copy` is the model
without its adapter and, where there is one, shares the weights below it instead of copying them.
Knows nothing of updates or files.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def add_adapter(model: nn.Module, *, rank: int, alpha: float, seed: int) -> None:
    """Put an adapter, in the weights' own element type, on a model that is on the CPU; it alone has gradients then."""
    from peft import inject_adapter_in_model

    config = lora_config(rank=rank, alpha=alpha)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dtype = next(model.parameters()).dtype
        inject_adapter_in_model(config, model)
    for weight in trained(model).values():
        weight.data = weight.data.to(dtype)
    model.eval()


def lora_config(*, rank: int, alpha: float) -> Any:
    """Return peft's configuration of an adapter on every linear layer but the head."""
    from peft import LoraConfig

    scale: Any = alpha  # annotated as an int in peft, which only divides it
    return LoraConfig(r=rank, lora_alpha=scale, target_modules="all-linear", lora_dropout=0.0)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that learn, by name: the adapter's where there is one, else all of them."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return the model as it was before training, for reference: its weights copied, or shared below an adapter.

    A model of its own, so that reading it needs no lock and switches nothing in the one that serves.
    """
    shared: dict[int, Any] = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    twin = copy.deepcopy(model, shared)
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(below := getattr(child, "base_layer", None), nn.Module):
                setattr(parent, name, below)
    return twin.requires_grad_(False)
