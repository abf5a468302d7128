"""What a rule found of one claim, before it is written down as a verdict, and what it cannot see."""

from __future__ import annotations

from dataclasses import dataclass

from studies.records.verdict import Equivalence, Scope, VerdictName
from studies.statistics.comparison import Comparison


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict's name and reason, with the numbers that the rule looked at."""

    verdict: VerdictName
    reason: str
    comparison: Comparison | None = None
    level: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    equivalence: Equivalence | None = None
    scope: Scope = "all"
    measured: bool = True
    """Whether means and their difference are numbers of what is asked: times that are mostly cut are none."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """An arm of which every run got there, and the trainings that may not."""

    arm: str
    upper: float
    """The largest share that never gets there and is not ruled out (one-sided 95 % limit)."""
    undoes: float | None
    """The least share that would undo what is claimed; None where none would, or nothing is claimed."""
