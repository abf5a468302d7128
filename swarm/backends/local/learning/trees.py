"""Rows packed into trees: what rows share from their beginning on, across turns, branches and episodes, is there once.

Promises: every row's path through the packed ids is its own ids; a sampled token that several rows have is one id and
trained as often as they have it; ids stand in depth-first order (`tree_attention.py`), which is the order of the rows'
ids compared as words of a dictionary: neighbours there share most. Trees of several tasks stand side by side.
No step of Python for each id.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from swarm.backends.algorithms.rows import Row
from swarm.backends.local.forwards.tree_attention import Segment, TreeMask, inputs
from swarm.backends.local.model.policy import Policy


class Branch(NamedTuple):
    """A row, and how many ids it shares with the one before it in depth-first order: those it adds no more."""

    row: Row
    shared: int

    @property
    def added(self) -> int:
        """Ids that the row adds to its tree."""
        return len(self.row.ids) - self.shared


def depth_first(rows: Sequence[Row]) -> list[Branch]:
    """Return rows in depth-first order, where they part that way first which leads to the longest: all as one forest.

    So a long path stands in one piece, and what branches off it finds what is before it in one piece, too.
    """
    ids = [row.ids.numpy() for row in rows]
    order = sorted(range(len(rows)), key=lambda n: ids[n].astype(">u4").tobytes())
    order = _longest_first(order, [len(each) for each in ids], _neighbours(order, ids))
    return [Branch(rows[n], common) for n, common in zip(order, _neighbours(order, ids), strict=True)]


def _neighbours(order: Sequence[int], ids: Sequence[np.ndarray]) -> list[int]:
    """Return what each shares with the one before it."""
    return [0, *(_shared(ids[left], ids[right]) for left, right in pairwise(order))][: len(order)]


def _longest_first(order: Sequence[int], lengths: Sequence[int], shared: Sequence[int]) -> list[int]:
    """Return the order with the ways that lead on from each id sorted by the longest row they lead to."""
    waiting: list[tuple[int, list[int]]] = []
    """Ways in their order, each with the depth at which it parts from the one before; a way's first row is longest."""
    for row, depth in zip([*order, -1], [*shared, 0], strict=True):
        while len(waiting) > 1 and waiting[-1][0] > depth:
            parting, ways = waiting[-1][0], []
            while waiting[-1][0] == parting:
                ways.append(waiting.pop()[1])
            before, first = waiting.pop()
            ways = [first, *reversed(ways)]
            ways.sort(key=lambda way: -lengths[way[0]])
            waiting.append((before, [each for way in ways for each in way]))
        waiting.append((depth, [row]))
    return [each for _, way in waiting[:-1] for each in way]


def bounded(branches: Sequence[Branch], tokens: int) -> Iterator[list[Branch]]:
    """Split branches where a tree would hold more than `tokens` ids (but always one row); a new one begins alone."""
    taken: list[Branch] = []
    size = 0
    for branch in branches:
        if taken and size + branch.added > tokens:
            yield taken
            taken, size = [], 0
        taken.append(branch if taken else Branch(branch.row, 0))
        size += taken[-1].added
    if taken:
        yield taken


class PackedRows:
    """Rows as one packed tree; implements `MicroBatch`. The first branch shares nothing.

    ids, position (N,): ids in depth-first order and their depths; places (M,): where each sampled token is predicted.
    """

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.rows: Sequence[Row] = [branch.row for branch in branches]
        self.ids = torch.cat([branch.row.ids[branch.shared :] for branch in branches])
        self.position = torch.cat([torch.arange(branch.shared, len(branch.row.ids)) for branch in branches])
        self.places, self.tree = _grown(branches)

    @property
    def tokens(self) -> int:
        """Ids that are fed to the model."""
        return len(self.ids)

    def features(self, policy: Policy) -> Tensor:
        """Return what `policy.head` turns into logits (M, F)."""
        beside = inputs(self.tree, self.position.to(policy.device))
        found = policy.features(self.ids[None].to(policy.device), **beside)
        return found[0][self.places.to(policy.device)]


def _shared(left: np.ndarray, right: np.ndarray) -> int:
    """Return the length of the longest common beginning."""
    size = min(len(left), len(right))
    differ = left[:size] != right[:size]
    return int(differ.argmax()) if differ.any() else size


def _grown(branches: Sequence[Branch]) -> tuple[Tensor, TreeMask]:
    """Return where the branches' sampled tokens are predicted (M,), and the tree's shape."""
    path = np.empty(max(len(branch.row.ids) for branch in branches), dtype=np.int64)
    places: list[np.ndarray] = []
    parents: dict[int, int] = {}
    # of each run of ids that a branch adds: the index before the first (-1 at a root), by the index of the first
    size = 0
    for row, shared in branches:
        length = len(row.ids)
        if length > shared:
            parents[size] = int(path[shared - 1]) if shared else -1
        path[shared:length] = np.arange(size, size + length - shared)
        size += length - shared
        places.append(path[row.places.numpy()])
    return torch.from_numpy(np.concatenate(places)), TreeMask(_segments(parents, size))


def _segments(parents: dict[int, int], size: int) -> list[Segment]:
    """Cut the runs where others branch off; a run that goes on where the one before it ends is no cut."""
    apart = {start: parent for start, parent in parents.items() if parent < 0 or parent != start - 1}
    cuts = sorted({*apart, *(parent + 1 for parent in apart.values() if parent >= 0)})
    owners = [
        bisect(cuts, apart[cut]) - 1 if cut in apart and apart[cut] >= 0 else -1 if cut in apart else number - 1
        for number, cut in enumerate(cuts)
    ]
    ends = [*cuts[1:], size]
    below = list(ends)
    for number in reversed(range(len(cuts))):
        if owners[number] >= 0:
            below[owners[number]] = max(below[owners[number]], below[number])
    return [Segment(*each) for each in zip(cuts, ends, below, owners, strict=True)]
