"""Result files, and how figures are written in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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


RESULTS = Path(__file__).parents[1] / "results"
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """What one benchmark measured; `date` (ISO) and `commit` are None where its file does not know them."""

    name: str
    figures: Figures
    date: str | None
    commit: str | None


def load(name: str, folder: Path = RESULTS) -> Result | None:
    """Return the result of a benchmark; None where it was never run at full size."""
    path = folder / f"{name}.json"
    return parse(name, json.loads(path.read_text())) if path.exists() else None


def parse(name: str, figures: Figures) -> Result | None:
    """Return figures with when they were measured; None for those of a `--quick` run, which are not relied on."""
    around = next(
        (found for found in (figures.get("circumstances"), figures, *_recorded(figures)) if found and "date" in found),
        {"date": None},
    )
    return None if around.get("quick") else Result(name, figures, around["date"], around.get("commit"))


def _recorded(figures: Figures) -> list[Figures]:
    """Return the circumstances of the parts of a result that were measured apart, the newest first."""
    parts = figures.get("environments", {})
    found = [part["recorded"] for part in parts.values() if isinstance(part, dict) and "recorded" in part]
    return sorted(found, key=lambda each: each["date"], reverse=True)
