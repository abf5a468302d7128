"""Weights by name, as they pass through Ray's object store: written there once, and read where they lie."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Bucket(dict[str, Tensor]):
    """Tensors on the CPU by name. What comes out of the store shares its memory, which may only be read.

    torch pickles a tensor's bytes into the stream, which copies them several times on the way in and again on the way
    out; those of an array lie beside it (PEP 574), are copied once on the way in, and never on the way out.
    """

    def __reduce__(self) -> tuple[Callable[..., Bucket], tuple[dict[str, tuple[Any, torch.dtype]]]]:
        return _restored, ({name: (_bits(tensor), tensor.dtype) for name, tensor in self.items()},)


def _bits(tensor: Tensor) -> Any:
    """Return an array over a tensor's memory; numpy has no bfloat16, and gets its bits."""
    plain = tensor.detach().contiguous()
    return (plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain).numpy()


def _restored(arrays: dict[str, tuple[Any, torch.dtype]]) -> Bucket:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        return Bucket({name: torch.from_numpy(array).view(dtype) for name, (array, dtype) in arrays.items()})
