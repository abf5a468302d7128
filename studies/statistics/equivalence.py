"""Equivalence: two one-sided tests that the difference lies inside the margin (Schuirmann 1987).

Promises. It stands at the look's own level, which no other claim of the study shares: saying that nothing was found is
no discovery. It holds exactly when the interval of level 1 - 2 alpha lies wholly inside the margin, with the estimate,
standard error and degrees of freedom of the comparison that the design locked.

Does not know. Why the margin is what it is: it is the smallest effect of interest, fixed before data.
"""

from __future__ import annotations

from studies.records.verdict import Equivalence
from studies.statistics.comparison import Comparison


def two_one_sided(found: Comparison, margin: float, alpha: float) -> Equivalence:
    """Return the interval of level 1 - 2 alpha and the larger of the two one-sided p-values."""
    low, high = found.interval(1 - 2 * alpha)
    p = max(found.tail((found.estimate + margin) / found.error), found.tail((margin - found.estimate) / found.error))
    return Equivalence(margin=margin, low=low, high=high, p=p)


def equivalent(found: Equivalence) -> bool:
    """Return whether the whole interval lies inside the margin."""
    return -found.margin < found.low and found.high < found.margin
