"""Timelines: the call tree of an episode, the prompts it bridges to, and the rows it is trained as."""

from swarm.timelines.messages import canonical, normalise
from swarm.timelines.node import Drift, Node, drift_counts, taught
from swarm.timelines.rows import linear_rows, token_counts, tree_tokens, unmerged_rows
from swarm.timelines.tree import CallTree, Prompt

__all__ = [
    "CallTree",
    "Drift",
    "Node",
    "Prompt",
    "canonical",
    "drift_counts",
    "linear_rows",
    "normalise",
    "taught",
    "token_counts",
    "tree_tokens",
    "unmerged_rows",
]
