"""Gradient checkpointing (arXiv 1604.06174) of a model that an engine runs at the same time.

Promises: where gradients are recorded, a decoder layer keeps its input only and computes the rest again in the backward
pass, with equal gradients; where they are not, as in the engine, it runs as it is. The model stays in eval mode, in
which Hugging Face's own switch does nothing. A layer that is given a key-value cache runs as it is, too: computing it
again would append to the cache twice.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from swarm.backends.protocols import BackendError


def recompute_layers(model: nn.Module) -> None:
    """Make every decoder layer of a transformers model compute itself again; BackendError where none can."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise BackendError(
            f"the job asks for gradient_checkpointing; {type(model).__name__} has no layers that can: switch it off"
        )
    for layer in layers:
        # A method bound by hand follows its layer when the model is copied; a closure would run the first one's.
        layer.forward = MethodType(_recomputed, layer)


def _recomputed(layer: nn.Module, *inputs: Any, **named: Any) -> Any:
    forward = MethodType(type(layer).forward, layer)
    if not torch.is_grad_enabled() or named.get("past_key_values") is not None:
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **named)
