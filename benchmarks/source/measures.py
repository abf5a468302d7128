"""Measures of source code, read from its text and syntax trees: nothing is imported.

A function's length is its lines from `def` to its end, without its docstring and its decorators; nested functions and
methods count as functions. It is annotated where each parameter but `self` and `cls`, and what it returns, has a type.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import median

LONG = 80
"""Lines above which a function counts as long."""
PRONOUNS = {"found", "said", "told", "asked", "known", "entry", "each"}
"""Names that say nothing of what they name."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_SENTENCE = re.compile(r"[a-z,]+ [a-z]+ [a-z]+ [a-z]+")


@dataclass(frozen=True)
class Function:
    """One function: where it is, how many lines it has and whether it is fully annotated."""

    place: str
    length: int
    annotated: bool


@dataclass(frozen=True)
class Module:
    """One file: its name as it is imported, its text, its syntax tree."""

    path: str
    name: str
    text: str
    tree: ast.Module

    @cached_property
    def lines(self) -> int:
        """Lines, empty ones and comments too."""
        return len(self.text.splitlines())

    @cached_property
    def functions(self) -> Sequence[Function]:
        """All functions of the file, nested ones too."""
        return [
            Function(f"{self.path}:{node.lineno} {node.name}", _length(node), _is_annotated(node))
            for node in ast.walk(self.tree)
            if isinstance(node, FunctionNode)
        ]

    @cached_property
    def form_lines(self) -> int:
        """Lines that are blank, of imports, signatures and docstrings."""
        taken = {number for number, line in enumerate(self.text.splitlines(), 1) if not line.strip()}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                taken.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            elif isinstance(node, FunctionNode):
                taken.update(range(node.lineno, node.body[0].lineno))
            taken.update(_docstring_lines(node))
        return len(taken)


@dataclass(frozen=True)
class Source:
    """Several modules, and the measures of them all."""

    modules: Sequence[Module]

    @cached_property
    def functions(self) -> Sequence[Function]:
        """All functions, the longest first."""
        found = [function for module in self.modules for function in module.functions]
        return sorted(found, key=lambda function: (-function.length, function.place))

    @property
    def lines(self) -> int:
        """Lines of all modules."""
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
        """The functions of more than `LONG` lines, the longest first."""
        return [function for function in self.functions if function.length > LONG]

    @property
    def annotated(self) -> float:
        """Share of functions that are fully annotated."""
        return share(function.annotated for function in self.functions)

    @property
    def documented(self) -> float:
        """Share of modules with a docstring; an empty file counts as one without."""
        return share(ast.get_docstring(module.tree) is not None for module in self.modules)

    @property
    def form(self) -> float:
        """Share of lines that are blank, imports, signatures or docstrings."""
        return sum(module.form_lines for module in self.modules) / self.lines

    def share_of_sizes(self, least: int, most: float = float("inf")) -> float:
        """Return the share of modules, faces (`__init__`) apart, with so many lines."""
        return share(
            least <= module.lines <= most for module in self.modules if not module.path.endswith("__init__.py")
        )

    @cached_property
    def classes(self) -> Sequence[tuple[str, ast.ClassDef]]:
        """The classes at the top of modules, each with its module's path."""
        return [
            (module.path, node)
            for module in self.modules
            for node in module.tree.body
            if isinstance(node, ast.ClassDef)
        ]

    @property
    def repeated_classes(self) -> Mapping[str, Sequence[str]]:
        """The class names that more than one module of a room defines, each with the modules' paths."""
        places: dict[tuple[str, str], list[str]] = defaultdict(list)
        for path, node in self.classes:
            places[path.split("/")[0], node.name].append(path)
        return {name: paths for (_, name), paths in sorted(places.items()) if len(paths) > 1}

    def exceptions(self) -> int:
        """Return how many classes are errors: they inherit, of each other at last, from one of Python's."""
        bases = {node.name: {base.id for base in node.bases if isinstance(base, ast.Name)} for _, node in self.classes}
        errors = {"Exception", "ValueError", "RuntimeError", "OSError", "LookupError", "TypeError", "KeyError"}
        while more := {name for name, of in bases.items() if name not in errors and of & errors}:
            errors |= more
        return len(errors & bases.keys())

    def twin_records(self) -> int:
        """Return how many pairs of records share at least 55 % of their fields, of at least four."""
        records = [_fields(node) for _, node in self.classes]
        full = [fields for fields in records if len(fields) >= 4]
        return sum(len(one & other) >= 0.55 * max(len(one), len(other)) for one, other in combinations(full, 2))

    def one_call_helpers(self) -> int:
        """Return how many private functions of at most three statements are named in one place only."""
        total = 0
        for module in self.modules:
            named = Counter(node.id if isinstance(node, ast.Name) else node.attr for node in ast.walk(module.tree)
                            if isinstance(node, ast.Name | ast.Attribute))  # fmt: skip
            total += sum(
                node.name.startswith("_") and not node.name.endswith("__") and named[node.name] == 1
                and len(_statements(node)) <= 3 and not node.decorator_list
                for node in ast.walk(module.tree) if isinstance(node, FunctionNode)
            )  # fmt: skip
        return total

    def forwarders(self) -> int:
        """Return how many functions do nothing but call another one with the arguments they are given."""
        nodes = (node for module in self.modules for node in ast.walk(module.tree) if isinstance(node, FunctionNode))
        return sum(_forwards(node) for node in nodes)

    def pronouns(self) -> int:
        """Return how often a name that says nothing is bound."""
        return sum(
            (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in PRONOUNS)
            or (isinstance(node, ast.arg) and node.arg in PRONOUNS)
            for module in self.modules for node in ast.walk(module.tree)
        )  # fmt: skip

    def sentences(self) -> float:
        """Return the share of tests that hold a sentence: four words of small letters in a row."""
        tests = [node for module in self.modules for node in ast.walk(module.tree)
                 if isinstance(node, FunctionNode) and node.name.startswith("test_")]  # fmt: skip
        return share(any(_SENTENCE.search(text) for text in _literals(node)) for node in tests)


def read(root: Path, paths: Iterable[Path]) -> Source:
    """Read files; their paths are told relative to `root`."""
    modules = []
    for path in paths:
        text, place = path.read_text(), path.relative_to(root)
        name = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
        modules.append(Module(place.as_posix(), name, text, ast.parse(text)))
    return Source(modules)


def share(values: Iterable[bool]) -> float:
    """Return the share of values that are true; 1 where there are none."""
    found = list(values)
    return sum(found) / len(found) if found else 1.0


def _length(node: FunctionNode) -> int:
    return _span(node) - (_span(node.body[0]) if ast.get_docstring(node) is not None else 0)


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _statements(node: FunctionNode) -> Sequence[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def _docstring_lines(node: ast.AST) -> Iterator[int]:
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        text = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _is_annotated(node: FunctionNode) -> bool:
    arguments = node.args
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    given = all(argument.annotation or argument.arg in ("self", "cls") for argument in [*named, *rest])
    return given and node.returns is not None


def _fields(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    )


def _forwards(node: FunctionNode) -> bool:
    body = _statements(node)
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    value = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute | ast.Name):
        return False
    given = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs) if argument.arg != "self"]
    passed = [*value.args, *(keyword.value for keyword in value.keywords)]
    return (
        bool(given)
        and [argument.id for argument in passed if isinstance(argument, ast.Name)] == given
        and len(passed) == len(given)
    )


def _literals(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
