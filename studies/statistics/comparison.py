"""Comparison of arms: estimates, tests, contrasts, equivalence, multiplicity.

Every function is pure in its numbers and returns None for a quantity that does not exist.
- Tests: `welch` (Welch 1947; Satterthwaite 1946); `common`, one variance of all arms, replaced by Welch where one of
  the two arms is spread more widely (F, upper 15 %); `paired` by seed (Student), Welch with fewer than two pairs;
  `contrast`, sum c_i m_i with variance sum v_i, v_i = c_i^2 s_i^2 / n_i, and df = (sum v_i)^2 / sum(v_i^2 / (n_i - 1)).
  A switch of test looks at variances only, never at means. `pooled` (one variance, shared with the noise bank) is kept
  for the verdicts of older logs: it makes 6 to 15 % false claims.
- Multiplicity: Dunnett among the arms of a family, Benjamini-Hochberg 1995 among m families by their smallest corrected
  p; the R chosen families are judged at R alpha / m (Benjamini & Bogomolov 2014, JRSS B 76).
- Equivalence: two one-sided tests (Schuirmann 1987) at the look's own level, within the margin fixed before data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from typing import Any, Final, Literal

from studies.records.procedure import Noise
from studies.records.verdict import Equivalence
from studies.statistics import multitest, np, special, stats

SAME: Final = 1e-12
"""Spread below which values count as equal: far under one episode in any evaluation, above float noise."""
Test = Literal["welch", "common", "paired", "pooled", "contrast"]
_TOO_WIDE: Final = 0.15
"""Upper share of F beyond which an arm's own variance is used and not the pool's."""
_POINTS: Final = 1024
"""Points of Halton's sequence over the sample variances at which power is averaged: a third of a percent of it."""
BANK_CAP: Final = 20
"""Most degrees of freedom that the noise bank counts for."""
_CONTRADICTS: Final = 0.10
"""A source of variance outside the central 1 - this of F is no measure of the two arms' noise."""


def effective_level(families: Sequence[float], alpha: float) -> float:
    """Return the level at which every claim is judged: max(1, R) alpha / m for m families with these p-values."""
    if not families:
        raise ValueError("an effective level needs at least one family; found none")
    if len(families) == 1:
        return alpha
    rejections = int(multitest.multipletests(list(families), alpha=alpha, method="fdr_bh")[0].sum())
    return max(1, rejections) * alpha / len(families)


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a mean or a rate."""

    mean: float
    low: float
    high: float


def is_constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= SAME


def spread(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return 0.0 if is_constant(values) else stdev(values)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean with its Student-t interval of 95 %; None for fewer than two values."""
    if (sd := spread(values)) is None:
        return None
    mean, half = fmean(values), float(stats.t.ppf(0.975, len(values) - 1)) * sd / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def spread_interval(squares: float, df: int) -> tuple[float, float]:
    """Return the 95 % interval of the standard deviation behind a sum of squares with `df` degrees, if normal."""
    low, high = (math.sqrt(squares / float(special.chdtri(df, share))) for share in (0.025, 0.975))
    return low, high


@dataclass(frozen=True, slots=True)
class Runs:
    """One arm's values by run, and each run's seed."""

    values: Mapping[str, float]
    seeds: Mapping[str, int]

    @property
    def numbers(self) -> list[float]:
        return [self.values[run] for run in sorted(self.values)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two means with all that an interval or a p-value at any level needs."""

    test: Test
    estimate: float
    error: float
    df: float
    sd: float | None = None
    """The common standard deviation used; None where there is none."""
    n_control: int = 0
    n_treatment: int = 0
    instead: str = ""
    """Why it is not the locked test, as a clause; empty where it is."""

    @property
    def t(self) -> float:
        return self.estimate / self.error

    @property
    def p(self) -> float:
        return 2 * self.tail(abs(self.t))

    def tail(self, t: float) -> float:
        """Return the probability of a statistic above `t` around the true difference."""
        return float(special.stdtr(self.df, -t))

    def interval(self, level: float) -> tuple[float, float]:
        return self.within(float(stats.t.ppf((1 + level) / 2, self.df)))

    def within(self, critical: float) -> tuple[float, float]:
        half = critical * self.error
        return self.estimate - half, self.estimate + half


def compare(
    test: Test, control: Runs, treatment: Runs, *, others: Sequence[Sequence[float]] = (), noise: Noise | None = None
) -> Comparison | None:
    """Return treatment minus control by `test`; None without variance. `others` are the other arms' values."""
    a, b = control.numbers, treatment.numbers
    if min(len(a), len(b)) < 2:
        raise ValueError(f"a comparison needs 2 values in each arm; found {len(a)} and {len(b)}")
    if test == "paired":
        return paired_test(control, treatment)
    if is_constant(a) and is_constant(b):
        return None
    if test == "welch":
        return welch(a, b)
    arms = [Source.of(values) for values in (a, b)]
    if test == "common":
        # No arm is left out of the variance for its spread: what admits what agrees admits what is small by chance.
        pool = sum((Source.of(values) for values in others if len(values) >= 2), arms[0] + arms[1])
    else:
        pool = _pool(arms, others, noise)
    for name, arm in zip(("control", "treatment"), arms, strict=True):
        rest = pool - arm
        narrow = rest.squares <= SAME**2
        if narrow or float(special.fdtrc(arm.df, rest.df, arm.variance / rest.variance)) < _TOO_WIDE:
            return welch(a, b, instead=f"the spread of the {name} arm contradicts the pooled one")
    error = math.sqrt(pool.variance * (1 / len(a) + 1 / len(b)))
    return Comparison(test, fmean(b) - fmean(a), error, pool.df, math.sqrt(pool.variance), len(a), len(b))


def welch(control: Sequence[float], treatment: Sequence[float], *, instead: str = "") -> Comparison:
    a, b = _variance(control) / len(control), _variance(treatment) / len(treatment)
    df = (a + b) ** 2 / (a**2 / (len(control) - 1) + b**2 / (len(treatment) - 1))
    return Comparison(
        "welch", fmean(treatment) - fmean(control), math.sqrt(a + b), df, None, len(control), len(treatment), instead
    )


def paired_test(control: Runs, treatment: Runs) -> Comparison | None:
    """Return the comparison of runs that share a seed; Welch's with fewer than two pairs."""
    pairs = differences(control, treatment)
    if len(pairs) < 2:
        why = f"the arms share {len(pairs)} seed{'' if len(pairs) == 1 else 's'}, and pairs need 2"
        a, b = control.numbers, treatment.numbers
        return None if is_constant(a) and is_constant(b) else welch(a, b, instead=why)
    if is_constant(pairs):
        return None
    error = math.sqrt(_variance(pairs) / len(pairs))
    return Comparison("paired", fmean(pairs), error, len(pairs) - 1, None, len(pairs), len(pairs))


def differences(control: Runs, treatment: Runs) -> list[float]:
    a = {control.seeds[run]: value for run, value in control.values.items()}
    b = {treatment.seeds[run]: value for run, value in treatment.values.items()}
    return [b[seed] - a[seed] for seed in sorted(a.keys() & b.keys())]


@dataclass(frozen=True, slots=True)
class Source:
    """A sum of squares with its degrees of freedom."""

    squares: float
    df: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Source:
        return cls(_variance(values) * (len(values) - 1), len(values) - 1)

    @property
    def variance(self) -> float:
        return self.squares / self.df

    def __add__(self, other: Source) -> Source:
        return Source(self.squares + other.squares, self.df + other.df)

    def __sub__(self, other: Source) -> Source:
        return Source(max(0.0, self.squares - other.squares), self.df - other.df)


def _variance(values: Sequence[float]) -> float:
    """Return the sample variance; exactly 0 where no value differs, which rounding would not give."""
    if is_constant(values):
        return 0.0
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def contrast(arms: Sequence[Sequence[float]], weights: Sequence[float]) -> Comparison | None:
    """Return the weighted sum of the arms' means with its error; None where no arm of any weight varies."""
    if len(arms) != len(weights):
        raise ValueError(f"expected a weight for each of {len(arms)} arms; found {len(weights)}")
    if (least := min(map(len, arms))) < 2:
        raise ValueError(f"a contrast needs 2 values in each arm; found {least}")
    estimate = math.fsum(weight * fmean(values) for weight, values in zip(weights, arms, strict=True))
    spreads = (spread(values) or 0.0 for values in arms)  # exactly 0 where no value differs
    parts = [w**2 * sd**2 / len(values) for w, sd, values in zip(weights, spreads, arms, strict=True)]
    total = math.fsum(parts)
    if total <= 0:
        return None
    df = total**2 / math.fsum(part**2 / (len(values) - 1) for part, values in zip(parts, arms, strict=True))
    return Comparison("contrast", estimate, math.sqrt(total), df, None, len(arms[0]), len(arms[-1]))


@lru_cache(maxsize=1024)
def contrast_limits(weights: tuple[float, ...], seeds: int, level: float) -> Any:
    """Return, at each point, what a contrast has to exceed in its true standard errors."""
    free = seeds - 1
    counted = [weight for weight in weights if abs(weight) > 1e-9]
    shares = stats.qmc.Halton(len(counted), scramble=False).random(_POINTS + 1)[1:].T  # the first of them is 0
    parts = np.square(counted)[:, None] * special.chdtri(free, 1 - shares) / free
    total = parts.sum(axis=0)
    df = total**2 / (parts**2 / free).sum(axis=0)
    return special.stdtrit(df, 1 - level / 2) * np.sqrt(total / sum(weight * weight for weight in counted))


def two_one_sided(found: Comparison, margin: float, alpha: float) -> Equivalence:
    """Return the interval of level 1 - 2 alpha and the larger of the two one-sided p-values."""
    low, high = found.interval(1 - 2 * alpha)
    p = max(found.tail((found.estimate + margin) / found.error), found.tail((margin - found.estimate) / found.error))
    return Equivalence(margin=margin, low=low, high=high, p=p)


def is_equivalent(found: Equivalence) -> bool:
    return -found.margin < found.low and found.high < found.margin


def _pool(arms: Sequence[Source], others: Sequence[Sequence[float]], noise: Noise | None) -> Source:
    def agrees(source: Source, pool: Source) -> bool:
        below = float(special.fdtr(source.df, pool.df, source.variance / pool.variance))
        return _CONTRADICTS / 2 <= below <= 1 - _CONTRADICTS / 2

    pool = own = arms[0] + arms[1]
    for values in others:
        if len(values) >= 2 and not is_constant(values) and agrees(source := Source.of(values), own):
            pool = pool + source
    if noise is not None and agrees(Source(noise.sd**2 * noise.df, noise.df), pool):
        weight = min(noise.df, BANK_CAP, pool.df)
        pool = pool + Source(noise.sd**2 * weight, weight)
    return pool
