"""Attention over a packed tree: every id sees its ancestors and itself, whatever else stands beside it in the forward.

Promises: for a forward without a tree it is transformers' own SDPA attention; for one with a tree it computes what each
path would compute in a row of its own. The tree travels with the forward as a keyword argument, so that threads that
run one module at the same time, some with trees and some without, never see each other's.

Two ways, equal in value. `_Blocks` (CPU): a run of ids that follow one another sees itself (causally), and it and all
that descends from it, which stands right behind it, see the run it branches off (wholly, up to there); the shares are
joined by their log-sum-exp, as flash attention joins its tiles (arXiv 2205.14135, section 3.1), and the backward pass
of a block needs only the joined result. No mask, no copy, and no score is computed twice. `_by_paths` (any other
device): each path is a row of plain causal SDPA; attention alone is computed again for what paths share, all else of
the forward is not.
Knows nothing of rows or of what is trained.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAME = "packed_tree"
"""What transformers knows this attention by."""
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


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
class Run:
    """Segments [start, end) that go on from one another; what is at [start, below) also sees the ids of `seen`."""

    start: int
    end: int
    below: int
    seen: slice | None


class Tree:
    """Who sees whom among N packed ids: segments in their order, from 0 to N without gaps."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self.size = segments[-1].end if segments else 0
        self.runs = _runs(self.segments)
        self._paths: tuple[Tensor, Tensor] | None = None

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


def _runs(segments: Sequence[Segment]) -> tuple[Run, ...]:
    heads = [number for number, segment in enumerate(segments) if segment.parent < 0 or segment.parent != number - 1]
    found = []
    for head, following in zip(heads, [*heads[1:], len(segments)], strict=True):
        first, parent = segments[head], segments[head].parent
        seen = None
        if parent >= 0:  # the run that the parent is of, up to the parent's end
            seen = slice(segments[heads[bisect(heads, parent) - 1]].start, segments[parent].end)
        found.append(Run(first.start, segments[following - 1].end, first.below, seen))
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


def inputs(tree: Tree, position: Tensor) -> dict[str, Any]:
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
    tree: Tree | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Implement transformers' attention interface: query (B, H, T, D), key and value (B, K, T, D), H a multiple of K.

    Returns (B, T, H, D). With a tree, B is 1.
    """
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if tree is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return found
    groups = query.shape[1] // key.shape[1]
    attend = _in_blocks if query.device.type == "cpu" and value.shape[-1] == query.shape[-1] else _by_paths
    out = attend(query, repeat_kv(key, groups), repeat_kv(value, groups), tree, scaling)
    return out.transpose(1, 2).contiguous(), None


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float | None) -> Tensor:
    out: Tensor = _Blocks.apply(query, key, value, tree, scale)  # type: ignore[no-untyped-call]
    return out


def _by_paths(query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float | None) -> Tensor:
    rows, places = tree.paths(query.device)

    def laid_out(packed: Tensor) -> Tensor:
        """(1, H, N, D) -> (B, H, T, D)"""
        return packed[0].transpose(0, 1)[rows].transpose(1, 2)

    out = torch.nn.functional.scaled_dot_product_attention(
        laid_out(query), laid_out(key), laid_out(value), is_causal=True, scale=scale
    )
    return out.transpose(1, 2).flatten(0, 1)[places].transpose(0, 1)[None]


class _Blocks(torch.autograd.Function):
    """Attention in two kinds of blocks: each run on itself, and a run with all below it on what it branches off."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float | None) -> Tensor:
        """Return (1, H, N, D); what blocks share is joined in fp32."""
        sizes = [run.end - run.start for run in tree.runs]
        parts = zip(*(each.split(sizes, 2) for each in (query, key, value)), strict=True)
        outs, totals = zip(*(_flash(*part, 0.0, True, scale=scale) for part in parts), strict=True)
        joined, total = torch.cat(outs, 2).float(), torch.cat(totals, 2)
        for below, seen in _crossing(tree):
            out, more = _flash(query[:, :, below], key[:, :, seen], value[:, :, seen], scale=scale)
            _join(joined[:, :, below], total[:, :, below], out, more)
        found = joined.to(query.dtype)
        ctx.save_for_backward(query, key, value, found, total)
        ctx.tree, ctx.scale = tree, scale
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value, each (1, H, N, D)."""
        query, key, value, out, total = ctx.saved_tensors
        sizes = [run.end - run.start for run in ctx.tree.runs]
        parts = zip(*(each.split(sizes, 2) for each in (gradient, query, key, value, out, total)), strict=True)
        own = zip(*(_flash_backward(*part, 0.0, True, scale=ctx.scale) for part in parts), strict=True)
        dquery, dkey, dvalue = (torch.cat(each, 2).float() for each in own)
        for below, seen in _crossing(ctx.tree):
            more = _flash_backward(
                gradient[:, :, below], query[:, :, below], key[:, :, seen], value[:, :, seen],
                out[:, :, below], total[:, :, below], 0.0, False, scale=ctx.scale,
            )  # fmt: skip
            for whole, part in zip((dquery[:, :, below], dkey[:, :, seen], dvalue[:, :, seen]), more, strict=True):
                whole += part
        return dquery.to(query.dtype), dkey.to(key.dtype), dvalue.to(value.dtype), None, None


def _crossing(tree: Tree) -> list[tuple[slice, slice]]:
    """Return the runs that branch off others, each with all below it, and what of the other they see."""
    return [(slice(run.start, run.below), run.seen) for run in tree.runs if run.seen is not None]


def _join(out: Tensor, total: Tensor, more: Tensor, more_total: Tensor) -> None:
    """Add the attention to other keys to `out` (1, H, L, D) and to its log-sum-exp `total` (1, H, L), in place."""
    out.lerp_(more.float(), torch.sigmoid(more_total - total)[..., None])
    torch.logaddexp(total, more_total, out=total)
