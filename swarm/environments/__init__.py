"""Environments: small worlds a tiny model learns on a CPU in a minute, and the seam for larger ones."""

from swarm.environments.base import Environment, Game, Message, Outcome, Split, Task

__all__ = ["Environment", "Game", "Message", "Outcome", "Split", "Task"]
