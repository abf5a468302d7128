"""The test `pooled` that older designs locked: one variance that the noise bank has a part in.

It is here so that the verdicts in their logs come out as they did; no design locks it any more. Another arm, or the
bank, enters the variance unless it contradicts that of the two arms (outside the central 90 % of F). That rule admits
what is small by chance: with a bank that is half the truth it makes 6 to 9 % false claims, and with five arms of
unequal noise 8 to 15 % (`benchmarks/verdicts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from studies.records.design_parts import Noise
from studies.statistics.comparison import Comparison, Source, with_variance
from studies.statistics.samples import constant

BANK_CAP: Final = 20
"""Most degrees of freedom that the noise bank counts for."""
_CONTRADICTS: Final = 0.10
"""A source of variance outside the central 1 - this of F is no measure of the two arms' noise."""


def pooled(
    control: Sequence[float], treatment: Sequence[float], *, others: Sequence[Sequence[float]], noise: Noise | None
) -> Comparison:
    """Return the comparison with one variance from all sources that do not contradict each other, or Welch's."""
    arms = [Source.of(control), Source.of(treatment)]
    return with_variance(control, treatment, arms, _pool(arms, others, noise), "pooled")


def _pool(arms: Sequence[Source], others: Sequence[Sequence[float]], noise: Noise | None) -> Source:
    """Return the two arms and what agrees with them: other arms first, each against the two, then the bank."""
    pool = own = arms[0] + arms[1]
    for values in others:
        if len(values) >= 2 and not constant(values) and _agrees(source := Source.of(values), own):
            pool = pool + source
    if noise is not None and _agrees(Source(noise.sd**2 * noise.df, noise.df), pool):
        weight = min(noise.df, BANK_CAP, pool.df)
        pool = pool + Source(noise.sd**2 * weight, weight)
    return pool


def _agrees(source: Source, pool: Source) -> bool:
    """Return whether the ratio of the variances lies in the central part of F."""
    from scipy import special  # see Comparison.tail

    below = float(special.fdtr(source.df, pool.df, source.variance / pool.variance))
    return _CONTRADICTS / 2 <= below <= 1 - _CONTRADICTS / 2
