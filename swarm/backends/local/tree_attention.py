"""Attention over a packed tree: every id attends to its ancestors and itself alone.

Without a tree it is transformers' own SDPA attention. The tree travels as a keyword argument, so that threads that run
one module never see each other's. A run of ids that follow one another sees itself (causally), and it and all that
descends from it see the run it branches off; the shares are joined by their log-sum-exp, as flash attention joins its
tiles (arXiv 2205.14135, section 3.1). Where many short runs stand together they are one block with a mask, which costs
less than a call for each. A block is torch's flash attention for CPUs; torch has no public function that also tells its
log-sum-exp, and its own context parallelism calls the same operators.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAME = "packed_tree"
"""What transformers knows this attention by."""
_DROPPED = ("softcap", "s_aux")
"""What models hand to attention that SDPA ignores without a word: soft caps of scores, and sinks."""
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True, slots=True)
class Segment:
    """Ids [start, end) that the same paths go through; all that descends from them stands at [end, below). parent: the
    number of the segment before it on its paths, smaller than its own; -1 at a root."""

    start: int
    end: int
    below: int
    parent: int


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Segments [start, end) that go on from one another; what is at [start, below) also sees the ids of `seen`."""

    start: int
    end: int
    below: int
    seen: slice | None


@dataclass(frozen=True, slots=True)
class Block:
    """Ids [start, end) that one call leads to one another: by a `mask` (n, n), added to scores, or causally."""

    start: int
    end: int
    mask: Tensor | None


class TreeMask:
    """Which of N packed ids attend to which: segments in their order, from 0 to N without gaps."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self.size = segments[-1].end if segments else 0
        heads = [number for number, one in enumerate(segments) if one.parent < 0 or one.parent != number - 1]
        self.runs: list[SegmentRun] = []
        for head, following in zip(heads, [*heads[1:], len(segments)], strict=True):
            first, parent = segments[head], segments[head].parent
            seen = None
            if parent >= 0:  # the run that the parent is of, up to the parent's end
                seen = slice(segments[heads[bisect(heads, parent) - 1]].start, segments[parent].end)
            self.runs.append(SegmentRun(first.start, segments[following - 1].end, first.below, seen))
        self._blocks: dict[tuple[int, torch.dtype], tuple[list[Block], list[SegmentRun]]] = {}

    def blocks(self, pairs: int, dtype: torch.dtype) -> tuple[list[Block], list[SegmentRun]]:
        """Return blocks from 0 to N without gaps, and the runs that see ids before their block. Runs, all that descends
        from one, are one block where a mask of `pairs` scores for each is enough."""
        if (pairs, dtype) not in self._blocks:
            self._blocks[pairs, dtype] = self._divide(pairs, dtype)
        return self._blocks[pairs, dtype]

    def _divide(self, pairs: int, dtype: torch.dtype) -> tuple[list[Block], list[SegmentRun]]:
        if self.size**2 <= pairs * len(self.runs):
            return [Block(0, self.size, self._mask(0, self.size, dtype))], []
        starts = [run.start for run in self.runs]
        blocks: list[Block] = []
        crossing: list[SegmentRun] = []
        number = 0
        while number < len(starts):
            run = self.runs[number]
            together = bisect(starts, run.below - 1) - number
            if together > 1 and (run.below - run.start) ** 2 <= pairs * together:
                blocks.append(Block(run.start, run.below, self._mask(run.start, run.below, dtype)))
            else:
                blocks.append(Block(run.start, run.end, None))
                together = 1
            crossing += [run] if run.seen is not None else []
            number += together
        return blocks, crossing

    def _mask(self, start: int, end: int, dtype: torch.dtype) -> Tensor:
        """Return 0 where an id of [start, end) sees another of them, itself too, and -inf elsewhere."""
        sizes = torch.tensor([segment.end - segment.start for segment in self.segments])
        below = torch.tensor([segment.below for segment in self.segments]).repeat_interleave(sizes)[start:end]
        places = torch.arange(start, end)
        seen = (places <= places[:, None]) & (places[:, None] < below)
        return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)


def install(model: Any) -> None:
    """Let the attention of a transformers model that uses SDPA go through here; leave any other model as it is."""
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import sdpa_mask

    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, tree_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    tree: TreeMask | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Implement transformers' attention interface: query (B, H, T, D), key and value (B, K, T, D), H a multiple of K.
    Returns (B, T, H, D). With a tree, B is 1. Raises ValueError for what SDPA has no place for and would drop."""
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if dropped := [name for name in _DROPPED if others.get(name) is not None]:
        raise ValueError(f"SDPA has no {' and no '.join(dropped)}")
    if tree is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return found
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    out: Tensor = _Blocks.apply(query, key, value, tree, scaling)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).contiguous(), None


class _Blocks(torch.autograd.Function):
    """Attention in blocks: those of `TreeMask.blocks` on themselves, and runs with all below them on others."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: TreeMask, scale: float | None) -> Tensor:
        """Return (1, H, N, D); what blocks share is joined in fp32."""
        blocks, crossing = tree.blocks(_break_even_pairs(query.shape[1], query.shape[3]), query.dtype)
        parts = _split_blocks(blocks, query, key, value)
        own = [
            _flash(*part, 0.0, block.mask is None, attn_mask=block.mask, scale=scale)
            for block, part in zip(blocks, parts, strict=True)
        ]
        outs, totals = zip(*own, strict=True)
        joined, total = torch.cat(outs, 2).float(), torch.cat(totals, 2)
        for run in crossing:
            below = slice(run.start, run.below)
            more, more_total = _flash(query[:, :, below], key[:, :, run.seen], value[:, :, run.seen], scale=scale)
            share = torch.sigmoid(more_total - total[:, :, below])
            joined[:, :, below].lerp_(more.float(), share[..., None])
            torch.logaddexp(total[:, :, below], more_total, out=total[:, :, below])
        found = joined.to(query.dtype)
        ctx.save_for_backward(query, key, value, found, total)
        ctx.blocks, ctx.crossing, ctx.scale = blocks, crossing, scale
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value, each (1, H, N, D)."""
        query, key, value, out, total = ctx.saved_tensors
        parts = _split_blocks(ctx.blocks, gradient, query, key, value, out, total)
        own = [
            _flash_backward(*part, 0.0, block.mask is None, attn_mask=block.mask, scale=ctx.scale)
            for block, part in zip(ctx.blocks, parts, strict=True)
        ]
        dquery, dkey, dvalue = (torch.cat(each, 2).float() for each in zip(*own, strict=True))
        for run in ctx.crossing:
            below, seen = slice(run.start, run.below), run.seen
            more = _flash_backward(
                gradient[:, :, below], query[:, :, below], key[:, :, seen], value[:, :, seen],
                out[:, :, below], total[:, :, below], 0.0, False, scale=ctx.scale,
            )  # fmt: skip
            for whole, part in zip((dquery[:, :, below], dkey[:, :, seen], dvalue[:, :, seen]), more, strict=True):
                whole += part
        return dquery.to(query.dtype), dkey.to(key.dtype), dvalue.to(value.dtype), None, None


def _break_even_pairs(heads: int, width: int) -> int:
    """Return how many masked scores cost as much as one more block's calls: measured on one core, 120 us for these,
    10 ns and 0.17 ns per element of heads * width for a score."""
    return int(120_000 / (10 + 0.17 * heads * width))


def _split_blocks(blocks: Sequence[Block], *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    sizes = [block.end - block.start for block in blocks]
    return zip(*(each.split(sizes, 2) for each in tensors), strict=True)
