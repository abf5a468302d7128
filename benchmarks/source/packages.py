"""The packages of a room and their imports of one another, read from the source: nothing is imported.

A package is a folder; a module that lies in a room's own folder, and each `__main__`, counts as one of its own.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOMS = ("research", "swarm", "sandboxes", "studies")
Arrows = Mapping[str, frozenset[str]]
"""For each package, without its room's name, the packages of the same room that it imports of."""


def modules(root: Path, room: str) -> list[Path]:
    """Return the modules of a room, sorted by path."""
    return sorted((root / room).rglob("*.py"))


def dotted(root: Path, path: Path) -> str:
    """Return the name that a module is imported by."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def package(root: Path, path: Path) -> str:
    """Return the package of a module, without its room's name; a room's own `__init__` has the empty name."""
    parts = path.relative_to(root).with_suffix("").parts[1:]
    if parts[-1] == "__init__":
        return ".".join(parts[:-1])
    return ".".join(parts if len(parts) == 1 or parts[-1] == "__main__" else parts[:-1])


def crossings(root: Path, room: str) -> Iterator[tuple[str, str, str]]:
    """Yield each import from one package of a room into another: the importing module, its package, the other one."""
    known = {dotted(root, path): package(root, path) for path in modules(root, room)}
    for path in modules(root, room):
        own = package(root, path)
        yield from ((dotted(root, path), own, target) for target in _targets(path, known) if target != own)


def arrows(root: Path, room: str) -> Arrows:
    """Return what each package of a room imports of the room's other packages."""
    found: dict[str, set[str]] = {package(root, path): set() for path in modules(root, room)}
    for _, own, target in crossings(root, room):
        found[own].add(target)
    return {name: frozenset(others) for name, others in found.items()}


def files(root: Path, room: str) -> Counter[str]:
    """Count the modules of each folder of a room, its `__init__` left out."""
    return Counter(str(path.parent.relative_to(root)) for path in modules(root, room) if path.name != "__init__.py")


def circles(graph: Arrows) -> list[tuple[str, ...]]:
    """Return the groups of packages in which each is reached from each other, sorted; none where all is one-way."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }
    return sorted(tuple(sorted(group)) for group in groups)


def _reached(graph: Arrows, start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += graph[name]
    return found


def _targets(path: Path, known: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                names = (f"{node.module}.{alias.name}", node.module)
                yield from [known[name] for name in names if name in known][:1]
        elif isinstance(node, ast.Import):
            yield from (known[alias.name] for alias in node.names if alias.name in known)
