"""The maps of gymnasium's FrozenLake: one for each task, of the size and density that are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from swarm.environments.adapters.transitions import certain
from swarm.errors import InvalidRequest

OPTIONS: Final = frozenset({"size", "p"})
"""Of `generate_random_map`; gymnasium.make does not take them."""
_SIZES, _DENSITIES = (3, 16), (0.4, 1.0)
_ONE_TASK: Final = (
    "expected a lake with more than one task; a map that is named, without chance, is one task; leave map_name out, "
    "as size=4 draws a map for each task, or let the ice be slippery: is_slippery=true"
)


def maps_of(first: Any, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of maps to be made; None for another environment, and for one whose map is named.

    Raises InvalidRequest for a named map on which nothing is by chance, and for maps that nobody can make.
    """
    if type(first).__name__ != "FrozenLakeEnv":
        return None
    if {"desc", "map_name"} & options.keys():
        if certain(first.P):
            raise InvalidRequest(_ONE_TASK)
        return None
    size, density = options.get("size", first.nrow), options.get("p", 0.8)
    if not (_within(size, int, *_SIZES) and _within(density, int | float, *_DENSITIES)):
        raise InvalidRequest(f"expected maps of size 3 to 16 and p 0.4 to 1; found {size} and {density}")
    return {"size": size, "p": density}


def _within(value: Any, kind: Any, least: float, most: float) -> bool:
    return isinstance(value, kind) and least <= value <= most
