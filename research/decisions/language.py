"""The decision table's language: predicates over a verdict, parsed with a whitelist and never evaluated as Python.

    verdict == 'inconclusive' and hi < 0.02          lo > 0.05 or p < 0.001
    verdict in ('supported', 'refuted')              not (hi - lo < 0.1) and budget_left >= 600

Names are `FIELDS` and `verdict`; numbers, + and -, products with a number, comparisons (chained too), `in`, and, or,
not. Nothing else parses: no call, no attribute, no subscript, no text but the names of verdicts. A comparison of a
field that has no value (there is no interval) is unknown, and so is what follows from it: a predicate holds only when
it is surely true (Kleene's three-valued logic).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args

from studies.records.verdict import VerdictName

FIELDS: Final = ("lo", "hi", "est", "p", "n", "budget_left", "look", "looks_left")
"""Ends of the interval, estimate, p-value, runs of the smaller arm, seconds left, this look, looks to come."""
VERDICTS: Final[tuple[str, ...]] = get_args(VerdictName)
LONGEST: Final = 300
_DEEPEST: Final = 40

Relation = Literal["<", "<=", "==", "!="]


class RuleError(ValueError):
    """A predicate that is refused: one line with what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum of fields times numbers, and a number."""

    terms: tuple[tuple[str, float], ...]
    constant: float

    def plus(self, other: Linear, times: float = 1.0) -> Linear:
        """Return self + times * other, without fields that cancel."""
        sums = dict(self.terms)
        for name, factor in other.terms:
            sums[name] = sums.get(name, 0.0) + times * factor
        kept = tuple(sorted((name, factor) for name, factor in sums.items() if factor != 0))
        return Linear(kept, self.constant + times * other.constant)

    def at(self, fields: Mapping[str, float | None]) -> float | None:
        """Return its value; None when a field has none."""
        total = self.constant
        for name, factor in self.terms:
            value = fields[name]
            if value is None:
                return None
            total += factor * value
        return total


@dataclass(frozen=True, slots=True)
class Compare:
    """`linear` RELATION 0."""

    linear: Linear
    relation: Relation


@dataclass(frozen=True, slots=True)
class IsOneOf:
    """The verdict is one of these."""

    verdicts: frozenset[str]


@dataclass(frozen=True, slots=True)
class AllOf:
    """All parts hold."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A part holds."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """The part is surely false."""

    part: Predicate


Predicate = Compare | IsOneOf | AllOf | AnyOf | Negated


@dataclass(frozen=True, slots=True)
class DecisionFields:
    """What a predicate sees of a study at the moment of a decision; None where there is no such number."""

    verdict: str
    lo: float | None
    hi: float | None
    est: float | None
    p: float | None
    n: int
    budget_left: float
    look: int
    looks_left: int

    def numbers(self) -> Mapping[str, float | None]:
        """Return the fields that are numbers, by name."""
        return {name: getattr(self, name) for name in FIELDS}


@lru_cache(maxsize=512)
def parse(text: str) -> Predicate:
    """Return the predicate that `text` writes; raise RuleError for anything outside the language."""
    if not text.strip() or len(text) > LONGEST:
        raise RuleError(f"expected a predicate of 1 to {LONGEST} characters; found {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise RuleError(f"expected a predicate such as \"verdict == 'inconclusive'\"; found {text[:80]!r}") from error
    if _depth(tree.body) > _DEEPEST:
        raise RuleError(f"expected a predicate nested at most {_DEEPEST} deep; found a deeper one")
    return _predicate(tree.body)


def holds(predicate: Predicate, fields: DecisionFields) -> bool:
    """Return whether the predicate is surely true of the fields."""
    return _truth(predicate, fields.verdict, fields.numbers()) is True


def _depth(node: ast.AST) -> int:
    """Return how deep a tree is, without recursion, as it may be deep on purpose."""
    deepest, waiting = 0, [(node, 1)]
    while waiting:
        found, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(child, depth + 1) for child in ast.iter_child_nodes(found)]
    return deepest


def _predicate(node: ast.expr) -> Predicate:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return AllOf(tuple(_predicate(value) for value in values))
        case ast.BoolOp(op=ast.Or(), values=values):
            return AnyOf(tuple(_predicate(value) for value in values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Negated(_predicate(operand))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [left, *comparators]
            links = tuple(_link(a, op, b) for a, op, b in zip(sides, ops, comparators, strict=False))
            return links[0] if len(links) == 1 else AllOf(links)
    raise _unexpected(node, "a comparison, and, or, not")


def _link(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Predicate:
    if _is_verdict(left) or _is_verdict(right):
        return _of_verdict(left, op, right)
    difference = _linear(left).plus(_linear(right), -1.0)
    reverse = Linear((), 0.0).plus(difference, -1.0)
    match op:
        case ast.Lt():
            return Compare(difference, "<")
        case ast.LtE():
            return Compare(difference, "<=")
        case ast.Gt():
            return Compare(reverse, "<")
        case ast.GtE():
            return Compare(reverse, "<=")
        case ast.Eq():
            return Compare(difference, "==")
        case ast.NotEq():
            return Compare(difference, "!=")
    raise RuleError("expected numbers to be compared by <, <=, ==, !=, >= or >; found `in` or `is`")


def _is_verdict(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "verdict"


def _of_verdict(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Predicate:
    other = right if _is_verdict(left) else left
    match op:
        case ast.Eq() | ast.NotEq():
            named: Predicate = IsOneOf(frozenset({_verdict(other)}))
        case ast.In() | ast.NotIn() if _is_verdict(left) and isinstance(right, ast.Tuple | ast.List | ast.Set):
            named = IsOneOf(frozenset(_verdict(entry) for entry in right.elts))
        case _:
            raise RuleError("expected the verdict to be compared by ==, != or `in (...)`; found something else")
    return Negated(named) if isinstance(op, ast.NotEq | ast.NotIn) else named


def _verdict(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and node.value in VERDICTS:
        return str(node.value)
    raise _unexpected(node, f"a verdict in quotes: {', '.join(VERDICTS)}")


def _linear(node: ast.expr) -> Linear:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            if abs(value) < 1e12 and math.isfinite(value):  # first the size: a long integer is no float
                return Linear((), float(value))
        case ast.Name(id=name) if name in FIELDS:
            return Linear(((name, 1.0),), 0.0)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Linear((), 0.0).plus(_linear(operand), -1.0)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return _linear(left).plus(_linear(right), 1.0 if isinstance(op, ast.Add) else -1.0)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(_linear(left), _linear(right))
    raise _unexpected(node, f"a number or one of {', '.join(FIELDS)}")


def _product(left: Linear, right: Linear) -> Linear:
    if left.terms and right.terms:
        raise RuleError("expected a product with a number; found a product of two fields")
    number, other = (left, right) if not left.terms else (right, left)
    return Linear((), 0.0).plus(other, number.constant)


def _unexpected(node: ast.AST, expected: str) -> RuleError:
    return RuleError(f"expected {expected}; found {ast.unparse(node)[:60]!r}")


def _truth(predicate: Predicate, verdict: str, numbers: Mapping[str, float | None]) -> bool | None:
    match predicate:
        case Compare(linear, relation):
            value = linear.at(numbers)
            return None if value is None else _compared(value, relation)
        case IsOneOf(verdicts):
            return verdict in verdicts
        case Negated(part):
            found = _truth(part, verdict, numbers)
            return None if found is None else not found
        case AllOf(parts):
            return _all([_truth(part, verdict, numbers) for part in parts])
        case AnyOf(parts):
            found = _all([None if t is None else not t for t in (_truth(part, verdict, numbers) for part in parts)])
            return None if found is None else not found


def _compared(value: float, relation: Relation) -> bool:
    return {"<": value < 0, "<=": value <= 0, "==": value == 0, "!=": value != 0}[relation]


def _all(truths: list[bool | None]) -> bool | None:
    if False in truths:
        return False
    return None if None in truths else True
