"""Several linear layers over one input as one product, without a second copy of their weights.

Promises: the parameters of the layers become views of one matrix's rows, so that whoever changes them in place (an
optimiser, a loaded checkpoint) changes the matrix, and the layers, their gradients and what is saved stay as they were.
Knows nothing of models: only that a parameter given other storage is no view any more, which the owner must look for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class CannotFuse(Exception):
    """The model's own forward has to be used; the message says why."""


class Projection:
    """One or more linear layers, run as one."""

    def __init__(self, *linears: nn.Linear) -> None:
        for linear in linears:
            if type(linear) is not nn.Linear:
                raise CannotFuse(f"a projection is {type(linear).__module__}.{type(linear).__name__}, not a plain one")
        biases: list[Any] = [linear.bias for linear in linears if linear.bias is not None]
        if len(biases) not in (0, len(linears)):
            raise CannotFuse("only some of the projections over one input have a bias")
        self._weight = share_rows([linear.weight for linear in linears])
        self._transposed = self._weight.t()
        self._bias = share_rows(biases) if biases else None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return all outputs side by side, (N, R), of inputs (N, F)."""
        return functional.linear(inputs, self._weight, self._bias)

    def add_to(self, sums: Tensor, inputs: Tensor) -> None:
        """Add the outputs (N, R) of inputs (N, F) to `sums`, in place."""
        sums.addmm_(inputs, self._transposed)
        if self._bias is not None:
            sums.add_(self._bias)


@torch.no_grad()
def share_rows(parameters: Sequence[Tensor]) -> Tensor:
    """Return one tensor of all the rows; each parameter is a view of its own from now on."""
    if len(parameters) == 1:
        return parameters[0].detach()
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, rows in zip(parameters, whole.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = rows
    return whole
