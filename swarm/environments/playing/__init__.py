"""Playing tasks over a swarm server: the environments' own agent, agents and rewards from files, and evaluation.

`agent_of` returns an environment's own agent, for a file of one's own that does more than it does. May enter: what
carries tasks, messages and outcomes between environments and `swarm.client`. Knows no environment by name.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.environments.playing.play import agent_of
else:

    def __getattr__(name: str) -> object:
        """Import `agent_of` when it is asked for: whoever only reads results needs no client."""
        if name == "agent_of":
            from swarm.environments.playing.play import agent_of

            return agent_of
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["agent_of"]
