"""Environments: small worlds a tiny model learns on a CPU in a minute, and the seam for larger ones."""

from swarm.environments.base import Environment, Game, Message, Outcome, Split, Task
from swarm.environments.registry import environments, get_environment

__all__ = ["Environment", "Game", "Message", "Outcome", "Split", "Task", "environments", "get_environment"]
