"""The small values of a report: cells, tables, quotes, and an arm's values.

A rate of runs is told as a count with exact limits, and of a time that more than half of an arm never reached there is
no mean: it would be told by where times are cut. Cells and the like hold text only, the same for Markdown and HTML: a
template decides how it looks and escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from studies.log.study import StudyState
from studies.metrics import Refused, kind_of
from studies.records.design import Metric
from studies.report.wording import NONE, describe_cut, number
from studies.statistics.comparison import Interval, mean_interval, spread
from studies.statistics.proportions import exact_limits


def is_rate(metric: Metric) -> bool:
    if not metric.kind:
        return False
    try:
        return kind_of(metric).rates
    except Refused:  # the package that brought it is gone
        return False


def is_mostly_cut(metric: Metric, values: Sequence[float]) -> bool:
    return 2 * _cut(metric, values) > len(values)


def format_mean(metric: Metric, values: Sequence[float]) -> str:
    """Return the mean; of a rate the count, of what is mostly cut who was."""
    if not values:
        return NONE
    if is_mostly_cut(metric, values):
        return describe_cut(metric, _cut(metric, values), len(values))
    return f"{_ones(values)} of {len(values)}" if is_rate(metric) else number(fmean(values), unit=metric.unit)


def format_spread(metric: Metric, values: Sequence[float]) -> str:
    """Return the standard deviation, where it says something."""
    return NONE if is_mostly_cut(metric, values) or is_rate(metric) else number(spread(values), unit=metric.unit)


def format_reached(metric: Metric, values: Sequence[float]) -> str:
    """Return how many runs do not lie where the metric is cut."""
    return f"{len(values) - _cut(metric, values)} of {len(values)}"


def arm_interval(metric: Metric, values: Sequence[float]) -> Interval | None:
    """Return the mean with its 95 % interval: Student's, or of a rate its exact limits."""
    if not values or is_mostly_cut(metric, values):
        return None
    if is_rate(metric):
        found = exact_limits(_ones(values), len(values))
        return Interval(found.rate, found.low, found.high)
    return mean_interval(values)


def count_of(values: Sequence[float]) -> tuple[int, int]:
    return _ones(values), len(values)


def _ones(values: Sequence[float]) -> int:
    return round(sum(values))


def _cut(metric: Metric, values: Sequence[float]) -> int:
    cut = metric.cut_at
    return 0 if cut is None else sum(value >= cut for value in values)


Level = Literal["passed", "note", "threat", "failed"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One table cell. `mark` names a look (`mono`, `arm-0`, a verdict, ...); `title` is the unshortened text."""

    text: str
    mark: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `numeric` holds the indices of columns aligned right. `cards` asks for one card per row on phones."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()
    cards: bool = False


@dataclass(frozen=True, slots=True)
class Quote:
    """The words of a hypothesis, written before the data that test it; `by` says whose they are."""

    hypothesis: str
    statement: str
    mechanism: str
    by: str


@dataclass(frozen=True, slots=True)
class Code:
    """A reward function as it was locked. It is text, to be escaped like any other and never run."""

    name: str
    arms: str
    sha256: str
    source: str


@dataclass(frozen=True, slots=True)
class Remark:
    """Something the report's code checked or noticed."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One labelled number or word of a summary."""

    label: str
    value: str


def cell(text: str, mark: str = "", title: str = "") -> Cell:
    return Cell(text or "–", mark, title)


def hash_cell(value: str) -> Cell:
    """Return a cell with the first 12 digits of a hash, the whole of it as its title."""
    return Cell(value[:12], "mono", value)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, numeric: Sequence[int] = (), cards: bool = False
) -> Table:
    """Return a table; every row must have one cell for each column."""
    wrong = next((row for row in rows if len(row) != len(columns)), None)
    if wrong is not None:
        raise ValueError(f"expected {len(columns)} cells ({', '.join(columns)}); found {len(wrong)}")
    return Table(tuple(columns), tuple(tuple(row) for row in rows), frozenset(numeric), cards)


def pairs(facts: Sequence[Fact]) -> Table:
    marks = ["mono" if re.fullmatch(r"[0-9a-f]{64}", fact.value) else "" for fact in facts]
    rows = [(Cell(f.label, "label"), cell(f.value, mark)) for f, mark in zip(facts, marks, strict=True)]
    return table(("", ""), rows)


def every_state(state: StudyState) -> tuple[StudyState, ...]:
    """Return the state of each round in the order of the rounds; those that were given up come last."""
    return (*state.rounds, *state.given_up)


def is_campaign(state: StudyState) -> bool:
    """Return whether a study may have, or has, more rounds than one."""
    return state.most_rounds > 1 or bool(state.rounds_before)
