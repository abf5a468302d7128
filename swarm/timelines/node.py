"""A served call as a node of its episode's tree, and how its prompt came about.

Knows neither messages nor templates: a node is ids, and outlives the process that served them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One served call.

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
        """Return the nodes from the root to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def path_ids(self) -> list[int]:
        """Return all ids from the root through this node's sampled ones."""
        ids: list[int] = []
        for node in self.path():
            ids += node.context
            ids += node.sampled
        return ids


def taught(nodes: Sequence[Node]) -> list[Node]:
    """Return what training needs of `nodes`: the trained ones, and those they go on from."""
    needed = {node.index for leaf in nodes if leaf.trained for node in leaf.path()}
    return [node for node in nodes if node.index in needed]


def drift_counts(nodes: Sequence[Node]) -> dict[Drift, int]:
    """Return how many calls had each drift."""
    counts = dict.fromkeys(Drift, 0)
    for node in nodes:
        counts[node.drift] += 1
    return counts
