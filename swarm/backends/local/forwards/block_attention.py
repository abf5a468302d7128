"""Attention to one block of keys that also tells its log-sum-exp, and its backward pass, by device.

Promises: what attention to several blocks of keys needs to be joined and differentiated afterwards (arXiv 2205.14135,
section 3.1): `forward` returns a block's share and its log-sum-exp, `backward` takes what all blocks of keys joined to.
torch has no public function for both; its own context parallelism calls the same operators in the same way. They are
touched in this module alone, and on a GPU believed only after a trial against plain arithmetic, once for each device,
type and head width: a refusal or a difference is logged in one line, and there is no block attention.
What runs on CUDA was written from the operators' sources and has not been run on a GPU by this project.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

BIAS_ALIGNMENT = 16
"""Rows of a mask begin at multiples of so many elements: CUDA's kernel reads several at once."""
_LSE_ALIGNMENT = 32
"""CUDA's kernel keeps log-sum-exps in rows of a multiple of so many."""
_TRIED = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""The types that are tried on CUDA, and how far a trial may be off, relative to the greatest value."""
_log = logging.getLogger(__name__)
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
_efficient_backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default


class BlockAttention(Protocol):
    """Shapes: query, out and gradient (1, H, L, D), key and value (1, H, S, D), total (1, H, L) in fp32.

    mask: (L, S) of the query's type, added to scores; its rows start at multiples of `BIAS_ALIGNMENT` elements.
    causal: query i sees keys 0 to i, L equals S. None and False: every query sees every key.
    """

    def pairs(self, heads: int, width: int) -> int:
        """Return how many masked scores cost as much as the calls, forward and backward, for one more block."""
        ...

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return attention to these keys alone, and the log-sum-exp (natural) of their scores."""
        ...

    def backward(
        self,
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        total: Tensor,
        *,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the shares of the gradients of query, key and value that come from these keys.

        `out` and `total` are joined of all the keys that the queries see, of which these are a part.
        """
        ...


class FlashOnCpu:
    """torch's flash attention for CPUs."""

    def pairs(self, heads: int, width: int) -> int:
        """Measured on one core: a block's calls 120 us, a score 10 ns and 0.17 ns per element of heads * width."""
        return int(120_000 / (10 + 0.17 * heads * width))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float | None
    ) -> tuple[Tensor, Tensor]:
        """Keep `BlockAttention`'s contract."""
        out, total = _flash(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
        return out, total

    def backward(
        self,
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        total: Tensor,
        *,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep `BlockAttention`'s contract."""
        dquery, dkey, dvalue = _flash_backward(
            gradient, query, key, value, out, total, 0.0, causal, attn_mask=mask, scale=scale
        )
        return dquery, dkey, dvalue


class EfficientOnCuda:
    """torch's memory-efficient attention for CUDA: any type and GPU, masks, and rows of any length."""

    def pairs(self, heads: int, width: int) -> int:
        """Estimated, not measured: a block's calls 100 us of the host's time, 1e-6 us per element of a score.

        Bounded so that a tree's masks stay below 128 kB for each of its runs.
        """
        return min(2**16, 10**8 // (heads * width))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float | None
    ) -> tuple[Tensor, Tensor]:
        """Keep `BlockAttention`'s contract."""
        bias = _by_head(mask, query)
        out, total, _, _ = _efficient(query, key, value, bias, True, 0.0, causal, scale=scale)
        return out, total[..., : query.shape[2]]

    def backward(
        self,
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        total: Tensor,
        *,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep `BlockAttention`'s contract.

        The kernel takes for granted that tokens of `out` stand H * D apart, whatever its strides say, and that
        log-sum-exps past the last query are infinite. The state of a random stream is read for dropout alone.
        """
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
        padded = functional.pad(total, (0, -total.shape[-1] % _LSE_ALIGNMENT), value=torch.inf).contiguous()
        unread = torch.empty((), dtype=torch.long, device=query.device)
        wanted = (True, True, True, False)
        dquery, dkey, dvalue, _ = _efficient_backward(
            gradient, query, key, value, _by_head(mask, query), out, padded, unread, unread, 0.0, wanted, causal,
            scale=scale,
        )  # fmt: skip
        return dquery, dkey, dvalue


class PlainAttention:
    """The contract written out, in fp32 on any device: all scores at once. What kernels are compared with."""

    def pairs(self, heads: int, width: int) -> int:
        """Return 0: nothing is spared here by masks."""
        return 0

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float | None
    ) -> tuple[Tensor, Tensor]:
        """Keep `BlockAttention`'s contract."""
        scores = _scores(query, key, mask, causal, scale)
        return (scores.softmax(-1) @ value.float()).to(query.dtype), scores.logsumexp(-1)

    def backward(
        self,
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        total: Tensor,
        *,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep `BlockAttention`'s contract."""
        weights = (_scores(query, key, mask, causal, scale) - total[..., None]).exp()
        wide = gradient.float()
        leant = (wide @ value.float().mT - (wide * out.float()).sum(-1, keepdim=True)) * weights
        leant = leant * _factor(query, scale)
        found = leant @ key.float(), leant.mT @ query.float(), weights.mT @ wide
        dquery, dkey, dvalue = (each.to(query.dtype) for each in found)
        return dquery, dkey, dvalue


@cache
def block_attention(device: torch.device, dtype: torch.dtype, width: int) -> BlockAttention | None:
    """Return a device's block attention for heads of a width, or None, logged once, where none is to be trusted."""
    if device.type == "cpu":
        return FlashOnCpu()
    found = EfficientOnCuda()
    wrong = difference(found, device, dtype, width) if device.type == "cuda" else "none is known there"
    if wrong is None:
        return found
    _log.warning(
        "event=no_block_attention cost='attention computes each path of a packed tree by itself' device=%s dtype=%s "
        "head_width=%d reason=%r",
        device,
        dtype,
        width,
        wrong,
    )
    return None


def difference(kernel: BlockAttention, device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """Return how a kernel differs from plain arithmetic on a CPU over a few random blocks, None if it does not."""
    if dtype not in _TRIED:
        return "the type is not one of " + ", ".join(map(str, _TRIED))
    try:
        gap = max(_gap(kernel, device, dtype, width, *form) for form in _FORMS)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        return f"the kernel refuses: {str(error).splitlines()[0]}"
    return None if gap <= _TRIED[dtype] else f"the kernel is off by {gap:.2g} in a trial"


_FORMS = ((77, 77, "causal"), (128, 128, "causal"), (77, 77, "mask"), (77, 133, "all"), (128, 128, "all"))
"""Queries, keys, and who sees whom: what attention over trees calls, in lengths that fill a kernel's tiles or not."""
_TRIAL_HEADS = 3


def _gap(
    kernel: BlockAttention, device: torch.device, dtype: torch.dtype, width: int, queries: int, keys: int, form: str
) -> float:
    """Return the greatest difference, relative to the greatest value, in what a kernel finds; infinite for a NaN."""
    dice = torch.Generator().manual_seed(queries)
    sizes = (queries, queries, keys, keys, keys, keys)
    drawn = [torch.randn(1, size, _TRIAL_HEADS, width, generator=dice).to(dtype).transpose(1, 2) for size in sizes]
    gradient, query, key, value, more_key, more_value = drawn
    mask = aligned_mask(torch.ones(queries, keys).tril().bool(), dtype) if form == "mask" else None
    plain, causal = PlainAttention(), form == "causal"
    expected = plain.forward(query, key, value, mask=mask, causal=causal, scale=None)
    beside = plain.forward(query, more_key, more_value, mask=None, causal=False, scale=None)
    whole = torch.logaddexp(expected[1], beside[1])
    shares = ((each[1] - whole).exp()[..., None] * each[0].float() for each in (expected, beside))
    joined = sum(shares, torch.zeros(())).to(dtype)
    given = gradient, query, key, value, joined, whole
    right = *expected, *plain.backward(*given, mask=mask, causal=causal, scale=None)
    there = [each.to(device) for each in given]
    bias = aligned_mask(mask.isfinite(), dtype, device) if mask is not None else None
    found = kernel.forward(*there[1:4], mask=bias, causal=causal, scale=None)
    differentiated = kernel.backward(*there, mask=bias, causal=causal, scale=None)
    gaps = [
        float((a.cpu().float() - b.float()).abs().max() / b.float().abs().max())
        for a, b in zip((*found, *differentiated), right, strict=True)
    ]
    return max(gap if gap == gap else float("inf") for gap in gaps)


def aligned_mask(seen: Tensor, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return 0 where `seen` (L, S) and -inf elsewhere, in rows that start where `BlockAttention` wants them."""
    rows, columns = seen.shape
    whole = torch.zeros(rows, -(-columns // BIAS_ALIGNMENT) * BIAS_ALIGNMENT, dtype=dtype, device=device)
    return whole[:, :columns].masked_fill_(~seen.to(whole.device), -torch.inf)


def _by_head(mask: Tensor | None, query: Tensor) -> Tensor | None:
    return None if mask is None else mask.expand(1, query.shape[1], -1, -1)


def _factor(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    scores = query.float() @ key.float().mT * _factor(query, scale)
    if causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    return scores if mask is None else scores + mask.float()
