"""The one interval that decided a verdict, with its level: of the locked test, or of the equivalence test.

Every place that shows an interval beside a verdict shows this one, so that no reader meets two of different levels.
"""

from __future__ import annotations

from dataclasses import dataclass

from studies.records.design import Design
from studies.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class DecidingInterval:
    """An interval of the difference, treatment minus control, in the metric's own unit."""

    low: float
    high: float
    level: float


def deciding_interval(design: Design, verdict: Verdict) -> DecidingInterval | None:
    """Return the interval that decided a verdict; None where none exists."""
    found = verdict.equivalence
    if verdict.verdict == "equivalent" and found is not None:
        return DecidingInterval(found.low, found.high, round(1 - 2 * _alike_of(design, verdict), 4))
    if verdict.low is None or verdict.high is None:
        return None
    return DecidingInterval(verdict.low, verdict.high, round(verdict.level, 4))


def alpha_of(design: Design, verdict: Verdict) -> float:
    """Return the two-sided level of the look at which a verdict was computed; a replication is looked at once."""
    looks = design.looks if verdict.phase == "confirm" else ()
    return looks[verdict.look - 1].alpha if looks else design.alpha


def _alike_of(design: Design, verdict: Verdict) -> float:
    """Return the level of each of the two one-sided tests of that look."""
    looks = design.looks if verdict.phase == "confirm" else ()
    own = looks[verdict.look - 1].equivalence if looks else None
    return alpha_of(design, verdict) if own is None else own
