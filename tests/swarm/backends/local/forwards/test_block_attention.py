"""Block attention tells what is needed to join blocks, on every device alike; one that differs is not believed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from swarm.backends.local.forwards import block_attention
from swarm.backends.local.forwards.block_attention import (
    BlockAttention,
    EfficientOnCuda,
    FlashOnCpu,
    PlainAttention,
    aligned_mask,
    difference,
)

CPU = torch.device("cpu")


def drawn(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(sum(sizes))
    return [torch.randn(1, size, 3, 8).to(dtype).transpose(1, 2) for size in sizes]


@pytest.mark.parametrize("form", ["causal", "mask", "all"])
def test_plain_arithmetic_is_what_autograd_finds_of_attention_to_all_keys(form: str) -> None:
    gradient, query, key, value, more_key, more_value = drawn(9, 9, 9, 9, 5, 5)
    inputs = [each.requires_grad_() for each in (query, key, value)]
    seen = torch.ones(9, 9).tril().bool() if form == "causal" else torch.ones(9, 9).bool()
    if form == "mask":
        seen[3:, 1:3] = False
    scores = query @ torch.cat((key, more_key), 2).mT * 0.4
    scores = scores.masked_fill(~torch.cat((seen, torch.ones(9, 5).bool()), 1), -torch.inf)
    whole = scores.softmax(-1) @ torch.cat((value, more_value), 2)
    expected = torch.autograd.grad((whole * gradient).sum(), inputs)
    plain = PlainAttention()
    mask = aligned_mask(seen, torch.float32) if form == "mask" else None
    with torch.no_grad():
        joined = whole, scores.logsumexp(-1)
        dquery, dkey, dvalue = plain.backward(
            gradient, query, key, value, *joined, mask=mask, causal=form == "causal", scale=0.4
        )
        dquery += plain.backward(gradient, query, more_key, more_value, *joined, mask=None, causal=False, scale=0.4)[0]
    for found, right in zip((dquery, dkey, dvalue), expected, strict=True):
        assert torch.allclose(found, right, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 64])
def test_each_devices_kernel_agrees_with_plain_arithmetic(dtype: torch.dtype, width: int) -> None:
    assert difference(FlashOnCpu(), CPU, dtype, width) is None
    with cudas_operators():
        assert difference(EfficientOnCuda(), CPU, dtype, width) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: `make gpu-smoke`")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 128])
def test_cudas_own_kernel_agrees_with_plain_arithmetic(dtype: torch.dtype, width: int) -> None:
    assert difference(EfficientOnCuda(), torch.device("cuda"), dtype, width) is None


class Forgetful(PlainAttention):
    """Takes the log-sum-exp of its own keys for that of all keys."""

    def backward(self, gradient: Tensor, *given: Tensor, **form: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, out, _ = given
        _, own = self.forward(query, key, value, **form)
        return super().backward(gradient, query, key, value, out, own, **form)


class Nowhere(PlainAttention):
    def forward(self, *given: Tensor, **form: Any) -> tuple[Tensor, Tensor]:
        out, total = super().forward(*given, **form)
        return out * torch.nan, total


@pytest.mark.parametrize(
    ("kernel", "said"), [(Forgetful(), "off by"), (Nowhere(), "off by inf"), (EfficientOnCuda(), "the kernel refuses")]
)
def test_a_kernel_that_differs_or_refuses_is_not_believed(kernel: BlockAttention, said: str) -> None:
    assert said in str(difference(kernel, CPU, torch.float32, 8))


def test_where_there_is_none_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    block_attention.block_attention.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = [block_attention.block_attention(torch.device("meta"), torch.float32, 8) for _ in range(3)]
    assert found == [None] * 3
    assert [record.getMessage().split()[0] for record in caplog.records] == ["event=no_block_attention"]


def test_the_calls_fit_the_signatures_of_cudas_operators() -> None:
    kernel, nowhere = EfficientOnCuda(), torch.device("meta")
    query = torch.empty(1, 3, 45, 8, device=nowhere)
    mask = aligned_mask(torch.ones(45, 45, dtype=torch.bool), torch.float32, nowhere)
    for bias, causal in ((None, True), (mask, False), (None, False)):
        out, total = kernel.forward(query, query, query, mask=bias, causal=causal, scale=None)
        assert (out.shape, total.shape) == (query.shape, query.shape[:3])
        found = kernel.backward(query, query, query, query, out, total, mask=bias, causal=causal, scale=None)
        assert [each.shape for each in found] == [query.shape] * 3


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
    with (
        patch.object(block_attention, "_efficient", efficient),
        patch.object(block_attention, "_efficient_backward", efficient_backward),
    ):
        yield
