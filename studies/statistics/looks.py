"""Looking at the data before the end: how much of alpha each look may use.

Promises. `spend` gives each look the two-sided level at which it may decide, so that the chance of a false claim at
any of them is alpha, by Lan and DeMets (1983, Biometrika 70): alpha is spent along a function of the share of seeds
that are in. `obrien_fleming` spends almost nothing early, `pocock` spends evenly. The bounds come from the recursion of
Armitage, McPherson & Rowe (1969, JRSS A 132) by a fixed quadrature, for normal means.

Does not know. Small samples: the levels are used on the scale of p-values of a t-test (the significance level
approach, Jennison & Turnbull 2000, section 3.8), which is near but not exact; `benchmarks/verdicts.py` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from studies.records.design_parts import Look

Spending = Literal["obrien_fleming", "pocock"]

_NODES: Final = 120
"""Points of the quadrature over the values at which a look does not stop: six digits of a bound."""
_FAR: Final = 38.0
"""Largest bound in standard errors: beyond it a normal tail is zero."""


class Crossing(NamedTuple):
    """Probability that a look is the first to leave its bounds, by side."""

    below: float
    above: float


def spend(seeds: Sequence[int], alpha: float = 0.05, *, by: Spending = "obrien_fleming") -> tuple[Look, ...]:
    """Return the looks after these numbers of seeds per arm, the last of which is the end.

    Raise ValueError for numbers that do not grow, or an alpha outside (0, 1).
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1; found {alpha}")
    if not seeds or list(seeds) != sorted(set(seeds)) or seeds[0] < 2:
        raise ValueError(f"looks must grow, from 2 seeds or more; found {list(seeds)}")
    levels = _levels(tuple(seeds), alpha, by)
    return tuple(Look(seeds=n, alpha=level) for n, level in zip(seeds, levels, strict=True))


def spent(share: float, alpha: float, by: Spending) -> float:
    """Return how much of a two-sided alpha is spent when this share of the seeds is in."""
    if by == "pocock":
        return alpha * math.log(1 + (math.e - 1) * share)
    from scipy import special  # takes a while to import, which a command that judges nothing should not wait for

    return float(4 * special.ndtr(special.ndtri(alpha / 4) / math.sqrt(share)))


def crossings(bounds: Sequence[float], shares: Sequence[float], drift: float = 0.0) -> tuple[Crossing, ...]:
    """Return for each look how probable it is that it is the first outside its bounds (in standard errors).

    `drift` is the expected statistic at the end, in standard errors: 0 without an effect.
    """
    walk = _Walk(drift)
    return tuple(walk.step(bound, share) for bound, share in zip(bounds, shares, strict=True))


@lru_cache(maxsize=512)
def _levels(seeds: tuple[int, ...], alpha: float, by: Spending) -> tuple[float, ...]:
    from scipy import optimize, special  # see spent

    walk, levels, before = _Walk(0.0), [], 0.0
    for share in (n / seeds[-1] for n in seeds):
        now = spent(share, alpha, by)
        bound = optimize.brentq(_excess(walk, share, now - before), 0.0, _FAR, xtol=1e-12)
        walk.step(bound, share)
        levels.append(max(2 * float(special.ndtr(-bound)), 1e-300))
        before = now
    return tuple(levels)


def _excess(walk: _Walk, share: float, wanted: float) -> Callable[[float], float]:
    return lambda bound: sum(walk.leaving(bound, share)) - wanted


class _Walk:
    """A sum of independent normal steps, watched at shares of its variance, as far as it has stayed inside."""

    def __init__(self, drift: float) -> None:
        self._drift = drift
        self._share = 0.0
        self._at: Any = None
        """Points where the walk may be, and the density times the weight of each."""

    def leaving(self, bound: float, share: float) -> Crossing:
        """Return the probability of being outside `bound` at `share` for the first time."""
        import numpy as np  # see spent
        from scipy import special

        points, mass = self._at or (np.zeros(1), np.ones(1))
        step = share - self._share
        mean, edge = points + self._drift * step, bound * math.sqrt(share)
        above = special.ndtr((mean - edge) / math.sqrt(step))
        below = special.ndtr((-edge - mean) / math.sqrt(step))
        return Crossing(float(below @ mass), float(above @ mass))

    def step(self, bound: float, share: float) -> Crossing:
        """Go on to `share` and stay inside `bound`; return the probability of having left there."""
        import numpy as np  # see spent

        left = self.leaving(bound, share)
        points, mass = self._at or (np.zeros(1), np.ones(1))
        step = share - self._share
        edge = min(bound * math.sqrt(share), abs(self._drift) * share + 9 * math.sqrt(share))
        x, w = _rule()
        here = edge * x
        away = (here[:, None] - points - self._drift * step) / math.sqrt(step)
        density = np.exp(-away * away / 2) / math.sqrt(2 * math.pi * step) @ mass
        self._at, self._share = (here, edge * w * density), share
        return left


@lru_cache(maxsize=1)
def _rule() -> tuple[Any, Any]:
    """Return points and weights on -1 to 1, which take longer than all else of a step."""
    import numpy as np  # see spent

    points, weights = np.polynomial.legendre.leggauss(_NODES)
    return points, weights
