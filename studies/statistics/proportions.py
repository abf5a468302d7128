"""Rates of few runs: exact tests, intervals, power.

`boschloo` is Boschloo's unconditional test (1970, Statistica Neerlandica 24), two-sided as twice the smaller one-sided
p. `difference` is Newcombe's method 10 (1998, Statistics in Medicine 17) on Clopper & Pearson's limits (1934,
Biometrika 26): at these sizes it covers 95 % in at least 92.5 % of cases, where Wilson's limits cover 84 %.
`power_of_rates` and `seeds_for_rates` sum the test's own tables. The largest probability over common rates is sought on
a fixed grid, so that the same counts give the same digits anywhere.
"""

from bisect import bisect_left
from functools import lru_cache
from typing import Any, Final

from studies.statistics import np, optimize, proportion, special, stats
from studies.statistics.comparison import Interval

MOST_SEEDS: Final = 200
_GRID: Final = 400
"""Common rates at which a probability is looked at first."""
_CLOSE: Final = 0.99
"""What the grid may miss of the largest probability, as a share of it: a hundred times as much as it does."""
_UNEVEN: Final = 10
"""Seeds below the fewest that were found which may be enough as well."""
_TIES: Final = 1 + 1e-9
"""Tables whose conditional probabilities differ by rounding alone are equally extreme."""


def exact_limits(count: int, of: int, level: float = 0.95) -> Interval:
    """Return count / of with Clopper and Pearson's two-sided limits; of no trials nothing is ruled out."""
    low, high = one_sided_limits(count, of, (1 + level) / 2)
    return Interval(count / of if of else 0.0, low, high)


def one_sided_limits(count: int, of: int, level: float) -> tuple[float, float]:
    """Return the exact limits of a rate, each of which holds alone at this level."""
    if not 0 <= count <= of:
        raise ValueError(f"a count must lie between 0 and its {of} trials; found {count}")
    low = 0.0 if count == 0 else float(special.betaincinv(count, of - count + 1, 1 - level))
    high = 1.0 if count == of else float(special.betaincinv(count + 1, of - count, level))
    return low, high


def difference(control: tuple[int, int], treatment: tuple[int, int], level: float = 0.95) -> tuple[float, float]:
    """Return the interval of treatment's rate less control's, each given as (count, of), from the limits of each."""
    a, b = exact_limits(*control, level), exact_limits(*treatment, level)
    below = ((b.mean - b.low) ** 2 + (a.high - a.mean) ** 2) ** 0.5
    above = ((b.high - b.mean) ** 2 + (a.mean - a.low) ** 2) ** 0.5
    return max(-1.0, b.mean - a.mean - below), min(1.0, b.mean - a.mean + above)


def equivalence_p(control: tuple[int, int], treatment: tuple[int, int], margin: float) -> float:
    """Return the smallest alpha at which the interval of level 1 - 2 alpha lies inside the margin; 0.5 for none."""
    low, high = 0.0, 0.5
    for _ in range(60):
        alpha = (low + high) / 2
        ends = difference(control, treatment, 1 - 2 * alpha)
        low, high = (low, alpha) if -margin < ends[0] and ends[1] < margin else (alpha, high)
    return high


def boschloo(control: tuple[int, int], treatment: tuple[int, int]) -> float:
    """Return the exact two-sided p of equal rates; 1 where an arm has no trials."""
    (a, n), (b, m) = control, treatment
    if not n or not m:
        return 1.0
    return min(1.0, 2 * min(_greater(a, n, b, m), _greater(b, m, a, n)))


def power_of_rates(control: float, treatment: float, seeds: int, *, alpha: float = 0.05) -> float:
    low, high = sorted((control, treatment))
    return float(_binomial(seeds, low) @ _rejection_region(seeds, seeds, alpha / 2) @ _binomial(seeds, high))


def seeds_for_rates(control: float, treatment: float, *, target_power: float = 0.8, alpha: float = 0.05) -> int | None:
    """Return the fewest seeds of each arm that see this difference with the promised power; None beyond the most."""
    if control == treatment or not (0 <= control <= 1 and 0 <= treatment <= 1):
        raise ValueError(f"expected two different rates between 0 and 1; found {control:g} and {treatment:g}")

    def is_enough(seeds: int) -> bool:
        return power_of_rates(control, treatment, seeds, alpha=alpha) >= target_power

    if not is_enough(MOST_SEEDS):
        return None
    high = 2 + bisect_left(range(2, MOST_SEEDS), True, key=is_enough)
    fewer = range(max(2, high - _UNEVEN), high)  # counts are whole, so that power now and then falls as seeds grow
    return next(filter(is_enough, fewer), high)


def min_detectable_rate(seeds: int, *, target_power: float = 0.8, alpha: float = 0.05) -> float | None:
    """Return the smallest rate that so many seeds tell from a rate of 0 with the promised power; None for none."""
    if power_of_rates(0.0, 1.0, seeds, alpha=alpha) < target_power:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        seen = power_of_rates(0.0, middle, seeds, alpha=alpha) >= target_power
        low, high = (low, middle) if seen else (middle, high)
    return high


def _greater(a: int, n: int, b: int, m: int) -> float:
    """Return the one-sided p of a larger rate among the m: of all tables that are as extreme, at their likeliest."""
    fisher = _conditional(n, m)
    return _most_likely(n, m, fisher <= fisher[a, b] * _TIES)


@lru_cache(maxsize=1024)
def _rejection_region(n: int, m: int, alpha: float) -> Any:
    fisher = _conditional(n, m)
    steps = np.unique(fisher)
    low, high = -1, len(steps) - 1  # the whole of them has probability 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = _most_likely(n, m, fisher <= steps[middle] * _TIES, near=alpha) <= alpha
        low, high = (middle, high) if fits else (low, middle)
    return fisher <= (steps[low] * _TIES if low >= 0 else -1.0)


@lru_cache(maxsize=1024)
def _conditional(n: int, m: int) -> Any:
    """Return Fisher's one-sided p of each table: that the m hold as many of all that were counted, or more."""
    a, b = np.meshgrid(np.arange(n + 1), np.arange(m + 1), indexing="ij")
    return stats.hypergeom.sf(b - 1, n + m, a + b, m)


def _most_likely(n: int, m: int, tables: Any, near: float | None = None) -> float:
    """Return the largest probability of some tables over all common rates; to the last digit only if it is `near`."""
    grid = np.linspace(0.0, 1.0, _GRID + 1)
    chances = ((_over_grid(n) @ tables) * _over_grid(m)).sum(axis=-1)
    best = int(chances.argmax())
    if near is not None and not _CLOSE < chances[best] / near <= 1:
        return float(chances[best])
    cell = grid[max(0, best - 1)], grid[min(_GRID, best + 1)]
    found = optimize.minimize_scalar(
        lambda rate: -float(_binomial(n, rate) @ tables @ _binomial(m, rate)),
        bounds=cell, method="bounded", options={"xatol": 1e-10},
    )  # fmt: skip
    return min(1.0, max(float(chances[best]), -float(found.fun)))


@lru_cache(maxsize=256)
def _over_grid(n: int) -> Any:
    return _binomial(n, np.linspace(0.0, 1.0, _GRID + 1))


def _binomial(n: int, rate: Any) -> Any:
    return stats.binom.pmf(np.arange(n + 1), n, np.asarray(rate)[..., None])


def rate_interval(count: int, n: int) -> Interval | None:
    """Return count / n with Wilson's 95 % interval; None for no trials. Raise ValueError for a count outside 0 to n."""
    if not 0 <= count <= n:
        raise ValueError(f"a count must lie between 0 and its {n} trials; found {count}")
    if n == 0:
        return None
    low, high = proportion.proportion_confint(count, n, alpha=1 - 0.95, method="wilson")
    return Interval(count / n, max(0.0, float(low)), min(1.0, float(high)))
