"""What a planner's own code made of logs and search plays: a table, a figure and a note, checked before they are kept.

Exploratory: no verdict has it as an input. It stands in `planner.acted` beside the source that gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from studies.records.base import Record

ANALYSE: Final = "analyse"
"""Name of the look."""
MADE: Final = "made"
"""Key of its result in `planner.acted`; one that made nothing has none."""
_MOST: Final = 1e15
_LONGEST: Final = 200
"""Characters of a text."""


def _require_visible(text: str) -> str:
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        raise ValueError(f"expected visible characters; found others in {text[:60]!r}")
    return text


Source = Annotated[str, StringConstraints(strict=True, max_length=16_384), AfterValidator(_require_visible)]
Plain = Annotated[
    str, StringConstraints(strict=True, max_length=_LONGEST, pattern=r"^[^\n\t]*$"), AfterValidator(_require_visible)
]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-_MOST, le=_MOST)]


def _require_cell(cell: object) -> object:
    one_line = isinstance(cell, str) and len(cell) <= _LONGEST and cell.isprintable()
    if cell is None or one_line or (isinstance(cell, bool | int | float) and abs(cell) <= _MOST):
        return cell
    raise ValueError(f"expected a number, true, false, null, or one line of at most {_LONGEST} characters")


Cell = Annotated[bool | int | float | str | None, BeforeValidator(_require_cell)]
Row = Annotated[Mapping[Plain, Cell], Field(min_length=1, max_length=8)]


class AnalysisSeries(Record):
    """One line, or one set of points."""

    name: Plain
    points: tuple[tuple[Number, Number], ...] = Field(min_length=1, max_length=100)


class AnalysisFigure(Record):
    """What the report is to draw, with the names of its axes."""

    kind: Literal["lines", "points"]
    x: Plain
    y: Plain
    series: tuple[AnalysisSeries, ...] = Field(min_length=1, max_length=6)


class AnalysisResult(Record):
    """What the code returned."""

    table: tuple[Row, ...] = Field(min_length=1, max_length=40)
    """Cells by column, of which all rows have the same."""
    figure: AnalysisFigure | None = None
    note: Plain = ""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if any(row.keys() != self.table[0].keys() for row in self.table):
            raise ValueError(f"expected the columns {', '.join(self.table[0])} in each row of the table; found others")
        return self
