"""The environments that are built in, by name. To add one, put an instance of it in `_BUILT_IN`."""

from __future__ import annotations

from swarm.environments.arith import Arith
from swarm.environments.base import Environment
from swarm.environments.guess import Guess
from swarm.errors import InvalidRequest

_BUILT_IN: tuple[Environment, ...] = (Guess(), Arith())


def environments() -> dict[str, Environment]:
    """Return every built-in environment by its name."""
    return {environment.name: environment for environment in _BUILT_IN}


def get_environment(name: str) -> Environment:
    """Return the environment called `name`; raise InvalidRequest, which lists the names, if there is none."""
    known = environments()
    if name not in known:
        raise InvalidRequest(
            f"expected an environment among {', '.join(sorted(known))}; found {name!r}; choose one of them",
            param="environment",
        )
    return known[name]
