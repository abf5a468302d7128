"""What each call of an ending episode is worth: its own reward, else its agent's, else the episode's."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.backends.protocols import CallReward
from swarm.errors import InvalidRequest
from swarm.timelines import Node
from swarm.wire import EndRequest


def call_rewards(request: EndRequest, nodes: Sequence[Node]) -> tuple[CallReward, ...]:
    """Return the rewards of all calls; none where every call is worth the same and nobody said which agent made it.

    Raises InvalidRequest for a call or an agent that the episode does not have.
    """
    agents = {node.agent for node in nodes if node.agent}
    _require("by_call", set(request.by_call), {node.index for node in nodes}, "calls")
    who = "agents (they name themselves by the header X-Ajet-Agent, or by KEY/NAME for their key)"
    _require("by_agent", set(request.by_agent), agents, who)
    if not (request.by_call or request.by_agent or agents):
        return ()

    def worth(node: Node) -> float:
        return request.by_call.get(node.index, request.by_agent.get(node.agent, request.reward))

    return tuple(CallReward(node.index, worth(node), node.agent) for node in nodes)


def _require(field: str, named: set[int] | set[str], there: set[int] | set[str], what: str) -> None:
    if unknown := sorted(map(str, named - there)):
        known = ", ".join(sorted(map(str, there))[:20]) or "none"
        raise InvalidRequest(
            f"`{field}` has a reward for {unknown[0][:80]!r}, which is none of the episode's {what}: {known}; the "
            "episode is still open",
            param=field,
        )
