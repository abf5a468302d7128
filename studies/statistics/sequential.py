"""Alpha spending at interim looks, and Dunnett's distribution.

Each look gets its two-sided level, so that the chance of a false claim at any look is alpha (Lan & DeMets 1983,
Biometrika 70), by the share of seeds that are in, as O'Brien and Fleming's bounds do. Bounds: the recursion of
Armitage, McPherson & Rowe (1969, JRSS A 132) for normal means. For t-tests the levels are used on the p-scale (Jennison
& Turnbull 2000, section 3.8): near, not exact; `benchmarks/verdicts.py` measures it.

Dunnett (1955, JASA 50; 1964, Biometrics 20): with T_i = (Z_i - a_i Z_0) / S the probability that all |T_i| <= c is the
integral over Z_0 and S of a product of normal probabilities, corr(T_i, T_j) = r_i r_j, r_i = sqrt(n_i / (n_i + n_0)).
Fixed quadratures: the same inputs give the same digits on any machine.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from studies.records.procedure import InterimAnalysis
from studies.statistics import np, optimize, special, stats

_NORMAL_NODES: Final = 80
"""Points of each quadrature: 1e-8 of the probability at 2 degrees of freedom and more."""
_FARTHEST_Z: Final = 8.5
"""Standard deviations beyond which a normal density counts as nothing."""
_RARE: Final = 1e-13
"""Share of the distribution of S left out at each end."""
_NODES: Final = 120
"""Points of the quadrature over the values at which a look does not stop: six digits of a bound."""
_HIGHEST_BOUND: Final = 38.0
"""Largest bound in standard errors: beyond it a normal tail is zero."""
_LEAST_LEVEL: Final = 1e-12
"""Of a last look, so that its interval has ends: as good as nothing."""


def dunnett_p(t: float, df: float, n_control: int, n_treatments: Sequence[int]) -> float:
    """Return the two-sided p of `t` corrected for all comparisons with the control."""
    if len(n_treatments) == 1:
        return float(2 * special.stdtr(df, -abs(t)))
    return min(1.0, max(0.0, 1 - _all_within(abs(t), df, _shares(n_control, n_treatments))))


def dunnett_critical(level: float, df: float, n_control: int, n_treatments: Sequence[int]) -> float:
    """Return the number of standard errors within which all comparisons lie with probability `level`."""
    return _critical(level, df, _shares(n_control, n_treatments))


@lru_cache(maxsize=4096)
def _critical(level: float, df: float, shares: tuple[float, ...]) -> float:
    alone = float(special.stdtrit(df, (1 + level) / 2))
    if len(shares) == 1:
        return alone
    bonferroni = float(special.stdtrit(df, 1 - (1 - level) / (2 * len(shares))))
    ends = alone * (1 - 1e-6), bonferroni * (1 + 1e-6)
    if not _all_within(ends[0], df, shares) < level < _all_within(ends[1], df, shares):
        return bonferroni  # with hardly any freedom and a tiny level the quadrature is too coarse
    return float(optimize.brentq(lambda c: _all_within(c, df, shares) - level, *ends, xtol=1e-10))


def _shares(n_control: int, n_treatments: Sequence[int]) -> tuple[float, ...]:
    return tuple(sorted(math.sqrt(n / (n + n_control)) for n in n_treatments))


@lru_cache(maxsize=16_384)
def _all_within(c: float, df: float, shares: tuple[float, ...]) -> float:
    x, w = _legendre_rule(_NORMAL_NODES)
    z = _FARTHEST_Z * x
    weight_z = _FARTHEST_Z * w * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    s, weight_s = _scale_rule(df)
    inside = np.ones((len(s), len(z)))
    for r, alike in groupby(shares):
        rest = math.sqrt(1 - r * r)
        within = special.ndtr((r * z + c * s[:, None]) / rest) - special.ndtr((r * z - c * s[:, None]) / rest)
        for _ in alike:
            inside *= within
    return float(weight_s @ inside @ weight_z)


@lru_cache(maxsize=2)
def _legendre_rule(nodes: int) -> tuple[Any, Any]:
    """Return points and weights on -1 to 1, which take as long as all else of a quadrature."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return points, weights


@lru_cache(maxsize=512)
def _scale_rule(df: float) -> tuple[Any, Any]:
    x, w = _legendre_rule(_NORMAL_NODES)
    low, high = (math.sqrt(end / df) for end in (stats.chi2.ppf(_RARE, df), stats.chi2.isf(_RARE, df)))
    s = low + (high - low) * (x + 1) / 2
    density = stats.chi2.pdf(s * s * df, df) * 2 * s * df
    weights = w * (high - low) / 2 * density
    return s, weights / weights.sum()


class Crossing(NamedTuple):
    """Probability that a look is the first to leave its bounds, by side."""

    below: float
    above: float


def spend_alpha(seeds: Sequence[int], alpha: float = 0.05) -> tuple[InterimAnalysis, ...]:
    """Return the looks after these numbers of seeds per arm, the last of which is the end."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1; found {alpha}")
    if not seeds or list(seeds) != sorted(set(seeds)) or seeds[0] < 2:
        raise ValueError(f"looks must grow, from 2 seeds or more; found {list(seeds)}")
    levels = _levels(tuple(seeds), alpha)
    return tuple(InterimAnalysis(seeds=n, alpha=level) for n, level in zip(seeds, levels, strict=True))


def crossings(bounds: Sequence[float], shares: Sequence[float], drift: float = 0.0) -> tuple[Crossing, ...]:
    """Return for each look how probable it is that it is the first outside its bounds, with a `drift` at the end."""
    walk = _Walk(drift)
    return tuple(walk.step(bound, share) for bound, share in zip(bounds, shares, strict=True))


@lru_cache(maxsize=512)
def _levels(seeds: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    walk, levels, before = _Walk(0.0), list[float](), 0.0
    for share in (n / seeds[-1] for n in seeds):
        now = _spent(share, alpha)
        bound = _solve_bound(walk, share, now - before)
        walk.step(bound, share)
        levels.append(max(2 * float(special.ndtr(-bound)), 1e-300))
        before = now
    return tuple(levels)


@lru_cache(maxsize=4096)
def last_level(looks: tuple[tuple[int, float], ...], made: tuple[float, ...], count: float, *, whole: bool) -> float:
    """Return the two-sided level of a last look at `count` runs of each arm, before all that were planned. `looks` are
    the planned numbers of runs and levels, `made` what the first of them had. Where no data brought the end about it is
    the `whole` that is left; where somebody chose the moment a quarter of what may be spent by then: half of it is the
    level where O'Brien and Fleming's bound is watched at every moment, and the planned looks stand beside it."""
    spent = crossings([_bound(level) for _, level in looks], [n / looks[-1][0] for n, _ in looks])
    alpha = round(sum(map(sum, spent)), 12)
    if not whole:
        return max(_spent(min(1.0, count / looks[-1][0]), alpha) / 4, _LEAST_LEVEL)
    walk, left, levels = _Walk(0.0), alpha, dict[float, float]()
    for n, (_, level) in zip(made, looks, strict=False):
        levels[n] = max(level, levels.get(n, 0.0))
    for n, level in levels.items():
        if 0 < n < count:
            left -= sum(walk.step(_bound(level), n / count))
    return 2 * float(special.ndtr(-_solve_bound(walk, 1.0, max(left, _LEAST_LEVEL))))


def _bound(level: float) -> float:
    return -float(special.ndtri(level / 2))


def _spent(share: float, alpha: float) -> float:
    return float(4 * special.ndtr(special.ndtri(alpha / 4) / math.sqrt(share)))


def _solve_bound(walk: "_Walk", share: float, left: float) -> float:
    found = optimize.brentq(lambda b: sum(walk.exit_probability(b, share)) - left, 0.0, _HIGHEST_BOUND, xtol=1e-12)
    return float(found)


class _Walk:
    """A sum of independent normal steps, watched at shares of its variance, as far as it has stayed inside."""

    def __init__(self, drift: float) -> None:
        self._drift = drift
        self._share = 0.0
        self._at: Any = None
        """Points where the walk may be, and the density times the weight of each."""

    def exit_probability(self, bound: float, share: float) -> Crossing:
        """Return the probability of being outside `bound` at `share` for the first time."""
        points, mass = self._at or (np.zeros(1), np.ones(1))
        step = share - self._share
        mean, edge = points + self._drift * step, bound * math.sqrt(share)
        above = special.ndtr((mean - edge) / math.sqrt(step))
        below = special.ndtr((-edge - mean) / math.sqrt(step))
        return Crossing(float(below @ mass), float(above @ mass))

    def step(self, bound: float, share: float) -> Crossing:
        """Go on to `share` and stay inside `bound`; return the probability of having left there."""
        left = self.exit_probability(bound, share)
        points, mass = self._at or (np.zeros(1), np.ones(1))
        step = share - self._share
        edge = min(bound * math.sqrt(share), abs(self._drift) * share + 9 * math.sqrt(share))
        x, w = _legendre_rule(_NODES)
        here = edge * x
        away = (here[:, None] - points - self._drift * step) / math.sqrt(step)
        density = np.exp(-away * away / 2) / math.sqrt(2 * math.pi * step) @ mass
        self._at, self._share = (here, edge * w * density), share
        return left
