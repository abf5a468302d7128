"""The options of reasoning-gym's generators, as an address writes them: each as the generator has it by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from swarm.environments.adapters import unknown, value_of
from swarm.errors import InvalidRequest


def configs_of(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of each generator; one that stands alone needs no name before them."""
    found: dict[str, dict[str, Any]] = {own: {} for own in defaults}
    for key, value in options.items():
        owner, dot, option = key.rpartition(".")
        own = owner if dot or len(defaults) > 1 else next(iter(defaults))
        if own not in defaults:
            raise unknown("GENERATOR.OPTION of a generator", key, (f"{name}.{option}" for name in defaults))
        known = {each.name for each in fields(defaults[own])} - {"seed", "size"}
        if option not in known:
            raise unknown(f"an option of reasoning-gym's {own}", option, known)
        found[own][option] = _like(getattr(defaults[own], option), value, key)
    return found


def _like(default: Any, value: Any, key: str) -> Any:
    """Return a value as the option has it by default: a list is written with commas."""
    if isinstance(default, list | tuple):
        return type(default)(map(value_of, str(value).split(",")))
    if isinstance(default, bool) and not isinstance(value, bool):
        raise InvalidRequest(f"expected {key}=true or {key}=false; found {value!r:.40}")
    return value
