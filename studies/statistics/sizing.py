"""When data are looked at, and how many seeds a pilot leads to.

A design whose noise nobody knew makes its first runs and is sized by them (an internal pilot: Wittes & Brittain 1990,
Stat Med 9:65), blind to what is compared: arms are not told apart, less what the promised effect would add to their
variance (Gould & Shih 1992, Commun Stat 21:2833). The verdict's test takes all runs, those of the pilot too: sized so,
Welch's keeps its level (`benchmarks/` measures it). With the variance within arms it would not: 6 to 7 % false claims.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import variance
from typing import Final

from studies.records.alpha import ALPHA
from studies.records.design import Design
from studies.records.procedure import InterimAnalysis, Noise, Sizing
from studies.statistics.power import assured_power, power_design
from studies.statistics.sequential import spend_alpha

FIRST_ANALYSIS: Final = 3
"""Fewest seeds of an arm that are looked at: where trainings collapse, a look at 2 brings nearly all false claims."""
_LEAST_SHARE: Final = 0.1
"""Of the variance of two arms' runs, what is left to chance at the least, however large the effect."""
_NOTHING: Final = 1e-12
"""Variance below which runs do not vary."""


@lru_cache(maxsize=256)
def plan_analyses(
    seeds: int, most: int, level: float = ALPHA, alike: float | None = None, pilot: int | None = None
) -> tuple[InterimAnalysis, ...]:
    """Return up to `most` looks at `seeds` seeds with their levels, from half of them on; up to 5 seeds two are enough.

    `level` is that of all looks together, `alike` that of a claim of no difference with a ledger of its own. After a
    `pilot` looks begin at a third: a larger effect than was promised makes its spread seem too large, and is seen
    early.
    """
    begin = max(FIRST_ANALYSIS, math.ceil(seeds / 2)) if pilot is None else max(pilot, math.ceil(seeds / 3))
    count = min(most, 2 if seeds <= 5 else most)
    if count == 1 or seeds <= begin:
        return (InterimAnalysis(seeds=seeds, alpha=level, equivalence=alike),)
    stops = sorted({begin + round((seeds - begin) * look / (count - 1)) for look in range(count)})
    analyses = spend_alpha(stops, level)
    if alike is None:
        return analyses
    levels = [look.alpha for look in spend_alpha(stops, alike)]
    return tuple(look.model_copy(update={"equivalence": own}) for look, own in zip(analyses, levels, strict=True))


def widest(contrasts: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the weights of the contrast that is hardest to see: the one of the largest variance."""
    return max(contrasts, key=lambda weights: math.fsum(weight * weight for weight in weights))


def blinded_variance(
    arms: Sequence[Sequence[float]], effect: float, weights: Sequence[float] = ()
) -> tuple[float, int]:
    """Return the variance between runs of one arm, as far as it is told without comparing arms, and its df, 0 where too
    few runs say nothing. `effect` is what is looked for: of one arm, of a contrast with `weights`, or 0."""
    known = [values for values in arms if values]
    sizes, count = [len(values) for values in known], sum(map(len, known))
    df = count - len(known)
    if len(known) < 2 or df < 1:
        return 0.0, 0
    added = min(size * (count - size) / count for size in sizes)
    if weights and len(known) == len(arms):
        added = 1 / sum(weight * weight / size for weight, size in zip(weights, sizes, strict=True))
    whole = variance([value for values in known for value in values])
    return max(whole - effect**2 * added / (count - 1), _LEAST_SHARE * whole), df


def power_at(design: Design, looks: Sequence[InterimAnalysis], sd: float, df: int, lost: float) -> float:
    """Return the power of the claim that is hardest to make; `lost` is the share of trainings that collapse."""
    kept = math.floor(looks[-1].seeds * (1 - lost) + 1e-9)
    if design.promise is None or kept < FIRST_ANALYSIS:
        return 0.0
    last = (looks[-1].model_copy(update={"seeds": kept}),)
    shapes = dict.fromkeys(replace(power_design(design, claim), analyses=last) for claim in design.hypotheses)
    noise = Noise(sd=sd, df=df, episodes=design.metric.episodes, basis="the pilot")
    return min((assured_power(shape, design.promise.effect, noise) for shape in shapes), default=0.0)


def size_design(design: Design, arms: Sequence[Sequence[float]], affordable: int, collapsed: int = 0) -> Sizing:
    """Return the size of a design that has its pilot alone: the seeds that keep its promise, or that are affordable.
    `arms` are the values of the pilot's runs that did not collapse, `collapsed` counts the others. Raise ValueError
    without a pilot."""
    pilot, promise = design.pilot, design.promise
    if pilot is None or promise is None:
        raise ValueError("expected a design with a pilot and a promise")
    runs = sum(map(len, arms)) + collapsed
    alike_sought = any(claim.sought == "equivalence" for claim in design.hypotheses)
    weights = widest([claim.weights for claim in design.hypotheses]) if design.test == "contrast" else ()
    spread, df = blinded_variance(arms, 0.0 if alike_sought else promise.effect, weights)
    sd = math.sqrt(spread) if df and spread > _NOTHING else None
    lost, alike = collapsed / max(1, runs), design.looks[-1].equivalence if design.looks else None

    def analyses(seeds: int) -> tuple[InterimAnalysis, ...]:
        return plan_analyses(seeds, pilot.analyses, design.alpha, alike, pilot.seeds)

    def seen(seeds: int) -> float:
        return 0.0 if sd is None else power_at(design, analyses(seeds), sd, df, lost)

    most, needed = min(max(affordable, pilot.seeds), pilot.most), None
    if sd is not None:
        needed = next((n for n in range(pilot.seeds, pilot.most + 1) if seen(n) >= promise.power), None)
    seeds = pilot.seeds if sd is None else min(needed or most, most)
    return Sizing(
        seeds=seeds, looks=analyses(seeds), sd=sd, df=df if sd is not None else 0, runs=runs, collapsed=collapsed,
        needed=needed, affordable=most, power=None if sd is None else seen(seeds),
    )  # fmt: skip
