"""Treatment against control: an estimate, its standard error and degrees of freedom, by the test the design locked.

Promises. `compare` names the test it really made, and why, where that is not the locked one: the rule for it is fixed
here and in the lock, and looks at variances only, never at the difference of the means.

- `welch`: two variances (Welch 1947; Satterthwaite 1946).
- `common`: one variance, of all arms of the study. If one of the two arms is spread more widely than all others (F,
  upper 15 %), Welch's test is made instead.
- `paired`: differences of runs with the same seed (Student); seeds that only one arm has are left out, and with fewer
  than two pairs Welch's test is made instead.
- `contrast`: a weighted sum of several arms' means, by Welch's way (`studies.statistics.contrast`).
- `pooled`: the test that older designs locked (`studies.statistics.pooled`).

What the noise bank says never enters a test of today: it sizes designs. `benchmarks/verdicts.py` prints what each test
does where its assumptions do not hold.

Does not know. Whether runs are independent, and what the values are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from studies.records.design_parts import Noise
from studies.statistics.samples import SAME, constant, t_quantile

Test = Literal["welch", "common", "paired", "pooled", "contrast"]

_TOO_WIDE: Final = 0.15
"""Upper share of F beyond which an arm's own variance is used and not the pool's."""


@dataclass(frozen=True, slots=True)
class Runs:
    """One arm's values by run, and each run's seed."""

    values: Mapping[str, float]
    seeds: Mapping[str, int]

    @property
    def numbers(self) -> list[float]:
        """The values alone, in a fixed order."""
        return [self.values[run] for run in sorted(self.values)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two means with all that an interval or a p-value at any level needs."""

    test: Test
    estimate: float
    error: float
    """Standard error of the estimate."""
    df: float
    sd: float | None = None
    """The common standard deviation used; None where there is none."""
    n_control: int = 0
    n_treatment: int = 0
    instead: str = ""
    """Why it is not the locked test, as a clause; empty where it is."""

    @property
    def t(self) -> float:
        """The test statistic."""
        return self.estimate / self.error

    @property
    def p(self) -> float:
        """Two-sided p-value of no difference."""
        return 2 * self.tail(abs(self.t))

    def tail(self, t: float) -> float:
        """Return the probability of a statistic above `t` around the true difference."""
        from scipy import special  # takes a while to import, which a command that judges nothing should not wait for

        return float(special.stdtr(self.df, -t))

    def interval(self, level: float) -> tuple[float, float]:
        """Return the two-sided interval of this level."""
        return self.within(t_quantile((1 + level) / 2, self.df))

    def within(self, critical: float) -> tuple[float, float]:
        """Return the interval of `critical` standard errors to both sides."""
        half = critical * self.error
        return self.estimate - half, self.estimate + half


def compare(
    test: Test, control: Runs, treatment: Runs, *, others: Sequence[Sequence[float]] = (), noise: Noise | None = None
) -> Comparison | None:
    """Return treatment minus control by `test`; None when that test does not exist for want of variance.

    `others` are the values of the design's other arms, for `common` and `pooled`; `noise` is the bank's word, for
    `pooled` alone. Raise ValueError for an arm with fewer than two values.
    """
    a, b = control.numbers, treatment.numbers
    if min(len(a), len(b)) < 2:
        raise ValueError(f"a comparison needs 2 values in each arm; found {len(a)} and {len(b)}")
    if test == "paired":
        return paired(control, treatment)
    if constant(a) and constant(b):
        return None
    if test == "pooled":
        from studies.statistics.pooled import pooled  # it is made of this module's parts

        return pooled(a, b, others=others, noise=noise)
    return common(a, b, others) if test == "common" else welch(a, b)


def welch(control: Sequence[float], treatment: Sequence[float], *, instead: str = "") -> Comparison:
    """Return Welch's comparison. At least one of the arms must vary."""
    a, b = _variance(control) / len(control), _variance(treatment) / len(treatment)
    df = (a + b) ** 2 / (a**2 / (len(control) - 1) + b**2 / (len(treatment) - 1))
    return Comparison(
        "welch", fmean(treatment) - fmean(control), math.sqrt(a + b), df, None, len(control), len(treatment), instead
    )


def common(control: Sequence[float], treatment: Sequence[float], others: Sequence[Sequence[float]]) -> Comparison:
    """Return the comparison with the variance of all arms; Welch's where one of the two is much wider than the rest.

    No arm is left out of the variance for its spread: a test that admits what agrees admits what is small by chance
    (`benchmarks/verdicts.py` compares both).
    """
    arms = [Source.of(values) for values in (control, treatment)]
    pool = sum((Source.of(values) for values in others if len(values) >= 2), arms[0] + arms[1])
    return with_variance(control, treatment, arms, pool, "common")


def with_variance(
    control: Sequence[float], treatment: Sequence[float], arms: Sequence[Source], pool: Source, test: Test
) -> Comparison:
    """Return the comparison of two arms by a pool's variance; Welch's where an arm's own contradicts the rest of it."""
    for name, arm in zip(("control", "treatment"), arms, strict=True):
        if too_wide(arm, pool):
            why = f"the spread of the {name} arm contradicts the pooled one"
            return welch(control, treatment, instead=why)
    error = math.sqrt(pool.variance * (1 / len(control) + 1 / len(treatment)))
    estimate = fmean(treatment) - fmean(control)
    return Comparison(test, estimate, error, pool.df, math.sqrt(pool.variance), len(control), len(treatment))


def paired(control: Runs, treatment: Runs) -> Comparison | None:
    """Return the comparison of runs that share a seed; Welch's with fewer than two pairs; None where no pair differs.

    With n pairs it has n - 1 degrees of freedom, so that it pays when the seeds explain much of the spread: a
    correlation of 0.5 halves the variance of the difference.
    """
    pairs = differences(control, treatment)
    if len(pairs) < 2:
        why = f"the arms share {len(pairs)} seed{'' if len(pairs) == 1 else 's'}, and pairs need 2"
        a, b = control.numbers, treatment.numbers
        return None if constant(a) and constant(b) else welch(a, b, instead=why)
    if constant(pairs):
        return None
    error = math.sqrt(_variance(pairs) / len(pairs))
    return Comparison("paired", fmean(pairs), error, len(pairs) - 1, None, len(pairs), len(pairs))


def differences(control: Runs, treatment: Runs) -> list[float]:
    """Return treatment minus control for each seed that both arms have, in the order of the seeds."""
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
        """Return what values say of their variance."""
        return cls(_variance(values) * (len(values) - 1), len(values) - 1)

    @property
    def variance(self) -> float:
        """The variance that it amounts to."""
        return self.squares / self.df

    def __add__(self, other: Source) -> Source:
        return Source(self.squares + other.squares, self.df + other.df)

    def __sub__(self, other: Source) -> Source:
        return Source(max(0.0, self.squares - other.squares), self.df - other.df)


def too_wide(arm: Source, pool: Source) -> bool:
    """Return whether the arm's variance is too far above that of the rest of the pool."""
    from scipy import special  # see Comparison.tail

    rest = pool - arm
    if rest.squares <= SAME**2:
        return True
    return float(special.fdtrc(arm.df, rest.df, arm.variance / rest.variance)) < _TOO_WIDE


def _variance(values: Sequence[float]) -> float:
    """Return the sample variance; exactly 0 where no value differs, which rounding would not give."""
    if constant(values):
        return 0.0
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
