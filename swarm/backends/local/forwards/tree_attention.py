"""Attention over a packed tree: every id attends to its ancestors and itself, whatever else is in the forward.

Promises: for a forward without a tree it is transformers' own SDPA attention; for one with a tree it computes what each
path would compute in a row of its own. The tree travels with the forward as a keyword argument, so that threads that
run one module at the same time, some with trees and some without, never see each other's.

Two ways, equal in value. `_Blocks`: a run of ids that follow one another sees itself (causally), and it and all
that descends from it, which stands right behind it, see the run it branches off (wholly, up to there); the shares are
joined by their log-sum-exp, as flash attention joins its tiles (arXiv 2205.14135, section 3.1), and the backward pass
of a block needs only the joined result. No copy, and no score is computed twice. Where many short runs stand together,
a call for each costs more than scores that nobody reads: those are one block with a mask. `_by_paths` (where the device
has no kernel for blocks, `block_attention.py`): each path is a row of plain causal SDPA; attention alone is computed
again for what paths share, all else of the forward is not.
Knows nothing of rows or of what is trained.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swarm.backends.local.forwards.block_attention import BlockAttention, aligned_mask, block_attention

NAME = "packed_tree"
"""What transformers knows this attention by."""
_DROPPED = ("softcap", "s_aux")
"""What models hand to attention that SDPA ignores without a word: soft caps of scores, and sinks."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Ids [start, end) that the same paths go through; all that descends from them stands at [end, below).

    parent: the number of the segment before it on its paths, smaller than its own; -1 at a root.
    """

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
        self.runs = _runs(self.segments)
        self._paths: tuple[Tensor, Tensor] | None = None
        self._blocks: dict[tuple[int, torch.dtype, torch.device], tuple[list[Block], list[SegmentRun]]] = {}

    def blocks(self, pairs: int, dtype: torch.dtype, device: torch.device) -> tuple[list[Block], list[SegmentRun]]:
        """Return blocks from 0 to N without gaps, and the runs that see, with all below them, ids before their block.

        Runs stand together in one block, all that descends from one of them, where a mask of `pairs` scores for each
        of them is enough.
        """
        wanted = pairs, dtype, device
        if wanted not in self._blocks:
            self._blocks[wanted] = self._divided(pairs, lambda start, end: self._mask(start, end, dtype, device))
        return self._blocks[wanted]

    def _divided(self, pairs: int, mask: Callable[[int, int], Tensor]) -> tuple[list[Block], list[SegmentRun]]:
        if self.size**2 <= pairs * len(self.runs):
            return [Block(0, self.size, mask(0, self.size))], []
        starts = [run.start for run in self.runs]
        blocks: list[Block] = []
        crossing: list[SegmentRun] = []
        number = 0
        while number < len(starts):
            run = self.runs[number]
            together = bisect(starts, run.below - 1) - number
            if together > 1 and (run.below - run.start) ** 2 <= pairs * together:
                blocks.append(Block(run.start, run.below, mask(run.start, run.below)))
            else:
                blocks.append(Block(run.start, run.end, None))
                together = 1
            crossing += [run] if run.seen is not None else []
            number += together
        return blocks, crossing

    def _mask(self, start: int, end: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return 0 where an id of [start, end) sees another of them, itself too, and -inf elsewhere."""
        sizes = torch.tensor([segment.end - segment.start for segment in self.segments])
        below = torch.tensor([segment.below for segment in self.segments]).repeat_interleave(sizes)[start:end]
        places = torch.arange(start, end)
        seen = (places <= places[:, None]) & (places[:, None] < below)
        return aligned_mask(seen, dtype, device)

    def paths(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the paths to the leaves (B, T), padded with 0, and the place (N,) of each id among them, flattened."""
        if self._paths is None:
            found = [self._path(segment) for segment in self.segments if segment.below == segment.end]
            rows = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
            places = torch.empty(self.size, dtype=torch.long)
            for number, path in enumerate(found):
                places[path] = torch.arange(len(path)) + number * rows.shape[1]
            self._paths = rows.to(device), places.to(device)
        return self._paths

    def _path(self, leaf: Segment) -> Tensor:
        parts = [leaf]
        while parts[-1].parent >= 0:
            parts.append(self.segments[parts[-1].parent])
        return torch.cat([torch.arange(part.start, part.end) for part in reversed(parts)])


def _runs(segments: Sequence[Segment]) -> tuple[SegmentRun, ...]:
    heads = [number for number, segment in enumerate(segments) if segment.parent < 0 or segment.parent != number - 1]
    found = []
    for head, following in zip(heads, [*heads[1:], len(segments)], strict=True):
        first, parent = segments[head], segments[head].parent
        seen = None
        if parent >= 0:  # the run that the parent is of, up to the parent's end
            seen = slice(segments[heads[bisect(heads, parent) - 1]].start, segments[parent].end)
        found.append(SegmentRun(first.start, segments[following - 1].end, first.below, seen))
    return tuple(found)


def install(model: Any) -> None:
    """Let the attention of a transformers model that uses SDPA go through here; leave any other model as it is."""
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import sdpa_mask

    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, tree_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def installed(model: Any) -> bool:
    """Return whether a model's attention goes through here."""
    return getattr(model.config, "_attn_implementation", None) == NAME


def inputs(tree: TreeMask, position: Tensor) -> dict[str, Any]:
    """Return what a forward over packed ids is given beside them; position (N,) is each id's depth.

    A mask of four dimensions is passed on as it is: given one that nobody reads, transformers builds none of N x N.
    """
    unread = torch.zeros(1, 1, 1, 1, device=position.device)
    return {"tree": tree, "position_ids": position[None], "attention_mask": unread, "use_cache": False}


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

    Returns (B, T, H, D). With a tree, B is 1. Raises ValueError for what SDPA has no place for and would drop.
    """
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
    even = value.shape[-1] == query.shape[-1]
    kernel = block_attention(query.device, query.dtype, query.shape[-1]) if even else None
    if kernel is None:
        out = _by_paths(query, key, value, tree, scaling)
    else:
        out = _in_blocks(query, key, value, tree, scaling, kernel)
    return out.transpose(1, 2).contiguous(), None


def _in_blocks(
    query: Tensor, key: Tensor, value: Tensor, tree: TreeMask, scale: float | None, kernel: BlockAttention
) -> Tensor:
    out: Tensor = _Blocks.apply(query, key, value, tree, scale, kernel)  # type: ignore[no-untyped-call]
    return out


def _by_paths(query: Tensor, key: Tensor, value: Tensor, tree: TreeMask, scale: float | None) -> Tensor:
    rows, places = tree.paths(query.device)

    def laid_out(packed: Tensor) -> Tensor:
        """(1, H, N, D) -> (B, H, T, D)"""
        return packed[0].transpose(0, 1)[rows].transpose(1, 2)

    out = torch.nn.functional.scaled_dot_product_attention(
        laid_out(query), laid_out(key), laid_out(value), is_causal=True, scale=scale
    )
    return out.transpose(1, 2).flatten(0, 1)[places].transpose(0, 1)[None]


class _Blocks(torch.autograd.Function):
    """Attention in blocks: those of `TreeMask.blocks` on themselves, and runs with all below them on others."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tree: TreeMask,
        scale: float | None,
        kernel: BlockAttention,
    ) -> Tensor:
        """Return (1, H, N, D); what blocks share is joined in fp32."""
        blocks, crossing = tree.blocks(kernel.pairs(query.shape[1], query.shape[3]), query.dtype, query.device)
        parts = _parted(blocks, query, key, value)
        own = [
            kernel.forward(*part, mask=block.mask, causal=block.mask is None, scale=scale)
            for block, part in zip(blocks, parts, strict=True)
        ]
        outs, totals = zip(*own, strict=True)
        joined, total = torch.cat(outs, 2).float(), torch.cat(totals, 2)
        for run in crossing:
            below = slice(run.start, run.below)
            seen = key[:, :, run.seen], value[:, :, run.seen]
            more = kernel.forward(query[:, :, below], *seen, mask=None, causal=False, scale=scale)
            _join(joined[:, :, below], total[:, :, below], *more)
        found = joined.to(query.dtype)
        ctx.save_for_backward(query, key, value, found, total)
        ctx.blocks, ctx.crossing, ctx.scale, ctx.kernel = blocks, crossing, scale, kernel
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value, each (1, H, N, D)."""
        query, key, value, out, total = ctx.saved_tensors
        parts = _parted(ctx.blocks, gradient, query, key, value, out, total)
        own = [
            ctx.kernel.backward(*part, mask=block.mask, causal=block.mask is None, scale=ctx.scale)
            for block, part in zip(ctx.blocks, parts, strict=True)
        ]
        dquery, dkey, dvalue = (torch.cat(each, 2).float() for each in zip(*own, strict=True))
        for run in ctx.crossing:
            below, seen = slice(run.start, run.below), run.seen
            more = ctx.kernel.backward(
                gradient[:, :, below], query[:, :, below], key[:, :, seen], value[:, :, seen],
                out[:, :, below], total[:, :, below], mask=None, causal=False, scale=ctx.scale,
            )  # fmt: skip
            for whole, part in zip((dquery[:, :, below], dkey[:, :, seen], dvalue[:, :, seen]), more, strict=True):
                whole += part
        return dquery.to(query.dtype), dkey.to(key.dtype), dvalue.to(value.dtype), None, None, None


def _parted(blocks: Sequence[Block], *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield each block's part of tensors (1, H, N, ...)."""
    sizes = [block.end - block.start for block in blocks]
    return zip(*(each.split(sizes, 2) for each in tensors), strict=True)


def _join(out: Tensor, total: Tensor, more: Tensor, more_total: Tensor) -> None:
    """Add the attention to other keys to `out` (1, H, L, D) and to its log-sum-exp `total` (1, H, L), in place."""
    out.lerp_(more.float(), torch.sigmoid(more_total - total)[..., None])
    torch.logaddexp(total, more_total, out=total)
