"""Numeric expressions in place of code: `reward - 0.01 * turns if success else 0`.

Nothing else is read, so an expression needs no container. All is floats, and what overflows, divides by zero or is not
finite is refused, so that no value grows without bounds and none takes long.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from swarm.errors import InvalidRequest

MOST_CHARACTERS: Final = 1000
_CALLS: Final[Mapping[str, Any]] = {"__builtins__": {}, "min()": min, "max()": max, "abs()": abs, "float()": float}
"""What is called, by names that no expression can spell: `min` and `max` are also names of numbers."""
_PARTS: Final = (
    ast.Expression, ast.BinOp, ast.BoolOp, ast.IfExp, ast.Name, ast.Load, ast.boolop, ast.unaryop, ast.UnaryOp,
    ast.Compare, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
)  # fmt: skip


class _InFloats(ast.NodeTransformer):
    """Makes every number a float, as whole ones may grow for ever; ValueError for a part that no expression has."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _PARTS) or isinstance(node, ast.Invert):
            raise ValueError(f"{type(node).__name__} at column {getattr(node, 'col_offset', 0)} is not among them")
        node = super().generic_visit(node)
        if isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            return ast.Call(ast.Name("float()", ast.Load()), [node], [])  # it was bool, which counts as a whole number
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, bool | int | float):
            raise ValueError(f"{node.value!r:.40} is no number")
        return ast.Constant(float(node.value))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name, count = node.func.id if isinstance(node.func, ast.Name) else "", len(node.args)
        if name not in ("min", "max", "abs") or node.keywords or count < 1 or (name == "abs") != (count == 1):
            raise ValueError("what is called is not among them, or not so")
        return ast.Call(ast.Name(f"{name}()", ast.Load()), [self.visit(part) for part in node.args], [])


class Expression:
    """One expression, read once; raises InvalidRequest for what is none."""

    def __init__(self, text: str) -> None:
        self.text = text.strip().removeprefix("=").strip()
        if not self.text or len(self.text) > MOST_CHARACTERS:
            raise InvalidRequest(f"expected an expression of 1 to {MOST_CHARACTERS} characters; found {len(self.text)}")
        if not self.text.isprintable():  # a comment may hold anything
            raise InvalidRequest(f"expected visible characters on one line; found {self.text[:80]!r}")
        try:
            body = _InFloats().visit(ast.parse(self.text, mode="eval"))
            self.names = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)} - _CALLS.keys()
            self._code = compile(ast.fix_missing_locations(body), "expression", "eval")
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            raise InvalidRequest(
                "expected arithmetic, comparisons, if/else, min, max and abs over numbers and names; found "
                f"{self.text[:80]!r}: {error}"
            ) from error

    def require_names(self, known: Collection[str]) -> None:
        if unknown := sorted(self.names.difference(known)):
            raise InvalidRequest(
                f"expected names among {', '.join(sorted(known))}; found {unknown[0]} in {self.text!r}"
            )

    def __call__(self, values: Mapping[str, float]) -> float:
        """Return its value; raises ValueError for one that is no finite number, or a name without a value."""
        try:
            value = float(eval(self._code, dict(_CALLS), {name: float(known) for name, known in values.items()}))
        except (ArithmeticError, TypeError, NameError, RecursionError) as error:
            raise ValueError(f"{self.text!r} has no value: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise ValueError(f"{self.text!r} is {value}, and no finite number")
        return value
