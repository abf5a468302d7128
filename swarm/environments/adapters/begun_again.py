"""Tasks that are known by a seed and a view of their beginning: whoever plays begins them again from the seed.

Another version of a package may begin something else from the same seed. What it would judge is not what was posed.
"""

from __future__ import annotations

from typing import Final

from swarm.environments.base import Task
from swarm.errors import InvalidRequest

SEEDS: Final = 1 << 32
"""Seeds that packages take; tasks are drawn from more (`Environment.generate`)."""


def seed_of(seed: int) -> int:
    """Return the seed that a package is given for one of ours."""
    return seed % SEEDS


def require_same(task: Task, view: str, found: str, package: str) -> None:
    """Raise InvalidRequest unless what is seen of a beginning is what the task says under the name `view`."""
    if found != task.data[view]:
        raise InvalidRequest(f"expected the {view} of {task.id} from {package}; this version begins another")
