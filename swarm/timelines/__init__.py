"""Timelines: the call tree of an episode, the prompts it bridges to, and the rows it is trained as.

May enter: functions and values of messages, ids and calls. Leases and requests are in `swarm.server`, chat templates
and tokenizers in `swarm.backends.rendering`; here they are used through the protocol `Renderer` alone.
"""

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
