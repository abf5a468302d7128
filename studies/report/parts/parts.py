"""The small values a report is made of, the same for Markdown and HTML: cells, tables, quotes, remarks.

They hold text only. A template decides how it looks and escapes it; nothing here is marked up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    """Return a cell; empty text becomes a dash."""
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
    """Return facts as a table of two columns without a heading."""
    return table(("", ""), [(Cell(fact.label, "label"), cell(fact.value, _look(fact.value))) for fact in facts])


def _look(value: str) -> str:
    return "mono" if re.fullmatch(r"[0-9a-f]{64}", value) else ""
