"""Entry points; typed command-line arguments.

A package names what it brings in its metadata, `[project.entry-points."ajet.backends"]` with `NAME = "module:object"`;
nothing of it is imported before its name is asked for. Names that ajet has itself are not taken over.
"""

import argparse
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from swarm.errors import InvalidRequest


def seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text!r}")
    return found


BACKENDS: Final = "ajet.backends"
"""Each a callable of a job and the folder of models that returns a `swarm.backends.protocols.Backend`."""
PLANNERS: Final = "ajet.planners"
"""Each a callable of a model's name (or None) and the environment's variables that returns a planner."""
BUILT_IN_BACKENDS: Final = ("local", "fake", "verl")


def list_known(group: str, built_in: Sequence[str]) -> tuple[str, ...]:
    return (*built_in, *sorted({found.name for found in entry_points(group=group)} - set(built_in)))


def backend_names() -> tuple[str, ...]:
    return list_known(BACKENDS, BUILT_IN_BACKENDS)


def load(group: str, name: str) -> Any:
    """Import and return what a package brings under a name; raise InvalidRequest for what cannot be had."""
    found = {f"{_package(entry)} ({entry.value})": entry for entry in entry_points(group=group, name=name)}
    if len(found) != 1:
        packages = " and ".join(sorted(found)) or "none"
        raise InvalidRequest(
            f"expected one package that brings {name!r} in {group}; found {packages}; install one of them"
        )
    entry = next(iter(found.values()))
    try:
        return entry.load()
    except Exception as error:  # somebody's module may raise anything when it is imported
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InvalidRequest(
            f"expected {name!r} of {group} to be imported ({entry.value}, of {_package(entry)}); found {said}; mend or "
            "remove that package"
        ) from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"
