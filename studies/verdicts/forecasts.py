"""How well predictions came true: Brier scores, coverage and skill, each beside the number of predictions behind it.

The constant forecaster says the share of supported claims for every one, knowing that share beforehand: a planner with
skill above 0 tells claims apart, and does not only know how often claims come true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from studies.records.procedure import Prediction
from studies.records.verdict import Verdict, VerdictName
from studies.statistics.comparison import SAME, Interval
from studies.statistics.proportions import rate_interval

_OUTCOMES: Final[Mapping[VerdictName, float]] = {"supported": 1.0, "refuted": 0.0}


@dataclass(frozen=True, slots=True)
class Calibration:
    """What became of a planner's predictions."""

    predictions: int
    verdicts: Mapping[VerdictName, int]
    """How many ended in each verdict; those that did not occur are left out."""
    scored: int
    """Predictions that were supported or refuted: the others have no outcome to score a probability by."""
    brier: float | None
    constant: float | None
    """Brier score of the constant forecaster on the same claims."""
    skill: float | None
    """1 - brier / constant: 1 is perfect, 0 no better than a constant; None where every outcome was the same."""
    mean_probability: float | None
    supported: Interval | None
    """Share of the scored that were supported, with its Wilson interval; beside `mean_probability` it shows bias."""
    intervals: int
    """Predicted intervals that can be compared with an estimate."""
    mean_level: float | None
    coverage: Interval | None
    """Share of them that hold the estimate, with its Wilson interval."""


def brier(probability: float, verdict: VerdictName) -> float | None:
    """Return (probability - outcome)^2, outcome 1 for supported and 0 for refuted (Brier 1950); None for others."""
    return (probability - _OUTCOMES[verdict]) ** 2 if verdict in _OUTCOMES else None


def calibration(predicted: Iterable[tuple[Prediction, Verdict]]) -> Calibration:
    """Return how well predictions came true, given with final verdicts; an invalid one is counted, and tests none."""
    pairs = list(predicted)
    scored = [(p.probability, _OUTCOMES[v.verdict]) for p, v in pairs if v.verdict in _OUTCOMES]
    compared = [
        (p.level, p.low <= v.estimate <= p.high) for p, v in pairs if v.verdict != "invalid" and v.estimate is not None
    ]
    outcomes = [outcome for _, outcome in scored]
    score = fmean((probability - outcome) ** 2 for probability, outcome in scored) if scored else None
    constant = fmean(outcomes) * (1 - fmean(outcomes)) if scored else None
    return Calibration(
        predictions=len(pairs), verdicts=dict(Counter(verdict.verdict for _, verdict in pairs)),
        scored=len(scored), brier=score, constant=constant,
        skill=None if score is None or constant is None or constant <= SAME else 1 - score / constant,
        mean_probability=fmean(probability for probability, _ in scored) if scored else None,
        supported=rate_interval(sum(outcome == 1 for outcome in outcomes), len(outcomes)),
        intervals=len(compared),
        mean_level=fmean(level for level, _ in compared) if compared else None,
        coverage=rate_interval(sum(held for _, held in compared), len(compared)),
    )  # fmt: skip
