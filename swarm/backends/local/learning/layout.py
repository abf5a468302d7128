"""The layout of an update's rows: which rows one forward computes together, and how.

Promises: `linear` and `none` compute row by row. `tree` computes what rows share once, on a CPU where the model allows
it: where its attention goes through `tree_attention.py` and features of a small tree equal those of its rows. `auto` is
`tree` where the linear rows hold so many times the ids of the trees, cut to the job's budget, as pays (`PAYS`), and
rows otherwise. Rows are padded or, where that would waste much and trees are possible, packed end to end, as trees that
share nothing. What a step learns does not depend on any of it. Each change of layout is logged with its reason.
Does not know how rows were made: with merging `none` the server sends a row for each call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch

from swarm.backends.algorithms.rows import Row
from swarm.backends.local.forwards import tree_attention
from swarm.backends.local.forwards.rounding import beyond_rounding
from swarm.backends.local.learning.micro_batch import MicroBatch, PaddedRows, padded_rows
from swarm.backends.local.learning.trees import Branch, PackedRows, bounded, depth_first
from swarm.backends.local.model.policy import Policy
from swarm.job import Job

log = logging.getLogger(__name__)
PAYS: Final = 1.15
"""Fewest ids of the rows over ids of the trees at which trees are chosen."""
_PADDING_PER_ROW = 8
"""Ids of padding that cost as much as attention to one more row by itself (a few microseconds for each layer)."""
_PROBE = ((0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 7, 8, 9), (0, 1, 2, 7, 8, 3, 1, 4), (5, 3, 2), (5, 3, 4, 4))
"""Rows that branch at a root, below it, and not at all, as places in the policy's text."""


class Layout:
    """How a job's rows are laid out for a policy."""

    def __init__(self, policy: Policy, job: Job) -> None:
        self._merging = job.merging
        self._tokens = job.micro_batch_tokens
        self._obstacle = obstacle(policy)
        if self._obstacle is not None and policy.device.type == "cpu" and job.merging in ("auto", "tree"):
            log.warning(
                "event=no_trees cost='updates feed tokens/forward ids, not about merge/tree_tokens' model=%s reason=%r",
                type(policy.model).__name__,
                self._obstacle,
            )
        self._last_layout: str | None = None
        self._chosen: list[bool] = []
        self._ratios: list[float] = []

    def micro_batches(self, rows: Sequence[Row]) -> Iterator[MicroBatch]:
        """Yield the rows, each once, in micro-batches within the job's budget."""
        if not rows:
            return
        trees = self._trees(rows)
        if trees is None:
            yield from self._rows(rows)
        else:
            yield from map(PackedRows, trees)

    def metrics(self) -> Mapping[str, float]:
        """Return the share of trees among the layouts since the last call, and the mean ratio where one was known."""
        chosen, ratios = self._chosen, self._ratios
        self._chosen, self._ratios = [], []
        measured = {"merge/layout_ratio": sum(ratios) / len(ratios)} if ratios else {}
        return {"merge/layout_tree": sum(chosen) / max(1, len(chosen)), **measured}

    def _trees(self, rows: Sequence[Row]) -> list[list[Branch]] | None:
        """Return the trees to compute, or None for rows."""
        reason = "the job says so" if self._merging in ("linear", "none") else self._obstacle
        if reason is not None:
            self._record("rows", "unknown", reason)
            return None
        trees = list(bounded(depth_first(rows), self._tokens))
        ratio = sum(len(row.ids) for row in rows) / sum(branch.added for tree in trees for branch in tree)
        self._ratios.append(ratio)
        if self._merging == "auto" and ratio < PAYS:
            self._record("rows", f"{ratio:.3f}", f"a tree pays from {PAYS}")
            return None
        self._record(
            "tree", f"{ratio:.3f}", f"a tree pays from {PAYS}" if self._merging == "auto" else "the job says so"
        )
        return trees

    def _rows(self, rows: Sequence[Row]) -> Iterator[MicroBatch]:
        """Yield rows padded or, where padding would cost more than attention to each row by itself does, packed."""
        padded = list(padded_rows(rows, self._tokens))
        padding = sum(micro.tokens for micro in padded) - sum(len(row.ids) for row in rows)
        if self._obstacle is not None or padding <= _PADDING_PER_ROW * len(rows):
            yield from padded
        else:
            alone = [Branch(row, 0) for micro in padded for row in micro.rows]
            yield from map(PackedRows, bounded(alone, self._tokens))

    def _record(self, layout: str, ratio: str, reason: str) -> None:
        """Count a choice, and log it where it differs from the last one."""
        self._chosen.append(layout == "tree")
        if layout != self._last_layout:
            log.info("event=merging layout=%s merging=%s ratio=%s reason=%r", layout, self._merging, ratio, reason)
        self._last_layout = layout


def obstacle(policy: Policy) -> str | None:
    """Return why a policy cannot compute trees, or None: compare a small tree with its rows."""
    if policy.device.type != "cpu":
        return f"on {policy.device.type} rows are computed faster than trees"
    if not tree_attention.installed(policy.model):
        return "the model's attention is not transformers' SDPA"
    text = policy.checked_ids(1 + max(map(max, _PROBE)))
    packed = PackedRows(depth_first([_probe_row([text[place] for place in row]) for row in _PROBE]))
    with torch.no_grad(), policy.lock.writing():
        try:
            found = packed.features(policy)
            apart = beyond_rounding(policy.model, lambda: PaddedRows(packed.rows).features(policy), found)
        except (TypeError, ValueError, RuntimeError) as error:
            return f"the model's forward takes no tree: {error}"
    return None if apart is None else f"features of a tree differ from those of its rows: {apart}"


def _probe_row(ids: Sequence[int]) -> Row:
    places = torch.arange(len(ids))
    return Row(-1, "probe", torch.tensor(ids), places, places, torch.zeros(len(ids)), places)
