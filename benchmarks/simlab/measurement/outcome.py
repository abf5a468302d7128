"""What a suite found: its figures, each with an interval and its bar, and the rows and series of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simlab.measurement.scores import Measured


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """What a suite found."""

    name: str
    question: str
    flights: int
    figures: Sequence[Measured]
    rows: Sequence[Mapping[str, Any]] = ()
    """A table of its own, where each case has a result: traps, baits, rivals."""
    series: Mapping[str, Any] = field(default_factory=dict)
    """What is drawn of it."""

    @property
    def missed(self) -> list[str]:
        """The bars that were missed, in words."""
        return [f"{self.name}: {figure.words()}" for figure in self.figures if figure.kept is False]

    def payload(self) -> dict[str, Any]:
        """Return it for a file."""
        return {
            "question": self.question,
            "flights": self.flights,
            "figures": [figure.payload() for figure in self.figures],
            "rows": [dict(row) for row in self.rows],
            "series": dict(self.series),
        }
