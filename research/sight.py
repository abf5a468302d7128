"""What a comparison can see: the power of a number of seeds, the smallest effect seen, the seeds an effect needs.

Everything follows from the bank's word on the noise, by `studies.statistics.power`: a lower bound, of the last look
alone, averaged over what the bank's degrees of freedom leave open of the noise. Seeds are paired where their
correlation is known to help, by the lower end of its 80 % interval; else the variance is pooled with the bank's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from research.planner.actions import LEAST_SEEDS
from research.terms import METRIC_RANGE
from studies.procedure import Look, Noise

Test = Literal["pooled", "paired"]

MOST_SEEDS = 20
"""Most seeds of an arm: beyond, another evaluation or a larger effect is the better buy."""
ALPHA = 0.05
_LEAST_LOOKED_AT = 4
"""Fewest seeds that are looked at more than once: before, a look has hardly any degrees of freedom."""
_UNIT = 1000
"""Effects are offered in whole thousandths."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a comparison can see, by `noise`."""

    noise: Noise
    arms: int
    families: int
    """Variables that claims are about."""
    compared: int
    """Treatments of the variable that has most."""
    promised: float
    """The power that is promised."""
    most_looks: int

    def looks(self, seeds: int) -> tuple[Look, ...]:
        """Return when so many seeds are looked at."""
        return planned_looks(seeds, self.most_looks)

    def test(self, seeds: int, effect: float) -> Test:
        """Return the test with the greater power."""
        return "paired" if self._power(seeds, effect, "paired") > self._power(seeds, effect, "pooled") else "pooled"

    def power(self, seeds: int, effect: float) -> float:
        """Return the probability of a claim in the right direction at the end, if `effect` is the true difference."""
        return max(self._power(seeds, effect, "pooled"), self._power(seeds, effect, "paired"))

    def sees(self, seeds: int, effect: float) -> bool:
        """Return whether the promise is kept."""
        return self.power(seeds, effect) >= self.promised

    def seeds_needed(self, effect: float) -> int | None:
        """Return the fewest seeds that keep the promise; None where `MOST_SEEDS` are too few."""
        return next((seeds for seeds in range(LEAST_SEEDS, MOST_SEEDS + 1) if self.sees(seeds, effect)), None)

    def detectable(self, seeds: int) -> float | None:
        """Return the smallest effect, in whole thousandths, that keeps the promise; None where there is none."""
        low, high = 0, int(METRIC_RANGE * _UNIT) - 1
        if not self.sees(seeds, high / _UNIT):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.sees(seeds, middle / _UNIT) else (middle, high)
        return high / _UNIT

    def _power(self, seeds: int, effect: float, test: Test) -> float:
        return _power(self, seeds, effect, test)


@lru_cache(maxsize=8192)
def _power(sight: Sight, seeds: int, effect: float, test: Test) -> float:
    """Return the power by one test, computed once: sizing and its alternatives ask the same again and again."""
    from studies.statistics.power import Shape, power

    noise, known = sight.noise, sure_correlation(sight.noise)
    if test == "paired" and known <= 0:
        return 0.0
    looked = Shape(test, sight.looks(seeds), sight.arms, sight.compared, sight.families, noise.df, known)
    return power(looked, effect, noise.sd, sd_df=noise.df)


@lru_cache(maxsize=256)
def planned_looks(seeds: int, most: int) -> tuple[Look, ...]:
    """Return up to `most` looks at `seeds` seeds, evenly spread, with their levels."""
    from studies.statistics.looks import spend

    if most == 1 or seeds < _LEAST_LOOKED_AT:
        return (Look(seeds=seeds, alpha=ALPHA),)
    return spend(sorted({max(2, round(seeds * look / most)) for look in range(1, most + 1)}), ALPHA)


def sure_correlation(noise: Noise) -> float:
    """Return the lower end of the correlation's one-sided 90 % interval (Fisher's z); 0 where nothing is known."""
    if noise.correlation is None or noise.pairs < 4:
        return 0.0
    inside = max(-0.999, min(0.999, noise.correlation))
    return math.tanh(math.atanh(inside) - 1.2816 / math.sqrt(noise.pairs - 3))
