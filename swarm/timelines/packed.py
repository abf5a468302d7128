"""Call trees packed into one: every prefix that calls share, across turns, branches and episodes, is there once.

A packed tree holds token ids in depth-first order, each with the index of the id before it. A model that lets every
id see just its ancestors computes for each sampled id exactly what it computes in a row of its own. Pure functions of
nodes; which episodes to pack together (those of a group share their prompt) is the caller's choice. Calls that are not
trained are there as far as trained ones go on from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from swarm.timelines.node import Node, taught


@dataclass(frozen=True, slots=True)
class PackedTree:
    """N ids as a forest, and the M sampled ids that are trained in it, each sampled token exactly once.

    ids, parent, position (N,): the token id, the index of the one before it (-1 at a root; always smaller than its own)
    and how many are before it on its path. at (M,): index whose logits predict the sampled id; targets, logprobs,
    versions (M,): the id, its log-prob and policy version when it was sampled; episodes (M,): number of its episode.
    """

    ids: tuple[int, ...]
    parent: tuple[int, ...]
    position: tuple[int, ...]
    at: tuple[int, ...]
    targets: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    episodes: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Run:
    """Ids that only one path goes through. When it is cut, it keeps its beginning and `rest` holds what was cut off."""

    ids: tuple[int, ...]
    before: _Run | None
    children: dict[int, _Run] = field(default_factory=dict)
    rest: _Run | None = None
    index: int = 0
    """Of its first id in the packed tree."""

    def cut(self, length: int) -> None:
        rest = _Run(self.ids[length:], self, self.children, self.rest)
        for child in rest.children.values():
            child.before = rest
        self.ids, self.children, self.rest = self.ids[:length], {rest.ids[0]: rest}, rest


_Place = tuple[_Run, int]
"""A run, and how many of its ids (and of those cut off from it since) are before the place."""


def packed_tree(episodes: Sequence[Sequence[Node]]) -> PackedTree:
    """Return one packed tree of the calls of `episodes`; raise ValueError for a sampled id that nothing is before."""
    needed = [taught(nodes) for nodes in episodes]
    root, ends = _inserted(needed)
    ids, parent, position = _in_depth_first_order(root)
    at: list[int] = []
    numbers: list[int] = []
    calls = [(number, node) for number, nodes in enumerate(needed) for node in nodes]
    trained = [(call, end) for call, end in zip(calls, ends, strict=True) if call[1].trained]
    for (number, node), end in trained:
        path = _indices(end, len(node.sampled) + 1)
        if len(path) <= len(node.sampled):
            raise ValueError(f"expected a prompt before the sampled ids of call {node.index}, found none")
        at += path[:-1]
        numbers += [number] * len(node.sampled)
    return PackedTree(
        ids=tuple(ids),
        parent=tuple(parent),
        position=tuple(position),
        at=tuple(at),
        targets=tuple(token for (_, node), _ in trained for token in node.sampled),
        logprobs=tuple(logprob for (_, node), _ in trained for logprob in node.logprobs),
        versions=tuple(version for (_, node), _ in trained for version in node.versions),
        episodes=tuple(numbers),
    )


def tree_tokens(episodes: Sequence[Sequence[Node]]) -> int:
    """Return the ids in the packed tree of `episodes`."""
    root, _ = _inserted([taught(nodes) for nodes in episodes])
    return sum(len(run.ids) for run in _runs(root))


def _inserted(episodes: Sequence[Sequence[Node]]) -> tuple[_Run, list[_Place]]:
    """Return the runs of all calls, and where each call ends."""
    root = _Run((), None)
    ends: list[_Place] = []
    for nodes in episodes:
        known: dict[int, _Place] = {}
        for node in nodes:  # parents come before children
            start = (root, 0) if node.parent is None else known[node.parent.index]
            known[node.index] = _insert(start, (*node.context, *node.sampled))
            ends.append(known[node.index])
    return root, ends


def _insert(place: _Place, ids: tuple[int, ...]) -> _Place:
    """Lead a path from `place` through `ids`; return where it ends."""
    run, offset = _resolved(place)
    done = 0
    while done < len(ids):
        if offset == len(run.ids):
            following = run.children.get(ids[done])
            if following is None:
                following = run.children[ids[done]] = _Run(ids[done:], run)
                return following, len(following.ids)
            run, offset = following, 0
        shared = _common(run.ids[offset:], ids[done:])
        offset, done = offset + shared, done + shared
        if done < len(ids) and offset < len(run.ids):
            run.cut(offset)
    return run, offset


def _resolved(place: _Place) -> _Place:
    run, offset = place
    while offset > len(run.ids):
        assert run.rest is not None
        run, offset = run.rest, offset - len(run.ids)
    return run, offset


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Return the length of the longest common beginning."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _runs(root: _Run) -> Iterator[_Run]:
    """Yield all runs depth first, children in the order they came."""
    waiting = [root]
    while waiting:
        run = waiting.pop()
        yield run
        waiting.extend(reversed(run.children.values()))


def _in_depth_first_order(root: _Run) -> tuple[list[int], list[int], list[int]]:
    """Number the runs; return ids, parents and positions."""
    ids: list[int] = []
    parent: list[int] = []
    position: list[int] = []
    for run in _runs(root):
        run.index = len(ids)
        before = _last(run.before)
        depth = 0 if before < 0 else position[before] + 1
        ids += run.ids
        if run.ids:
            parent += [before, *range(run.index, run.index + len(run.ids) - 1)]
            position += range(depth, depth + len(run.ids))
    return ids, parent, position


def _last(run: _Run | None) -> int:
    """Return the index of a run's last id, -1 before all ids."""
    return -1 if run is None or not run.ids else run.index + len(run.ids) - 1


def _indices(end: _Place, count: int) -> list[int]:
    """Return the indices of the last `count` ids of the path that ends at `end`, fewer where it is shorter."""
    run: _Run | None
    run, offset = _resolved(end)
    parts: list[range] = []
    while run is not None and count > 0:
        taken = min(count, offset)
        parts.append(range(run.index + offset - taken, run.index + offset))
        count -= taken
        run = run.before
        offset = len(run.ids) if run is not None else 0
    return [index for part in reversed(parts) for index in part]
