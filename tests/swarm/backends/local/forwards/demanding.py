"""CUDA's attention operators as a CPU can play them: they demand what the real ones demand, as their sources have it,
and compute in plain arithmetic. What they leave undone, or take for granted, they do as the real ones do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from swarm.backends.local.forwards import block_attention
from swarm.backends.local.forwards.block_attention import PlainAttention

_PLAIN = PlainAttention()


def efficient(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, with_total: bool, dropout: float, causal: bool,
    *, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    assert with_total
    assert not dropout
    mask = _checked(query, key, value, bias)
    out, total = _PLAIN.forward(query, key, value, mask=mask, causal=causal, scale=scale)
    lengths = -(-query.shape[2] // 32) * 32
    padded = total.new_full((*total.shape[:2], lengths), torch.inf)
    padded[..., : query.shape[2]] = total
    state = torch.zeros((), dtype=torch.long)
    return out.transpose(1, 2).contiguous().transpose(1, 2), padded, state, state


def efficient_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, total: Tensor,
    seed: Tensor, offset: Tensor, dropout: float, wanted: tuple[bool, ...], causal: bool, *, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, None]:  # fmt: skip
    assert not dropout
    assert wanted == (True, True, True, False)
    mask = _checked(query, key, value, bias)
    _, heads, length, width = query.shape
    assert total.dtype == torch.float32
    assert total.stride(2) == 1
    assert total.stride(1) % 8 == 0
    assert total.shape[2] % 32 == 0
    assert (total[..., length:] == torch.inf).all()
    read = out.as_strided((1, heads, length, width), (0, out.stride(1), heads * width, 1))  # whatever its strides say
    found = _PLAIN.backward(
        gradient, query, key, value, read, total[..., :length], mask=mask, causal=causal, scale=scale
    )
    return *found, None


def _checked(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor | None:
    for each in (query, key, value):
        assert each.stride(3) == 1
        assert not each.stride(2) * each.itemsize % 16
        assert not each.data_ptr() % 16
    if bias is None:
        return None
    assert bias.dtype == query.dtype
    assert bias.shape == (1, query.shape[1], query.shape[2], key.shape[2])
    assert bias.stride(3) == 1
    assert bias.stride(2) % 16 == 0
    assert not bias.data_ptr() % 16
    return bias[0, 0]


@contextmanager
def cudas_operators() -> Iterator[None]:
    """Let these stand for CUDA's."""
    with (
        patch.object(block_attention, "_efficient", efficient),
        patch.object(block_attention, "_efficient_backward", efficient_backward),
    ):
        yield
