"""Whether a second way to compute a model differs from the model's own by rounding alone.

In fp32 the two are compared with each other. In a coarser type right code differs by as much as the model lets rounding
grow, which no fixed bound tells: hidden values of tokens that were seldom trained may be a thousand times those of
words, and what is rounded away there is all that later tokens see. So there both are compared with the model's modules
in fp32, and the second way may be off by little more than the modules themselves are.
Knows neither what is computed nor what for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_EXACT = 1e-4
"""How far fp32 values may be apart, as a part of the greatest."""
_MORE = 2.0
"""How many times the rounding of its modules another way to compute a model may be off; right ones were up to 1.1."""
_LEAST = 2.0**-8
"""Relative error, one rounding of bfloat16, that is allowed however little the modules round."""


@torch.no_grad()
def beyond_rounding(model: nn.Module, own: Callable[[], Tensor], found: Tensor) -> str | None:
    """Return in words how far `found` is from what `own` computes by the model's modules; None if by rounding alone.

    Nobody else may run the model meanwhile.
    """
    expected = own().float()
    if next(model.parameters()).dtype == torch.float32:
        gap = ((found.float() - expected).abs().max() / expected.abs().max()).item()
        return None if gap <= _EXACT else f"{gap:.1e} of the greatest apart"
    with in_fp32(model):
        exact = own().float()
    rounding, error = _error(expected, exact), _error(found.float(), exact)
    if error <= max(_LEAST, _MORE * rounding):
        return None
    return f"{error:.1e} apart from fp32, where its modules are {rounding:.1e}"


def _error(found: Tensor, exact: Tensor) -> float:
    error: float = ((found - exact).norm() / exact.norm()).item()
    return error


@contextmanager
def in_fp32(model: nn.Module) -> Iterator[None]:
    """Let a model's modules compute in fp32 inside; one module's weights exist in it at a time, and none is changed.

    Nobody else may run the model meanwhile.
    """
    kept: dict[tuple[nn.Module, str], nn.Parameter] = {}

    def widen(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for name, weight in module.named_parameters(recurse=False):
            if weight.is_floating_point():
                kept[module, name] = weight
                module._parameters[name] = nn.Parameter(weight.detach().float(), requires_grad=False)
        return tuple(each.float() if _floats(each) else each for each in inputs)

    def restore(module: nn.Module, _: object, __: object) -> None:
        for name in list(module._parameters):
            if (module, name) in kept:
                module._parameters[name] = kept.pop((module, name))

    handles = []
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            handles += [module.register_forward_pre_hook(widen), module.register_forward_hook(restore)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for (module, name), weight in kept.items():  # of a forward that failed
            module._parameters[name] = weight


def _floats(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
