"""Defects of a decision table, found before the lock by exact reasoning: no sampling of cases.

For each verdict and each look a rule is a formula of linear inequalities over the interval, p, n and the budget.
Whether it can hold at all (else it is *dead*), can hold where no earlier rule does (else it is *unreachable*), can hold
together with another rule that says otherwise (*overlapping*), and whether some case is left to no rule (*open*), are
questions of satisfiability, answered by branching over the formula and mixed-integer linear programming (HiGHS).
What holds of every verdict is assumed: lo <= est <= hi, an interval beyond zero where it decided, 0 <= p <= 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final, Literal

from research.decisions.language import (
    VERDICTS,
    Both,
    Compare,
    Either,
    Fields,
    IsOneOf,
    Linear,
    Negated,
    Predicate,
    RuleError,
    parse,
)
from studies.procedure import Rule

MOST_RULES: Final = 12
_MEASURED: Final = ("lo", "hi", "est", "p")
"""Fields that an invalid verdict may lack."""
_VARIABLES: Final = (*_MEASURED, "n", "budget_left")
_BOUND: Final = 1e6
_NEAR: Final = 2.0
"""Bound of the measured fields in an example, where one exists inside it: what a person can picture."""
_LEAST_SLACK: Final = 1e-6

Direction = Literal["increase", "decrease"]
Kind = Literal["dead", "unreachable", "overlapping", "open", "after the last look", "after a verdict", "no replication"]


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong with a table; `example` is a case that shows it, where there is one."""

    kind: Kind
    rules: tuple[str, ...]
    sentence: str
    example: Fields | None = None


@dataclass(frozen=True, slots=True)
class _Below:
    """linear < 0, or <= 0."""

    linear: Linear
    strict: bool


@dataclass(frozen=True, slots=True)
class _All:
    parts: tuple[_Formula, ...]


@dataclass(frozen=True, slots=True)
class _Any:
    parts: tuple[_Formula, ...]


_Formula = _Below | _All | _Any
_TRUE, _FALSE = _All(()), _Any(())


@dataclass(frozen=True, slots=True)
class _Case:
    """A verdict at a look, with or without numbers."""

    verdict: str
    look: int
    looks: int
    measured: bool


def check_table(
    rules: Sequence[Rule], *, direction: Direction, looks: int, replication: bool = False
) -> tuple[Defect, ...]:
    """Return the defects of a table for a design with `looks` looks; none means every case has exactly one act.

    Raise RuleError for a rule that does not parse, two rules of one name, or more than `MOST_RULES`.
    """
    return _check(tuple(rules), direction, looks, replication)


@lru_cache(maxsize=256)
def _check(rules: tuple[Rule, ...], direction: Direction, looks: int, replication: bool) -> tuple[Defect, ...]:
    names = [rule.name for rule in rules]
    if len(set(names)) != len(names) or not 1 <= len(rules) <= MOST_RULES:
        raise RuleError(f"expected 1 to {MOST_RULES} rules with different names; found {', '.join(names) or 'none'}")
    table = _Table(rules, direction, looks)
    found = [*table.dead(), *table.overlapping(), *table.open(), *table.misplaced(replication)]
    return tuple(found)


def check_condition(text: str, *, direction: Direction, looks: int) -> Defect | None:
    """Return why a kill condition can never hold; None for one that can. Raise RuleError when it does not parse."""
    table = _Table((Rule(name="kill-condition", when=text, then="settle"),), direction, looks)
    return next(iter(table.dead()), None)


class _Table:
    def __init__(self, rules: tuple[Rule, ...], direction: Direction, looks: int) -> None:
        self._rules = rules
        self._predicates = [parse(rule.when) for rule in rules]
        self._direction: Direction = direction
        self._cases = [
            _Case(verdict, look, looks, measured)
            for look in range(1, looks + 1)
            for verdict in VERDICTS
            for measured in ((True, False) if verdict == "invalid" else (True,))
        ]

    def dead(self) -> Iterator[Defect]:
        """Yield rules that cannot hold, and rules that hold only where an earlier one does."""
        for index, rule in enumerate(self._rules):
            if self._example([index], []) is None:
                yield Defect("dead", (rule.name,), f"the rule {rule.name} can never hold: {rule.when}")
            elif self._example([index], list(range(index))) is None:
                yield Defect("unreachable", (rule.name,), f"wherever {rule.name} holds, an earlier rule holds too")

    def overlapping(self) -> Iterator[Defect]:
        """Yield pairs of rules that say different things of one case."""
        for a, b in combinations(range(len(self._rules)), 2):
            one, other = self._rules[a], self._rules[b]
            if one.then != other.then and (example := self._example([a, b], [])) is not None:
                said = f"{one.name} ({one.then}) and {other.name} ({other.then}) both hold for {_said(example)}"
                yield Defect("overlapping", (one.name, other.name), said, example)

    def open(self) -> Iterator[Defect]:
        """Yield a case that no rule decides."""
        if (example := self._example([], list(range(len(self._rules))))) is not None:
            yield Defect("open", (), f"no rule holds for {_said(example)}", example)

    def misplaced(self, replication: bool) -> Iterator[Defect]:
        """Yield rules whose act makes no sense where they hold."""
        for index, rule in enumerate(self._rules):
            if rule.then == "replicate" and not replication:
                yield Defect("no replication", (rule.name,), f"{rule.name} replicates, but no replication is designed")
            if rule.then != "continue":
                continue
            last = [case for case in self._cases if case.look == case.looks]
            if (example := self._example([index], [], last)) is not None:
                said = f"{rule.name} continues after the last look, for {_said(example)}"
                yield Defect("after the last look", (rule.name,), said, example)
            decided = [case for case in self._cases if case.verdict not in ("inconclusive", "invalid")]
            if (example := self._example([index], [], decided)) is not None:
                said = f"{rule.name} continues although there is a verdict, for {_said(example)}"
                yield Defect("after a verdict", (rule.name,), said, example)

    def _example(self, wanted: list[int], unwanted: list[int], cases: list[_Case] | None = None) -> Fields | None:
        """Return a case in which the wanted rules hold and the unwanted do not; None when there is none."""
        for case in self._cases if cases is None else cases:
            parts = [_holds(self._predicates[i], case) for i in wanted]
            parts += [_not(_holds(self._predicates[i], case)) for i in unwanted]
            whole = _All((*_known(case, self._direction), *parts))
            if (point := _satisfy([whole], [], _BOUND)) is not None:
                return _fields(case, _satisfy([whole], [], _NEAR) or point)
        return None


def _known(case: _Case, direction: Direction) -> list[_Formula]:
    """Return what is true of the numbers of any such verdict."""
    facts = ["lo <= est", "est <= hi", "0 <= p", "p <= 1", "n >= 0", "budget_left >= 0"]
    above = "lo > 0" if direction == "increase" else "hi < 0"
    below = "hi < 0" if direction == "increase" else "lo > 0"
    facts += {"supported": [above], "refuted": [below], "inconclusive": ["lo <= 0", "hi >= 0"]}.get(case.verdict, [])
    measured = [fact for fact in facts if case.measured or fact.split()[0] in ("n", "budget_left")]
    return [_holds(parse(fact), case) for fact in measured]


def _holds(predicate: Predicate, case: _Case) -> _Formula:
    """Return, as a two-valued formula, that the predicate is surely true in a case."""
    match predicate:
        case Compare():
            return _compared(predicate, case)
        case IsOneOf(verdicts):
            return _TRUE if case.verdict in verdicts else _FALSE
        case Both(parts):
            return _All(tuple(_holds(part, case) for part in parts))
        case Either(parts):
            return _Any(tuple(_holds(part, case) for part in parts))
        case Negated(part):
            return _fails(part, case)


def _fails(predicate: Predicate, case: _Case) -> _Formula:
    """Return that the predicate is surely false in a case; of an unknown one neither this nor `_holds` is true."""
    match predicate:
        case Compare(linear):
            known = case.measured or not any(name in _MEASURED for name, _ in linear.terms)
            return _not(_compared(predicate, case)) if known else _FALSE
        case IsOneOf(verdicts):
            return _FALSE if case.verdict in verdicts else _TRUE
        case Both(parts):
            return _Any(tuple(_fails(part, case) for part in parts))
        case Either(parts):
            return _All(tuple(_fails(part, case) for part in parts))
        case Negated(part):
            return _holds(part, case)


def _compared(comparison: Compare, case: _Case) -> _Formula:
    linear = _at(comparison.linear, case)
    if not case.measured and any(name in _MEASURED for name, _ in linear.terms):
        return _FALSE
    reverse = Linear((), 0.0).plus(linear, -1.0)
    match comparison.relation:
        case "==":
            return _All((_Below(linear, False), _Below(reverse, False)))
        case "!=":
            return _Any((_Below(linear, True), _Below(reverse, True)))
        case relation:
            return _Below(linear, relation == "<")


def _at(linear: Linear, case: _Case) -> Linear:
    """Put a case's look into a sum, so that only continuous fields and n are left."""
    looked = {"look": float(case.look), "looks_left": float(case.looks - case.look)}
    constant = linear.constant + sum(factor * looked[name] for name, factor in linear.terms if name in looked)
    return Linear(tuple((name, factor) for name, factor in linear.terms if name not in looked), constant)


def _not(formula: _Formula) -> _Formula:
    match formula:
        case _Below(linear, strict):
            return _Below(Linear((), 0.0).plus(linear, -1.0), not strict)
        case _All(parts):
            return _Any(tuple(_not(part) for part in parts))
        case _Any(parts):
            return _All(tuple(_not(part) for part in parts))


def _satisfy(formulas: list[_Formula], below: list[_Below], bound: float) -> dict[str, float] | None:
    """Return values of the fields that satisfy all formulas; None when there are none. Branches at each `any`."""
    if not formulas:
        return _solve(below, bound)
    first, *rest = formulas
    match first:
        case _Below():
            extended = [*below, first]
            return None if _solve(extended, bound) is None else _satisfy(rest, extended, bound)
        case _All(parts):
            return _satisfy([*parts, *rest], below, bound)
        case _Any(parts):
            tried = (_satisfy([part, *rest], below, bound) for part in parts)
            return next((point for point in tried if point is not None), None)


def _solve(below: list[_Below], bound: float) -> dict[str, float] | None:
    """Return a point inside all inequalities, as far inside the strict ones as can be; None when there is none."""
    import numpy as np
    from scipy import optimize

    columns = {name: index for index, name in enumerate(_VARIABLES)}
    rows = np.zeros((len(below), len(columns) + 1))
    for row, inequality in zip(rows, below, strict=True):
        for name, factor in inequality.linear.terms:
            row[columns[name]] = factor
        row[-1] = 1.0 if inequality.strict else 0.0
    most = np.array([*(bound if name in _MEASURED else _BOUND for name in columns), 1.0])
    least = np.array([*(-most[:-1]), 0.0])
    limits = [-inequality.linear.constant for inequality in below]
    found = optimize.milp(
        c=np.eye(len(columns) + 1)[-1] * -1.0,
        constraints=optimize.LinearConstraint(rows, ub=limits) if below else (),
        bounds=optimize.Bounds(least, most),
        integrality=[float(name == "n") for name in columns] + [0.0],
    )
    strict = any(inequality.strict for inequality in below)
    if found.x is None or (strict and found.x[-1] <= _LEAST_SLACK):
        return None
    return {name: float(found.x[index]) for name, index in columns.items()}


def _fields(case: _Case, point: dict[str, float]) -> Fields:
    lo, hi, est, p = (point[name] if case.measured else None for name in _MEASURED)
    return Fields(
        verdict=case.verdict, lo=lo, hi=hi, est=est, p=p, n=round(point["n"]), budget_left=point["budget_left"],
        look=case.look, looks_left=case.looks - case.look,
    )  # fmt: skip


def _said(fields: Fields) -> str:
    numbers = ", ".join(
        f"{name} {value:.3g}" for name, value in fields.numbers().items() if value is not None and name != "looks_left"
    )
    return f"verdict {fields.verdict}, {numbers}"
