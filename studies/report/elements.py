"""What a report is made of: blocks, tables and cells, and the values of an arm as text.

Blocks hold text only, the same for Markdown and HTML: a template decides how they look and escapes them. A rate of runs
is told as a count; of a time that more than half of an arm never reached there is no mean.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final, Literal

from studies.log.study import StudyState
from studies.metrics import Refused, kind_of
from studies.records.design import Metric
from studies.report.wording import NONE, number
from studies.statistics.comparison import Interval, mean_interval, spread
from studies.statistics.proportions import exact_limits

Fact = tuple[str, str]
Row = Sequence["Cell | str"]
ARMS: Final = 6


@dataclass(frozen=True, slots=True)
class Cell:
    """One table cell. `mark` names a look (`mono`, `arm-0`, a verdict, ...); `title` is the unshortened text."""

    text: str
    mark: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `numeric` holds the indices of columns aligned right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, an aside, which is set smaller, or code and commands letter by letter, which are never run."""

    text: str
    look: Literal["plain", "aside", "source"] = "plain"


@dataclass(frozen=True, slots=True)
class Quote:
    """Words that are not the report's own; `by` says whose they are and what they are worth."""

    lines: tuple[str, ...]
    by: str
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Play:
    """One play of a hidden task: which run played it, when, and its messages as (role, words)."""

    title: str
    messages: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "\n\n".join(f"{role}: {words}" for role, words in self.messages)


@dataclass(frozen=True, slots=True)
class Remark:
    """Something the report's code checked or noticed."""

    level: Literal["passed", "note", "feared", "threat", "failed"]
    text: str


threat = partial(Remark, "threat")
note = partial(Remark, "note")


@dataclass(frozen=True, slots=True)
class Remarks:
    """What was checked or noticed, in the order of the rules."""

    items: tuple[Remark, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A line of a head: a label and what is said, with the word that it begins with and a command that it ends with."""

    label: str
    text: str
    lead: str = ""
    tone: str = ""
    """How it looks: a verdict, or `untested`."""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """What is read first of a study or a round, and its most telling numbers."""

    points: tuple[Point, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure to be drawn: its name on the page, which of `studies.report.plots.FIGURES` it is, and its data."""

    name: str
    figure: str
    data: Any


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; folded ones are shown when they are asked for."""

    title: str
    blocks: "tuple[Block, ...]"
    id: str = ""
    folded: bool = False


Block = Table | Text | Quote | Play | Remarks | Head | Drawing | Section


def find_sections(blocks: Iterable[Block], *names: str) -> list[Section]:
    return [block for block in walk(blocks) if isinstance(block, Section) and {block.id, block.title} & {*names}]


def section(title: str, *blocks: Block | None, id: str = "", folded: bool = False) -> Section | None:
    """Return a section of those blocks that there are, empty texts left out; None where there is none."""
    there = tuple(block for block in blocks if block is not None and block != Text(""))
    return Section(title, there, id, folded) if there else None


def drawing(name: str, figure: str, data: Any) -> Drawing | None:
    return Drawing(name, figure, data) if data else None


def walk(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks and those within their sections, in the order of the page."""
    for block in blocks:
        yield block
        yield from walk(block.blocks) if isinstance(block, Section) else ()


def list_drawings(blocks: Iterable[Block]) -> list[Drawing]:
    return [block for block in walk(blocks) if isinstance(block, Drawing)]


def hash_cell(value: str) -> Cell:
    return Cell(value[:12], "mono", value)


def table(columns: Sequence[str], rows: Iterable[Row], numeric: Iterable[int] = ()) -> Table | None:
    """Return a table with one cell for each column in every row; None without rows."""
    cells = tuple(tuple(e if isinstance(e, Cell) else Cell(e or NONE) for e in row) for row in rows)
    wrong = next((row for row in cells if len(row) != len(columns)), None)
    if wrong is not None:
        raise ValueError(f"expected {len(columns)} cells ({', '.join(columns)}); found {len(wrong)}")
    return Table(tuple(columns), cells, frozenset(numeric)) if cells else None


def pairs(facts: Iterable[Fact]) -> Table | None:
    """Return a table of labelled values, hashes in a face of fixed width."""
    marked = ((label, value, "mono" if re.fullmatch(r"[0-9a-f]{64}", value) else "") for label, value in facts)
    return table(("", ""), [(Cell(label, "label"), Cell(value or NONE, mark)) for label, value, mark in marked])


def is_rate(metric: Metric) -> bool:
    try:
        return bool(metric.kind) and kind_of(metric).rates
    except Refused:  # the package that brought it is gone
        return False


def is_mostly_cut(metric: Metric, values: Sequence[float]) -> bool:
    return 2 * _count_cut(metric, values) > len(values)


def format_mean(metric: Metric, values: Sequence[float]) -> str:
    if not values:
        return NONE
    if is_mostly_cut(metric, values):
        missed = f"{_count_cut(metric, values)} of {len(values)}"
        return f"not reached by {missed}" if metric.threshold is not None else f"{missed} at the cut"
    return "{} of {}".format(*count_of(values)) if is_rate(metric) else number(fmean(values), unit=metric.unit)


def format_spread(metric: Metric, values: Sequence[float]) -> str:
    return NONE if is_mostly_cut(metric, values) or is_rate(metric) else number(spread(values), unit=metric.unit)


def arm_interval(metric: Metric, values: Sequence[float]) -> Interval | None:
    """Return the mean with its 95 % interval: Student's, of a share within its range, or of a rate its exact limits."""
    if not values or is_mostly_cut(metric, values):
        return None
    found, ends = mean_interval(values), (metric.worst, metric.best, *values)
    if found is None or metric.unit or is_rate(metric):
        return exact_limits(*count_of(values)) if is_rate(metric) else found
    return Interval(found.mean, max(found.low, min(ends)), min(found.high, max(ends)))


def count_of(values: Sequence[float]) -> tuple[int, int]:
    return round(sum(values)), len(values)


def _count_cut(metric: Metric, values: Sequence[float]) -> int:
    cut = metric.cut_at
    return 0 if cut is None else sum(value >= cut for value in values)


def is_campaign(state: StudyState) -> bool:
    return state.most_rounds > 1 or bool(state.rounds_before)
