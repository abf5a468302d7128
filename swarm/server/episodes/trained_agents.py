"""Which agents of an ending episode its job trains: none of them is an error, and most likely a wrong name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarm.errors import InvalidRequest
from swarm.timelines import Node

_MOST_SHOWN = 20


def require_trained(train_agents: Collection[str], nodes: Sequence[Node]) -> None:
    """Raise InvalidRequest where an episode has calls, and none is of an agent that is to be trained.

    One that is not called in every episode is no error, nor is an episode without calls, which is dropped as such.
    """
    agents = {node.agent for node in nodes}
    if not train_agents or not agents or not agents.isdisjoint(train_agents):
        return
    found = ", ".join(repr(name) for name in sorted(agents)[:_MOST_SHOWN] if name) or "none that says its name"
    wanted = ", ".join(map(repr, train_agents))
    raise InvalidRequest(
        f"expected a call of an agent that the job trains (`train_agents`: {wanted}); found calls of {found}. Let the "
        "agent name itself (the header X-Ajet-Agent, or KEY/NAME for its key), or change the job; the episode is still "
        "open",
        param="train_agents",
    )
