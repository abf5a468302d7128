"""How figures are written in Markdown: tables, shares and their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table's lines, between empty ones."""
    yield ""
    yield _row(head)
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield _row(row)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def paragraph(line: str) -> str:
    """Return a line wrapped to the width of the docs; what is a row, a title or a picture stays as it is."""
    return line if line.startswith(("|", "#", "!")) else fill(line, 120, break_long_words=False, break_on_hyphens=False)


def percent(value: float, digits: int = 0) -> str:
    """Return a share as percent."""
    return f"{100 * value:.{digits}f} %"


def counted(figure: Mapping[str, Any]) -> str:
    """Return a share of a count as the two numbers."""
    return f"{figure['count']:,} of {figure['of']:,}"


def share(figure: Mapping[str, Any], digits: int = 1) -> str:
    """Return a share with its 95 % interval and the counts it is of."""
    low, high = (f"{100 * figure[end]:.{digits}f}" for end in ("low", "high"))
    return f"{percent(figure['value'], digits)} (95 % interval {low} to {high}), {counted(figure)}"


def rate(ends: Sequence[float], digits: int = 1) -> str:
    """Return a share with its 95 % interval, from its value and the interval's two ends."""
    value, low, high = ends
    return f"{percent(value, digits)} ({100 * low:.{digits}f} to {100 * high:.{digits}f})"


def signed(figure: Mapping[str, float], digits: int = 3) -> str:
    """Return a difference with its 95 % interval."""
    mean, low, high = (f"{figure[end]:+.{digits}f}" for end in ("mean", "low", "high"))
    return f"{mean} (95 % interval {low} to {high})"
