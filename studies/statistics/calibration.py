"""How well predictions came true: Brier scores, coverage of predicted intervals, skill against a constant forecaster.

Promises. Every figure stands beside the number of predictions behind it, and a figure over none is None.

Does not know. Who predicted: the caller groups predictions by planner.
"""

from __future__ import annotations

from studies.records import VerdictName


def brier(probability: float, verdict: VerdictName) -> float | None:
    """Return (probability - outcome)^2, outcome 1 for supported and 0 for refuted; None for other verdicts.

    Brier 1950, Monthly Weather Review 78(1). 0 is perfect, 0.25 is what a coin's 50 % earns, 1 is the worst.
    """
    outcomes = {"supported": 1.0, "refuted": 0.0}
    return (probability - outcomes[verdict]) ** 2 if verdict in outcomes else None
