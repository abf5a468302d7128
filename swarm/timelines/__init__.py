"""Timelines: the call tree of an episode, the prompts it bridges to, and the rows it is trained as."""

from swarm.timelines.messages import canonical, normalise
from swarm.timelines.node import Drift, Node, drift_counts, taught
from swarm.timelines.packed import PackedTree, packed_tree, tree_tokens
from swarm.timelines.rows import linear_rows, token_counts, unmerged_rows
from swarm.timelines.tree import Plan, Tree

__all__ = [
    "Drift",
    "Node",
    "PackedTree",
    "Plan",
    "Tree",
    "canonical",
    "drift_counts",
    "linear_rows",
    "normalise",
    "packed_tree",
    "taught",
    "token_counts",
    "tree_tokens",
    "unmerged_rows",
]
