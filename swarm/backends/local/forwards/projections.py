"""Linear layers over one input as one product, with what adapters add to them.

Promises: no copy of any weight: parameters of layers over one input become views of one matrix's rows (`share_rows`),
so that an optimiser or a loaded checkpoint that changes them in place changes the matrix, and gradients and saved files
stay as they were. A LoRA adapter (arXiv 2106.09685) is computed beside its layer as peft computes it, in the same
element type, and not merged into the weights: in a coarse type those would round most of it away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_LORA = "peft.tuners.lora.layer"
"""Where peft defines the layers that a LoRA adapter is in; not imported, for peft need not be installed."""


class CannotFuse(Exception):
    """The model's own forward has to be used; the message says why."""


@dataclass(frozen=True, slots=True)
class _Adapter:
    """What LoRA adds to a layer: `scaling` times the product of `up` (R, r) and `down` (r, F)."""

    down: nn.Parameter
    up: nn.Parameter
    scaling: float


class JoinedLinear:
    """One or more linear layers, each with its adapter or none with one, run as one."""

    def __init__(self, *linears: nn.Module) -> None:
        adapters = [adapter for linear in linears if (adapter := _adapter(linear)) is not None]
        if len(adapters) not in (0, len(linears)):
            raise CannotFuse("only some of the projections over one input have an adapter")
        plain = [_plain(linear) for linear in linears]
        biases = [linear.bias for linear in plain if linear.bias is not None]
        if len(biases) not in (0, len(plain)):
            raise CannotFuse("only some of the projections over one input have a bias")
        self._weight = share_rows([linear.weight for linear in plain])
        self._transposed = self._weight.t()
        self._bias = share_rows(biases) if biases else None
        self._added = _Added(adapters) if adapters else None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return all outputs side by side, (N, R), of inputs (N, F)."""
        outputs = functional.linear(inputs, self._weight, self._bias)
        if self._added is not None:
            self._added.add_to(outputs, inputs)
        return outputs

    def add_to(self, sums: Tensor, inputs: Tensor) -> None:
        """Add the outputs (N, R) of inputs (N, F) to `sums`, in place."""
        sums.addmm_(inputs, self._transposed)
        if self._bias is not None:
            sums.add_(self._bias)
        if self._added is not None:
            self._added.add_to(sums, inputs)


class _Added:
    """What the adapters of layers over one input add to their outputs side by side: one product down, one each up."""

    def __init__(self, adapters: Sequence[_Adapter]) -> None:
        self._down = share_rows([adapter.down for adapter in adapters]).t()
        self._ups: list[tuple[slice, slice, Tensor, float]] = []
        rows = columns = 0
        for adapter in adapters:
            out, rank = adapter.up.shape
            ends = rows + out, columns + rank
            up = adapter.up.detach().t()
            self._ups.append((slice(rows, ends[0]), slice(columns, ends[1]), up, adapter.scaling))
            rows, columns = ends

    def add_to(self, sums: Tensor, inputs: Tensor) -> None:
        """Add to `sums` (N, R), in place, what the adapters make of inputs (N, F)."""
        low = inputs @ self._down
        for rows, columns, up, scaling in self._ups:
            sums[:, rows].addmm_(low[:, columns], up, alpha=scaling)


def _adapter(linear: Any) -> _Adapter | None:
    """Return the LoRA adapter around a layer, None where there is none."""
    kind = type(linear)
    if kind.__module__ != _LORA or kind.__qualname__ != "Linear":
        return None
    if linear.merged or linear.disable_adapters or len(linear.active_adapters) != 1:
        raise CannotFuse("its adapter is merged, switched off, or one of several")
    [name] = linear.active_adapters
    down, up = linear.lora_A[name], linear.lora_B[name]
    if linear.lora_variant or up.bias is not None or type(linear.lora_dropout[name]) is not nn.Identity:
        raise CannotFuse("its adapter is more than two products: a variant of LoRA, with a bias or with dropout")
    return _Adapter(down.weight, up.weight, float(linear.scaling[name]))


def _plain(linear: nn.Module) -> nn.Linear:
    """Return a layer without its adapter."""
    inner = linear.base_layer if _adapter(linear) is not None else linear
    if type(inner) is not nn.Linear:
        raise CannotFuse(f"a projection is {type(inner).__module__}.{type(inner).__name__}, not a plain one")
    return inner


def adapter_state(module: Any) -> tuple[object, ...]:
    """Return what decides, beside weights, what an adapter adds to a layer; nothing for a layer without one."""
    if type(module).__module__ != _LORA:
        return ()
    return module.merged, module.disable_adapters, tuple(module.active_adapters), tuple(module.scaling.items())


@contextmanager
def disturbed_adapters(model: nn.Module) -> Iterator[None]:
    """Let adapters, which add nothing before they are trained, add something inside; bit for bit as before after it.

    Nobody else may run the model meanwhile.
    """
    ups = [weight for name, weight in model.named_parameters() if ".lora_B." in name]
    before = [weight.detach().clone() for weight in ups]
    try:
        with torch.no_grad():
            for weight in ups:
                wave = torch.arange(weight.numel(), device=weight.device).sin().view_as(weight)
                weight.copy_(0.05 * wave)
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(ups, before, strict=True):
                weight.copy_(value)


@torch.no_grad()
def share_rows(parameters: Sequence[Tensor]) -> Tensor:
    """Return one tensor of all the rows; each parameter is a view of its own from now on."""
    if len(parameters) == 1:
        return parameters[0].detach()
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, rows in zip(parameters, whole.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = rows
    return whole
