"""The modules and packages of a room and their imports of one another, read from the source: nothing is imported.

A package is a folder; a module that lies in a room's own folder, and each `__main__`, counts as one of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

ROOMS = ("research", "swarm", "sandboxes", "studies")
Arrows = Mapping[str, frozenset[str]]
"""For each module or package of a room, those of the same room that it imports of."""


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


def module_arrows(root: Path, room: str) -> Arrows:
    """Return what each module of a room imports of the room's other modules, inside of functions too."""
    paths = {dotted(root, path): path for path in modules(root, room)}
    return {name: frozenset(_targets(path, paths.keys())) - {name} for name, path in paths.items()}


def crossings(root: Path, room: str) -> Iterator[tuple[str, str, str]]:
    """Yield each import from one package of a room into another: the importing module, its package, the other one."""
    packages = {dotted(root, path): package(root, path) for path in modules(root, room)}
    for name, targets in module_arrows(root, room).items():
        yield from ((name, packages[name], packages[to]) for to in targets if packages[to] != packages[name])


def importers(root: Path, room: str) -> Mapping[str, frozenset[str]]:
    """Return the modules of the same package that import each module."""
    packages = {dotted(root, path): package(root, path) for path in modules(root, room)}
    graph = module_arrows(root, room)
    return {
        name: frozenset(other for other in graph if name in graph[other] and packages[other] == packages[name])
        for name in graph
    }


def circles(graph: Arrows) -> list[tuple[str, ...]]:
    """Return the groups in which each is reached from each other, sorted; none where all is one-way."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }
    return sorted(tuple(sorted(group)) for group in groups)


def _reached(graph: Arrows, start: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += graph.get(name, ())
    return reached


def _targets(path: Path, known: Collection[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                names = (f"{node.module}.{alias.name}", node.module)
                yield from [name for name in names if name in known][:1]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def index(root: Path) -> Iterator[str]:
    """Yield `docs/modules.md`: each room's packages, those that import of others first, and the modules of each."""
    yield "# Modules\n"
    yield "*For whoever changes the code. How the rooms work together: [architecture.md](architecture.md).*\n"
    yield "Written by `python benchmarks/house.py --modules` from the first sentence of each docstring.\n"
    for room in ROOMS:
        yield f"## {room}: {_first_sentence(root / room / '__init__.py')}\n"
        arrows: dict[str, set[str]] = {package(root, path): set() for path in modules(root, room)}
        for _, of, to in crossings(root, room):
            arrows[of].add(to)
        depth = {name: len(_reached({of: frozenset(to) for of, to in arrows.items()}, name)) for name in arrows}
        packages = [name for name in arrows if (root / room / name.replace(".", "/")).is_dir() and name]
        for name in sorted(packages, key=lambda name: (-depth[name], name)):
            folder = root / room / name.replace(".", "/")
            yield f"### {room}/{name.replace('.', '/')}: {_first_sentence(folder / '__init__.py')}\n"
            yield from _list_modules(folder)
        yield f"### {room}, beside its packages\n"
        yield from _list_modules(root / room)


def _list_modules(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.py")):
        if path.stem != "__init__":
            yield f"- `{path.stem}`: {_first_sentence(path)}"
    yield ""


def _first_sentence(path: Path) -> str:
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    return re.split(r"(?<=[\w`)])\.(?:\s|$)", " ".join(text.split()))[0]
