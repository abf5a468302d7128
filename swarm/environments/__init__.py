"""Environments: the problems that a policy is trained on, and the seam for new ones.

Two are built in, which a tiny model learns on a CPU in a minute.

To add one, write a module with a subclass of `Environment` (`base.py` has the seam; `arith.py` is the shorter example):
tasks by split (`split_of` keeps the splits disjoint), a game that judges one play, and a scripted player for a tiny
model's warm start. Then name it in `registry.py`; `tests/swarm/environments/test_registry.py` checks what every
environment promises. An agent and tasks of one's own need no environment: `--agent FILE.py --tasks FILE`.
May enter: problems and their judges, without a server or a model. What plays them over a server is in `playing`.
"""

from swarm.environments.base import Environment, Game, Message, Outcome, Split, Task
from swarm.environments.registry import environments, get_environment

__all__ = ["Environment", "Game", "Message", "Outcome", "Split", "Task", "environments", "get_environment"]
