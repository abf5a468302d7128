"""Measures of source code: length, annotation and documentation of functions and modules, and names of classes.

A function's length is its lines from `def` to its end, without its docstring and its decorators; nested functions and
methods count as functions. It is annotated where each parameter but `self` and `cls`, and what it returns, has a type.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

LONG = 60
"""Lines above which a function counts as long."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """One function: where it is, how many lines it has and whether it is fully annotated."""

    place: str
    length: int
    annotated: bool


@dataclass(frozen=True)
class Module:
    """What is measured of one file; `classes` are those at its top level."""

    path: str
    lines: int
    has_docstring: bool
    functions: tuple[Function, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Several modules, and the measures of them all."""

    modules: tuple[Module, ...]

    @cached_property
    def functions(self) -> Sequence[Function]:
        """All functions, the longest first."""
        found = [function for module in self.modules for function in module.functions]
        return sorted(found, key=lambda function: (-function.length, function.place))

    @property
    def lines(self) -> int:
        """Lines of all modules, empty ones and comments too."""
        return sum(module.lines for module in self.modules)

    @property
    def median_length(self) -> float:
        """Median length of a function, in lines."""
        return median(function.length for function in self.functions)

    @property
    def p90_length(self) -> int:
        """90th percentile of the length of a function, in lines."""
        return self.functions[len(self.functions) - 1 - int(len(self.functions) * 0.9)].length

    @property
    def long_functions(self) -> Sequence[Function]:
        """The functions of more than 60 lines, the longest first."""
        return [function for function in self.functions if function.length > LONG]

    @property
    def annotated(self) -> float:
        """Share of functions that are fully annotated."""
        return share(function.annotated for function in self.functions)

    @property
    def documented(self) -> float:
        """Share of modules with a docstring; an empty file counts as one without."""
        return share(module.has_docstring for module in self.modules)

    @property
    def repeated_classes(self) -> Mapping[str, Sequence[str]]:
        """The class names that more than one module defines, each with the modules' paths."""
        places: dict[str, list[str]] = defaultdict(list)
        for module in self.modules:
            for name in module.classes:
                places[name].append(module.path)
        return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def share(values: Iterable[bool]) -> float:
    """Return the share of values that are true; 1 where there are none."""
    found = list(values)
    return sum(found) / len(found) if found else 1.0


def read(root: Path, paths: Iterable[Path]) -> Source:
    """Measure files; their paths are told relative to `root`."""
    return Source(tuple(_module(root, path) for path in paths))


def _module(root: Path, path: Path) -> Module:
    text = path.read_text()
    tree = ast.parse(text)
    place = path.relative_to(root).as_posix()
    return Module(
        path=place,
        lines=len(text.splitlines()),
        has_docstring=ast.get_docstring(tree) is not None,
        functions=tuple(_functions(tree, place)),
        classes=tuple(dict.fromkeys(node.name for node in tree.body if isinstance(node, ast.ClassDef))),
    )


def _functions(tree: ast.Module, place: str) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            yield Function(f"{place}:{node.lineno} {node.name}", _length(node), _is_annotated(node))


def _length(node: FunctionNode) -> int:
    return _span(node) - (_span(node.body[0]) if ast.get_docstring(node) is not None else 0)


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_annotated(node: FunctionNode) -> bool:
    found = node.args
    rest = [argument for argument in (found.vararg, found.kwarg) if argument is not None]
    named = [*found.posonlyargs, *found.args, *found.kwonlyargs]
    given = all(argument.annotation or argument.arg in ("self", "cls") for argument in [*named, *rest])
    return given and node.returns is not None
