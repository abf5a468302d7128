"""Linear contrasts of the means of several arms: the difference of two, the difference of two differences, a trend.

Promises. `contrast` estimates sum c_i m_i; its variance is sum c_i^2 s_i^2 / n_i, with the degrees of freedom

    df = (sum v_i)^2 / sum(v_i^2 / (n_i - 1)),    v_i = c_i^2 s_i^2 / n_i

of Satterthwaite 1946 (Biometrics Bulletin 2:110). Welch's test of two arms is the case (-1, 1). Arms keep variances of
their own: none is pooled. With equal numbers and noise a difference of differences has the variance 4 s^2 / n, twice
that of a difference.

`expected_power` is the probability that it leaves zero out on the right side: given the sample variances a contrast is
normal, so that it is averaged over them alone, at fixed quasi-random points. Satterthwaite's degrees of freedom are an
approximation; `tests/studies/statistics/test_contrast.py` holds the level at 3 runs an arm.

Does not know. What the arms are and which weights a question has: `Design.contrast_of` says that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any, Final

from studies.statistics.comparison import Comparison
from studies.statistics.samples import constant, spread

_POINTS: Final = 1024
"""Points over the sample variances at which power is averaged: a third of a percent of it."""
_PRIMES: Final = (2, 3, 5, 7, 11, 13)
"""Bases of Halton's sequence, one for each arm."""


def contrast(arms: Sequence[Sequence[float]], weights: Sequence[float]) -> Comparison | None:
    """Return the weighted sum of the arms' means with its error; None where no arm of any weight varies.

    The first arm counts as the control's number of runs, the last one as the treatment's. Raise ValueError for an arm
    with fewer than two values, or another number of weights than of arms.
    """
    if len(arms) != len(weights):
        raise ValueError(f"expected a weight for each of {len(arms)} arms; found {len(weights)}")
    if (least := min(map(len, arms))) < 2:
        raise ValueError(f"a contrast needs 2 values in each arm; found {least}")
    estimate = math.fsum(weight * fmean(values) for weight, values in zip(weights, arms, strict=True))
    parts = [weight**2 * _variance(values) / len(values) for weight, values in zip(weights, arms, strict=True)]
    total = math.fsum(parts)
    if total <= 0:
        return None
    df = total**2 / math.fsum(part**2 / (len(values) - 1) for part, values in zip(parts, arms, strict=True))
    return Comparison(
        "contrast", estimate, math.sqrt(total), df, None, len(arms[0]), len(arms[-1])
    )  # fmt: skip


def error_of(weights: Sequence[float], seeds: int) -> float:
    """Return the standard error of a contrast with so many seeds an arm, in standard deviations between seeds."""
    return math.sqrt(math.fsum(weight * weight for weight in weights) / seeds)


def expected_power(weights: tuple[float, ...], seeds: int, level: float, shift: float) -> float:
    """Return the probability of a claim in the right direction at a two-sided level.

    `shift` is the true contrast in its own standard errors; all arms have equal noise and `seeds` runs.
    """
    from scipy import special  # takes a while to import, which a command that plans nothing should not wait for

    return float(special.ndtr(shift - _limits(weights, seeds, level)).mean())


@lru_cache(maxsize=1024)
def _limits(weights: tuple[float, ...], seeds: int, level: float) -> Any:
    """Return, at each point, what a contrast has to exceed in its true standard errors."""
    import numpy as np  # see expected_power
    from scipy import special

    free = seeds - 1
    counted = [weight for weight in weights if abs(weight) > 1e-9]
    parts = np.array([
        weight * weight * special.chdtri(free, 1 - np.array(_halton(base))) / free
        for weight, base in zip(counted, _PRIMES, strict=False)
    ])  # fmt: skip
    total = parts.sum(axis=0)
    df = total**2 / (parts**2 / free).sum(axis=0)
    return special.stdtrit(df, 1 - level / 2) * np.sqrt(total / sum(weight * weight for weight in counted))


@lru_cache(maxsize=len(_PRIMES))
def _halton(base: int) -> tuple[float, ...]:
    """Return the first points of Halton's sequence (1960, Numerische Mathematik 2:84) in a base."""
    return tuple(_reflected(number, base) for number in range(1, _POINTS + 1))


def _reflected(number: int, base: int) -> float:
    found, share = 0.0, 1.0
    while number:
        share /= base
        number, digit = divmod(number, base)
        found += share * digit
    return found


def _variance(values: Sequence[float]) -> float:
    """Return the sample variance; exactly 0 where no value differs."""
    sd = 0.0 if constant(values) else spread(values)
    return (sd or 0.0) ** 2
