"""What a design can see: the power of some seeds, and the seeds that an effect needs.

By `studies.statistics.power`: a lower bound, of the last look alone, averaged over what the bank's degrees of freedom
leave open of the noise. Two arms are compared by Welch's test, more by the variance of all of them; paired where the
correlation of runs with one seed is surely positive, by its lower limit, and the paired test sees more on as many runs.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Literal

from research.proposals.actions import LEAST_SEEDS
from studies.records.alpha import ALPHA
from studies.records.procedure import InterimAnalysis, Noise
from studies.statistics.power import FIRST_ANALYSIS, plan_analyses

_OfMeans = Literal["welch", "common", "paired", "contrast"]
Test = _OfMeans | Literal["boschloo"]

MOST_SEEDS = 20
"""Most seeds of an arm: beyond, another evaluation or a larger effect is the better buy."""
_LEAST_PAIRS = 20
"""Fewest pairs of runs behind a correlation that a test rests on."""
_SURE = 1.6449
"""Normal quantile of the correlation's one-sided 95 % limit."""
_FIFTHS = (-1.2816, -0.5244, 0.0, 0.5244, 1.2816)
"""Normal quantiles of five equally likely values, in standard errors."""
RATE_DF = 1000
"""Degrees of freedom of a spread that follows from its rate: as good as all."""
_FINE = 1000
"""Effects are offered in thousandths: of 1 for a share, of 1,000 for a range of some thousands."""


@dataclass(frozen=True, slots=True)
class PowerAnalysis:
    """What a comparison can see, by `noise`."""

    noise: Noise
    arms: int
    families: int
    """Variables that claims are about."""
    compared: int
    """Treatments of the variable that has most."""
    promised: float
    """The power that is promised."""
    most_analyses: int
    span: float = 1.0
    """The widest difference that two runs can have."""
    level: float = ALPHA
    """The whole two-sided level of its claims of a difference."""
    alike: float | None = None
    """The level of each claim of no difference; None for `level`."""
    weights: tuple[float, ...] = ()
    """Of an interaction or a trend, what the mean of each arm counts in its effect; empty for differences."""

    def analyses(self, seeds: int) -> tuple[InterimAnalysis, ...]:
        return plan_analyses(seeds, self.most_analyses, self.level, self.alike)

    def test(self, seeds: int, effect: float) -> Test:
        unpaired = self._unpaired
        paired = _compute_power(self, seeds, effect, "paired") > _compute_power(self, seeds, effect, unpaired)
        return "paired" if paired else unpaired

    @property
    def shares_seeds(self) -> bool:
        """Whether arms may share seeds: not where that surely makes them differ by more."""
        return _correlation_limit(self.noise, _SURE) >= 0

    def power(self, seeds: int, effect: float) -> float:
        """Return the probability of a claim in the right direction at the end, if `effect` is the true difference."""
        return max(_compute_power(self, seeds, effect, self._unpaired), _compute_power(self, seeds, effect, "paired"))

    def detects(self, seeds: int, effect: float) -> bool:
        return self.power(seeds, effect) >= self.promised

    def seeds_needed(self, effect: float) -> int | None:
        """Return the fewest seeds that keep the promise; None where `MOST_SEEDS` are too few."""
        return next((seeds for seeds in range(LEAST_SEEDS, MOST_SEEDS + 1) if self.detects(seeds, effect)), None)

    def min_detectable_effect(self, seeds: int) -> float | None:
        """Return the smallest effect, as finely as effects are offered, that keeps the promise; None for none."""
        parts = _FINE / 10.0 ** math.floor(math.log10(self.span))
        low, high = 0, math.ceil(self.span * parts) - 1
        if not self.detects(seeds, high / parts):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.detects(seeds, middle / parts) else (middle, high)
        return high / parts

    @property
    def _unpaired(self) -> _OfMeans:
        if self.weights:
            return "contrast"
        return "welch" if self.arms == 2 else "common"


@dataclass(frozen=True, slots=True)
class RatePower(PowerAnalysis):
    """What a comparison of rates of runs can see, by an exact test: the locked rule at its strictest. The control's
    rate is `rate`, a treatment's as far from it as the effect, on the side that has room."""

    rate: float = 0.5

    def test(self, seeds: int, effect: float) -> Test:
        return "boschloo"

    def power(self, seeds: int, effect: float) -> float:
        from studies.statistics.proportions import power_of_rates

        alpha = self._share(self.analyses(seeds)[-1].alpha)
        return 0.0 if effect >= 1 else power_of_rates(*self._rates(effect), seeds, alpha=alpha)

    def seeds_needed(self, effect: float) -> int | None:
        """Return the fewest seeds that keep the promise; None where the most that are tried do not."""
        from studies.statistics import proportions

        alone = proportions.seeds_for_rates(
            *self._rates(effect), target_power=self.promised, alpha=self._share(self.level)
        )
        if alone is None or self.most_analyses == 1:
            return alone
        return next((seeds for seeds in range(alone, proportions.MOST_SEEDS + 1) if self.detects(seeds, effect)), None)

    def _share(self, alpha: float) -> float:
        return alpha / (self.families * self.compared)

    def _rates(self, effect: float) -> tuple[float, float]:
        if self.rate >= effect:
            return self.rate, self.rate - effect
        return self.rate, min(1.0, self.rate + effect)


def rate_noise(rate: float, episodes: int, basis: str) -> Noise:
    """Return the spread of runs of which each counts 1 or 0: that of a rate, which nobody has to measure."""
    return Noise(sd=math.sqrt(rate * (1 - rate)), df=RATE_DF, episodes=episodes, basis=basis)


@lru_cache(maxsize=8192)
def _compute_power(analysis: PowerAnalysis, seeds: int, effect: float, test: _OfMeans) -> float:
    from studies.statistics.power import PowerDesign, assured_power

    noise, correlations = analysis.noise, [0.0]
    if test == "paired":
        if least_correlation(noise) <= 0 or analysis.weights:
            return 0.0
        correlations = [_correlation_limit(noise, errors) for errors in _FIFTHS]
    last, counts = analysis.analyses(seeds)[-1], (analysis.arms, analysis.compared)

    def seen(kept: int) -> float:
        if kept < FIRST_ANALYSIS:
            return 0.0
        looks = (InterimAnalysis(seeds=kept, alpha=last.alpha),)
        shapes = (PowerDesign(test, looks, *counts, analysis.families, one, analysis.weights) for one in correlations)
        return fmean(assured_power(shape, effect, noise) for shape in shapes)

    more, lost = math.modf(seeds * noise.collapse_rate)  # in so many of 1 studies one more is lost
    fewer = seen(seeds - int(lost) - 1) if more else 0.0
    return (1 - more) * seen(seeds - int(lost)) + more * fewer


def least_correlation(noise: Noise) -> float:
    """Return the correlation's one-sided lower 95 % limit; 0 where too little is known."""
    return _correlation_limit(noise, -_SURE)


def _correlation_limit(noise: Noise, errors: float) -> float:
    """Return the correlation, so many standard errors off (Fisher's z); 0 where too little is known."""
    if noise.correlation is None or noise.pairs < _LEAST_PAIRS:
        return 0.0
    inside = max(-0.999, min(0.999, noise.correlation))
    return math.tanh(math.atanh(inside) + errors / math.sqrt(noise.pairs - 3))
