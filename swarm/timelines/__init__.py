"""Call tree of an episode."""

from swarm.timelines.node import Drift, Node, linear_rows, token_counts, trained_leaves, tree_tokens, unmerged_rows
from swarm.timelines.tree import CallTree, Prompt, canonical, normalise

__all__ = [
    "CallTree", "Drift", "Node", "Prompt", "canonical", "linear_rows", "normalise", "token_counts", "trained_leaves",
    "tree_tokens", "unmerged_rows",
]  # fmt: skip
