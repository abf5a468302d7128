"""Nodes of a call tree, their drift, and training rows made of a tree.

A node is a served call as ids, without messages or templates, and outlives the process that served it. A row is the
whole path from a root to a node. A call that is not trained is context in the rows of calls that go on from it, and in
no row where none does. Linear rows take one path per leaf and train a node's sampled ids in the first row that holds
it; the unmerged baseline takes one path per call. Either way every sampled id is trained exactly once, in the context
the engine really saw. A learner may pack rows into one tree, in which every prefix that they share is there once.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any


class Drift(StrEnum):
    """How a request's prompt relates to what was served before."""

    START = "start"
    """A conversation begins: no earlier answer is part of it."""
    CLEAN = "clean"
    """The history is what was served; rendered and tokenised afresh it would begin with the very same ids."""
    REALIGN = "realign"
    """The history says what was served, but afresh it would give other ids: the served ones are kept."""
    FORK = "fork"
    """The history was rewritten, or the template leaves out something that was served."""


def pack(kind: str, values: Sequence[float]) -> bytes:
    """Return the bytes of numbers, as the store has them: `i` for int32 (struct.error for another one), `d` float64."""
    return struct.pack(f"<{len(values)}{kind}", *values)


def unpack(kind: str, data: bytes) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data)


@dataclass(frozen=True, eq=False)
class Node:
    """One served call. Its ids, log-probs and versions are kept as bytes, as the store has them.

    index: its place in the order calls finished generating; a parent's is smaller. context: new prompt ids after the
    parent's last id (the whole prompt at a root). sampled, logprobs, versions: of equal length. text: the template's
    text of `context`, then what `sampled` decodes to. trained: its sampled ids are; else they are context for the calls
    that go on from it, and nothing more. agent: which of the episode's agents made it, "" where none said; known until
    the episode ends. cut: a limit on tokens ended it.
    """

    index: int
    parent: Node | None
    context: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    text: str
    drift: Drift
    trained: bool = True
    agent: str = ""
    cut: bool = False

    def path(self) -> list[Node]:
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def packed(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The bytes of context, sampled, logprobs and versions."""
        kept = vars(self)
        return kept["_context"], kept["_sampled"], kept["_logprobs"], kept["_versions"]

    def path_bytes(self) -> bytes:
        """Return the packed ids from the root through this call."""
        parts: list[bytes] = []
        node: Node | None = self
        while node is not None:
            kept = vars(node)
            parts += kept["_sampled"], kept["_context"]
            node = node.parent
        return b"".join(reversed(parts))

    def path_ids(self) -> list[int]:
        return list(unpack("i", self.path_bytes()))


class _Packed:
    """A field that is given as numbers or their bytes, taken as a tuple, and kept as bytes."""

    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = f"_{name}", kind

    def __get__(self, node: Node, _: type[Node]) -> tuple[Any, ...]:
        return unpack(self._kind, getattr(node, self._name))

    def __set__(self, node: Node, values: Sequence[float] | bytes) -> None:
        object.__setattr__(node, self._name, values if isinstance(values, bytes) else pack(self._kind, values))


for _name, _kind in {"context": "i", "sampled": "i", "logprobs": "d", "versions": "i"}.items():
    setattr(Node, _name, _Packed(_name, _kind))


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One linear row of an episode's call tree. ids (T,): all token ids. sampled (T,): 1 where the id was sampled in
    *this* row's trained span, else 0: over the rows of an episode each sampled token has a 1 exactly once. logprobs
    (T,): the engine's log-prob where sampled, 0.0 elsewhere. versions (T,): the policy version where sampled, -1
    elsewhere."""

    ids: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    calls: tuple[int, ...] = ()
    """(T,): the call that sampled it where sampled, else -1, numbered as they ended; empty where its episode has
    no `call_rewards`."""


def linear_rows(
    nodes: Sequence[Node], *, by_call: bool = False, masked: frozenset[int] = frozenset()
) -> tuple[TrainRow, ...]:
    """Return one row per leaf, in the order of the leaves; shared prefixes are context in all rows but the first.
    `by_call`: they say which call sampled what. What the calls `masked` sampled is context alone."""
    trained = set(masked)
    rows = []
    for leaf in trained_leaves(nodes):
        path = leaf.path()
        rows.append(_row(path, {node.index for node in path} - trained, by_call=by_call))
        trained.update(node.index for node in path)
    return tuple(rows)


def unmerged_rows(
    nodes: Sequence[Node], *, by_call: bool = False, masked: frozenset[int] = frozenset()
) -> tuple[TrainRow, ...]:
    """Return one row per call that is not `masked`: its whole prompt as context, its sampled ids trained."""
    learned = [node for node in nodes if node.trained and node.index not in masked]
    return tuple(_row(node.path(), {node.index}, by_call=by_call) for node in learned)


def token_counts(nodes: Sequence[Node]) -> tuple[int, int]:
    lengths: dict[int, int] = {}
    for node in nodes:  # parents come before children
        before = lengths[node.parent.index] if node.parent is not None else 0
        lengths[node.index] = before + len(node.context) + len(node.sampled)
    merged = sum(lengths[leaf.index] for leaf in trained_leaves(nodes))
    return merged, sum(lengths[node.index] for node in nodes if node.trained)


def common_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    sizes = range(1, min(len(left), len(right)) + 1)
    return bisect_left(sizes, True, key=lambda size: left[:size] != right[:size])


def tree_tokens(episodes: Sequence[Sequence[Node]]) -> int:
    """Return the ids in one packed tree of all calls of `episodes` that training needs: the prefixes they have. Sorted
    as words of a dictionary, each path adds what it does not share with the one before it."""
    paths = sorted(leaf.path_bytes() for nodes in episodes for leaf in trained_leaves(nodes))
    shared = sum(common_length(left, right) // 4 for left, right in pairwise(paths))
    return sum(map(len, paths)) // 4 - shared


def trained_leaves(nodes: Sequence[Node]) -> list[Node]:
    """Return the trained calls that no other trained one goes on from: each ends a row."""
    inner = {node.index for leaf in nodes if leaf.trained for node in leaf.path()[:-1]}
    return [node for node in nodes if node.trained and node.index not in inner]


def _row(path: Sequence[Node], trained: set[int], *, by_call: bool) -> TrainRow:
    ids: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    calls: list[int] = []
    for node in path:
        train = node.trained and node.index in trained
        plain = len(node.context) if train else len(node.context) + len(node.sampled)
        ids += node.context + node.sampled
        sampled += [0] * plain
        logprobs += [0.0] * plain
        versions += [-1] * plain
        if train:
            sampled += [1] * len(node.sampled)
            logprobs += node.logprobs
            versions += node.versions
        if by_call:
            calls += [-1] * plain + [node.index] * (len(node.sampled) if train else 0)
    return TrainRow(tuple(ids), tuple(sampled), tuple(logprobs), tuple(versions), tuple(calls))
