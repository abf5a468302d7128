"""What a comparison can see: the power of a number of seeds, the smallest effect seen, the seeds an effect needs.

Everything follows from the noise bank's estimate, by `studies.statistics.power`: a lower bound, of the last look
alone, averaged over what the bank's degrees of freedom leave open of the noise. The bank sizes designs and never enters
a test. Every run has a seed of its own, and two arms are compared by Welch's test, more by the variance of all of them.
Seeds are shared and paired only where the lower limit of their correlation is above the break-even: where the paired
test then sees more than the other one on as many runs. Of trainings that collapse as often as the bank's did, only
those that are left see anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from research.design.requirements import METRIC_RANGE
from research.proposals.actions import LEAST_SEEDS
from studies.records.design_parts import Look, Noise

Test = Literal["welch", "common", "paired"]

MOST_SEEDS = 20
"""Most seeds of an arm: beyond, another evaluation or a larger effect is the better buy."""
ALPHA = 0.05
FIRST_LOOK = 3
"""Fewest seeds of an arm that are looked at: where trainings collapse, a look at 2 brings nearly all false claims."""
_LEAST_PAIRS = 20
"""Fewest pairs of runs behind a correlation that seeds are shared for."""
_SURE = 1.6449
"""Normal quantile of the correlation's one-sided 95 % limit."""
_UNIT = 1000
"""Effects are offered in whole thousandths."""


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
    most_looks: int

    def looks(self, seeds: int) -> tuple[Look, ...]:
        """Return when so many seeds are looked at."""
        return planned_looks(seeds, self.most_looks)

    def test(self, seeds: int, effect: float) -> Test:
        """Return the test with the greater power."""
        unpaired = self._unpaired
        return "paired" if self._power(seeds, effect, "paired") > self._power(seeds, effect, unpaired) else unpaired

    def power(self, seeds: int, effect: float) -> float:
        """Return the probability of a claim in the right direction at the end, if `effect` is the true difference."""
        return max(self._power(seeds, effect, self._unpaired), self._power(seeds, effect, "paired"))

    def detects(self, seeds: int, effect: float) -> bool:
        """Return whether the promise is kept."""
        return self.power(seeds, effect) >= self.promised

    def seeds_needed(self, effect: float) -> int | None:
        """Return the fewest seeds that keep the promise; None where `MOST_SEEDS` are too few."""
        return next((seeds for seeds in range(LEAST_SEEDS, MOST_SEEDS + 1) if self.detects(seeds, effect)), None)

    def detectable(self, seeds: int) -> float | None:
        """Return the smallest effect, in whole thousandths, that keeps the promise; None where there is none."""
        low, high = 0, int(METRIC_RANGE * _UNIT) - 1
        if not self.detects(seeds, high / _UNIT):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.detects(seeds, middle / _UNIT) else (middle, high)
        return high / _UNIT

    @property
    def _unpaired(self) -> Test:
        return "welch" if self.arms == 2 else "common"

    def _power(self, seeds: int, effect: float, test: Test) -> float:
        return _power(self, seeds, effect, test)


@lru_cache(maxsize=8192)
def _power(analysis: PowerAnalysis, seeds: int, effect: float, test: Test) -> float:
    """Return the power by one test, computed once: sizing and its alternatives ask the same again and again."""
    from studies.statistics.power import PowerDesign, power

    noise, known = analysis.noise, least_correlation(analysis.noise)
    if test == "paired" and known <= 0:
        return 0.0
    last = analysis.looks(seeds)[-1]
    kept = math.floor(seeds * (1 - noise.collapse_rate) + 1e-9)
    if kept < FIRST_LOOK:
        return 0.0
    looked = PowerDesign(
        test, (Look(seeds=kept, alpha=last.alpha),), analysis.arms, analysis.compared, analysis.families, known
    )
    return power(looked, effect, noise.sd, sd_df=noise.df)


@lru_cache(maxsize=256)
def planned_looks(seeds: int, most: int) -> tuple[Look, ...]:
    """Return up to `most` looks at `seeds` seeds with their levels, from half of them on; up to 5 seeds two are enough.

    An earlier look has next to nothing to spend, and never decides.
    """
    from studies.statistics.looks import spend

    first = max(FIRST_LOOK, math.ceil(seeds / 2))
    count = min(most, 2 if seeds <= 5 else most)
    if count == 1 or seeds <= FIRST_LOOK:
        return (Look(seeds=seeds, alpha=ALPHA),)
    return spend(sorted({first + round((seeds - first) * look / (count - 1)) for look in range(count)}), ALPHA)


def least_correlation(noise: Noise) -> float:
    """Return the correlation's one-sided lower 95 % limit (Fisher's z); 0 where too little is known."""
    if noise.correlation is None or noise.pairs < _LEAST_PAIRS:
        return 0.0
    inside = max(-0.999, min(0.999, noise.correlation))
    return math.tanh(math.atanh(inside) - _SURE / math.sqrt(noise.pairs - 3))
