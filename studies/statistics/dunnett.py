"""Dunnett's distribution: the largest of several |t| that share one control and one variance.

Promises. Any degrees of freedom (a noise bank adds to them) and any numbers of runs, by a fixed quadrature: the same
inputs give the same digits on any machine. With one arm it is Student's t.

Does not know. Arms with variances of their own: with Welch's or the paired test the verdict uses each comparison's own
degrees of freedom, which is an approximation (`benchmarks/verdicts.py` shows what it does to the error rate).

Dunnett 1955, JASA 50; Dunnett 1964, Biometrics 20: with T_i = (Z_i - a_i Z_0) / S the probability that all |T_i| <= c
is the integral over Z_0 and S of a product of normal probabilities, where corr(T_i, T_j) = r_i r_j and
r_i = sqrt(n_i / (n_i + n_0)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

_NODES: Final = 80
"""Points of each quadrature: 1e-8 of the probability at 2 degrees of freedom and more."""
_FAR: Final = 8.5
"""Standard deviations beyond which a normal density counts as nothing."""
_RARE: Final = 1e-13
"""Share of the distribution of S left out at each end."""


def adjusted_p(t: float, df: float, n_control: int, n_treatments: Sequence[int]) -> float:
    """Return the two-sided p of `t` corrected for all comparisons with the control."""
    from scipy import special  # takes a while to import, which a command that judges nothing should not wait for

    if len(n_treatments) == 1:
        return float(2 * special.stdtr(df, -abs(t)))
    return min(1.0, max(0.0, 1 - _all_within(abs(t), df, _shares(n_control, n_treatments))))


def critical(level: float, df: float, n_control: int, n_treatments: Sequence[int]) -> float:
    """Return the number of standard errors within which all comparisons lie with probability `level`."""
    return _critical(level, df, _shares(n_control, n_treatments))


@lru_cache(maxsize=4096)
def _critical(level: float, df: float, shares: tuple[float, ...]) -> float:
    from scipy import optimize, special  # see adjusted_p

    alone = float(special.stdtrit(df, (1 + level) / 2))
    if len(shares) == 1:
        return alone
    bonferroni = float(special.stdtrit(df, 1 - (1 - level) / (2 * len(shares))))
    ends = alone * (1 - 1e-6), bonferroni * (1 + 1e-6)
    if not _all_within(ends[0], df, shares) < level < _all_within(ends[1], df, shares):
        return bonferroni  # with hardly any freedom and a tiny level the quadrature is too coarse
    return float(optimize.brentq(lambda c: _all_within(c, df, shares) - level, *ends, xtol=1e-10))


def _shares(n_control: int, n_treatments: Sequence[int]) -> tuple[float, ...]:
    """Return r_i, sorted, so that the order of arms is of no account."""
    return tuple(sorted(math.sqrt(n / (n + n_control)) for n in n_treatments))


@lru_cache(maxsize=16_384)
def _all_within(c: float, df: float, shares: tuple[float, ...]) -> float:
    import numpy as np  # see adjusted_p
    from scipy import special

    z, weight_z = _normal_rule()
    s, weight_s = _scale_rule(df)
    inside = np.ones((len(s), len(z)))
    for r, alike in groupby(shares):
        rest = math.sqrt(1 - r * r)
        within = special.ndtr((r * z + c * s[:, None]) / rest) - special.ndtr((r * z - c * s[:, None]) / rest)
        for _ in alike:
            inside *= within
    return float(weight_s @ inside @ weight_z)


@lru_cache(maxsize=1)
def _normal_rule() -> tuple[Any, Any]:
    """Return points and weights of the standard normal density."""
    import numpy as np  # see adjusted_p

    x, w = _legendre_rule()
    z = _FAR * x
    return z, _FAR * w * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


@lru_cache(maxsize=1)
def _legendre_rule() -> tuple[Any, Any]:
    """Return points and weights on -1 to 1, which take as long as all else of a quadrature."""
    import numpy as np  # see adjusted_p

    points, weights = np.polynomial.legendre.leggauss(_NODES)
    return points, weights


@lru_cache(maxsize=512)
def _scale_rule(df: float) -> tuple[Any, Any]:
    """Return points and weights of S, where S^2 df is chi-squared with df degrees of freedom."""
    from scipy import stats  # see adjusted_p

    x, w = _legendre_rule()
    low, high = (math.sqrt(end / df) for end in (stats.chi2.ppf(_RARE, df), stats.chi2.isf(_RARE, df)))
    s = low + (high - low) * (x + 1) / 2
    density = stats.chi2.pdf(s * s * df, df) * 2 * s * df
    weights = w * (high - low) / 2 * density
    return s, weights / weights.sum()
