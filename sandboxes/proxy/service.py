"""What stands behind the connections of agents: it decides what a request may do, and where it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sandboxes.proxy.heads import Head

if TYPE_CHECKING:
    from sandboxes.proxy.agent import Agent


class Service(Protocol):
    """Serves the requests of all agents of one proxy."""

    def count(self, what: str) -> None:
        """Count a refusal's reason, or `forwarded`."""
        ...

    def wants_whole(self, agent: Agent, head: Head) -> int:
        """Return up to how many bytes a body is collected before `begin`; 0 if it streams. Raises Refused."""
        ...

    def begin(self, agent: Agent, head: Head, body: bytes | None) -> None:
        """Send a request on: `agent.send` its head, then `agent.attach` a server, now or later. Raises Refused."""
        ...

    def over(self, agent: Agent) -> None:
        """Learn that the present request has ended, however it did; called once for each that was asked about."""
        ...
