"""Rates: how often runs collapse, or claims hold, with intervals that are honest for few runs.

Promises. Wilson's interval (Wilson 1927, JASA 22) for reports, Jeffreys' (the posterior of a Beta(1/2, 1/2) prior)
where a prior is wanted; a difference of rates has Fisher's exact p and Newcombe's interval (1998, Statistics in
Medicine 17).

Does not know. What was counted. With five runs an arm a difference of 5 % and 40 % is seen in one of fourteen studies
only: a report shows rates, it rests no claim on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from studies.statistics.samples import Interval


@dataclass(frozen=True, slots=True)
class RateDifference:
    """The second rate minus the first."""

    estimate: float
    low: float
    high: float
    p: float
    """Fisher's exact two-sided p of equal rates."""


def rate_interval(
    count: int, n: int, *, level: float = 0.95, by: Literal["wilson", "jeffreys"] = "wilson"
) -> Interval | None:
    """Return count / n with its interval; None for no trials. Raise ValueError for a count outside 0 to n."""
    _check(count, n)
    if n == 0:
        return None
    from statsmodels.stats.proportion import proportion_confint  # takes a second, which not every command should wait

    low, high = proportion_confint(count, n, alpha=1 - level, method=by)
    return Interval(count / n, max(0.0, float(low)), min(1.0, float(high)))


def rate_difference(
    control: tuple[int, int], treatment: tuple[int, int], *, level: float = 0.95
) -> RateDifference | None:
    """Return treatment's rate minus control's, each given as (count, n); None when either has no trials."""
    _check(*control)
    _check(*treatment)
    if not control[1] or not treatment[1]:
        return None
    from scipy.stats import fisher_exact
    from statsmodels.stats.proportion import confint_proportions_2indep  # see rate_interval

    (a, n), (b, m) = control, treatment
    low, high = confint_proportions_2indep(b, m, a, n, compare="diff", method="newcomb", alpha=1 - level)
    p = fisher_exact([[a, n - a], [b, m - b]]).pvalue
    return RateDifference(b / m - a / n, float(low), float(high), float(p))


def _check(count: int, n: int) -> None:
    if not 0 <= count <= n:
        raise ValueError(f"a count must lie between 0 and its {n} trials; found {count}")
