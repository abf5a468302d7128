"""Describing a sample: spread and the interval of a mean.

Promises. Each function is a pure function of its numbers and says None where the quantity does not exist, never a
number that was not measured.

Does not know. What the numbers are, and whether a claim may rest on them: that is for the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

SAME: Final = 1e-12
"""Spread below which values count as equal: far under one episode in any evaluation, above float noise."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a mean or a rate."""

    mean: float
    low: float
    high: float


def constant(values: Sequence[float]) -> bool:
    """Return whether no value differs from the others."""
    return max(values) - min(values) <= SAME


def spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    return 0.0 if constant(values) else stdev(values)


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> Interval | None:
    """Return the mean with its Student-t interval; None for fewer than two values."""
    sd = spread(values)
    if sd is None:
        return None
    mean = fmean(values)
    half = t_quantile((1 + level) / 2, len(values) - 1) * sd / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def spread_interval(squares: float, df: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the standard deviation behind a sum of squares with `df` degrees of freedom, if normal."""
    from scipy import special  # see t_quantile

    ends = (float(special.chdtri(df, share)) for share in ((1 - level) / 2, (1 + level) / 2))
    low, high = (math.sqrt(squares / end) for end in ends)
    return low, high


def t_quantile(share: float, df: float) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy import stats  # takes most of a second, which a command that judges nothing should not wait for

    return float(stats.t.ppf(share, df))
