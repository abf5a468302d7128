"""What a comparison can see: its power, its smallest effect, the seeds an effect needs; and how a pilot sizes a design.

Power is the probability that the last look alone makes a claim in the right direction, with one claim of the study true
and the others not. Exact for Welch's test (equal noise and numbers) and for the paired one; with one variance of all
arms within 3 points of what the test does (`tests/studies/statistics/test_power.py`). `assured_power` averages over the
true noise that an estimate leaves open (O'Hagan, Stevens & Campbell 2005). Not known are arms with noise of their own,
runs that are excluded or collapse, and what equivalence takes from an effect near the margin.

A design whose noise nobody knew is sized by its first runs (an internal pilot: Wittes & Brittain 1990, Stat Med 9:65),
blind to what is compared: arms are not told apart, less what the promised effect would add to their variance (Gould &
Shih 1992, Commun Stat 21:2833). Sized so, Welch's test keeps its level (`benchmarks/` measures it).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import variance
from typing import Any, Final

from studies.records.alpha import ALPHA
from studies.records.design import Design, Hypothesis
from studies.records.procedure import Extension, InterimAnalysis, Noise, RunLength, Sizing
from studies.statistics import np, optimize, special
from studies.statistics.comparison import Test, contrast_limits
from studies.statistics.proportions import MOST_SEEDS
from studies.statistics.sequential import crossings, dunnett_critical, spend_alpha

_STRATA: Final = 25
"""Equally likely values of the true noise, or of the ratio of two sample variances, that power is averaged over."""
FIRST_ANALYSIS: Final = 3
"""Fewest seeds of an arm that are looked at: where trainings collapse, a look at 2 brings nearly all false claims."""
_LEAST_SHARE: Final = 0.1
"""Of the variance of two arms' runs, what is left to chance at the least, however large the effect."""
_NOTHING: Final = 1e-12
"""Variance below which runs do not vary."""


@dataclass(frozen=True, slots=True)
class PowerDesign:
    """The parts of a design that power depends on."""

    test: Test
    analyses: tuple[InterimAnalysis, ...]
    arms: int = 2
    """Arms whose runs share one variance, the control included; `common` alone looks at it."""
    compared: int = 1
    """Treatment arms of the claim's variable, which Dunnett's test corrects for."""
    families: int = 1
    """Variables that the study makes claims about, which share the level."""
    correlation: float = 0.0
    """Correlation of two arms' runs that share a seed; the paired test alone looks at it."""
    weights: tuple[float, ...] = ()
    """Of a contrast, what the mean of each of its arms counts; `contrast` alone looks at it."""

    @property
    def seeds(self) -> int:
        return self.analyses[-1].seeds

    @property
    def level(self) -> float:
        return self.analyses[-1].alpha / self.families

    def with_seeds(self, seeds: int) -> "PowerDesign":
        """Return the shape with other numbers of seeds, looked at as often and at the same shares."""
        shares = [look.seeds / self.seeds for look in self.analyses]
        spent = crossings([-float(special.ndtri(look.alpha / 2)) for look in self.analyses], shares)
        alpha = min(0.999, round(sum(map(sum, spent)), 9))
        return replace(self, analyses=analyses_at_shares(seeds, shares, alpha))


def power_design(design: Design, claim: Hypothesis) -> PowerDesign:
    """Return the shape of a locked comparison; ValueError for rates of runs (`studies.statistics.proportions`)."""
    if design.test == "boschloo":
        raise ValueError("the power of an exact test of two rates follows from the rates, not from a spread")
    test: Test = "common" if design.test == "pooled" else design.test
    correlation = design.noise.correlation if design.noise is not None else None
    return PowerDesign(
        test,
        design.looks or (InterimAnalysis(seeds=len(design.seeds), alpha=design.alpha),),
        arms=len(design.arms),
        compared=sum(other.family == claim.family for other in design.hypotheses),
        families=len({other.family for other in design.hypotheses}) if design.multiplicity != "none" else 1,
        correlation=(correlation or 0.0) if test == "paired" else 0.0,
        weights=claim.weights if test == "contrast" else (),
    )


def analyses_at_shares(seeds: int, shares: Sequence[float], alpha: float = 0.05) -> tuple[InterimAnalysis, ...]:
    """Return the looks at these shares of `seeds`, the last of which is 1; those that fall together are one."""
    stops = sorted({max(2, min(seeds, round(share * seeds))) for share in shares} | {seeds})
    return spend_alpha(stops, alpha)


def power(shape: PowerDesign, effect: float, sd: float) -> float:
    """Return the probability of a claim in the direction of a true difference `effect`, at noise `sd` between seeds."""
    if sd <= 0 or effect <= 0:
        raise ValueError(f"effect and sd must be positive; found {effect} and {sd}")
    return _power_at_effects(shape, [effect / sd])[0]


def assured_power(shape: PowerDesign, effect: float, noise: Noise) -> float:
    """Return the power, averaged over the equally likely true spreads that an estimate of noise leaves open."""
    spreads = likely_spreads(noise)
    return sum(_power_at_effects(shape, [effect / spread for spread in spreads])) / len(spreads)


def likely_spreads(noise: Noise) -> tuple[float, ...]:
    """Return equally likely true standard deviations between seeds, at the episodes that `noise` is stated for."""
    evaluation, measured, there = noise.evaluation_sd, noise.measured_sd, noise.measured_episodes
    if evaluation is None or measured is None or there is None:
        return tuple(noise.sd * scale for scale in _scales(noise.df))
    known = evaluation**2 * noise.episodes / there
    rest = (max(0.0, (measured * scale) ** 2 - known) for scale in _scales(noise.df))
    return tuple(max(1e-9, math.sqrt(part + evaluation**2)) for part in rest)


def min_detectable_effect(shape: PowerDesign, sd: float, *, target_power: float = 0.8) -> float:
    def short(effect: float) -> float:
        return power(shape, effect, sd) - target_power

    high = sd
    while short(high) < 0:
        high *= 2
    return float(optimize.brentq(short, 1e-6 * sd, high, xtol=1e-6 * sd))


def seeds_needed(shape: PowerDesign, effect: float, sd: float, *, target_power: float = 0.8) -> int | None:
    """Return the fewest seeds of each arm that see `effect` with the promised power; None when `MOST_SEEDS` do not."""

    def is_enough(seeds: int) -> bool:
        return power(shape.with_seeds(seeds), effect, sd) >= target_power

    return 2 + bisect_left(range(2, MOST_SEEDS), True, key=is_enough) if is_enough(MOST_SEEDS) else None


def exaggeration(shape: PowerDesign, sd: float, effect: float) -> float:
    """Return how many times a true difference `effect` claims with its sign are measured on average: more than 1."""
    weights = shape.weights or (-1.0, 1.0)
    squares = math.fsum(weight * weight for weight in weights)
    alike = squares**2 / math.fsum(weight**4 for weight in weights)  # Satterthwaite's, of arms alike in noise, number
    arms = {"paired": 1.0, "common": float(shape.arms)}.get(shape.test, alike)
    df, kept = arms * (shape.seeds - 1), 1 - shape.correlation if shape.test == "paired" else 1.0
    true = effect / (sd * math.sqrt(squares * kept / shape.seeds))
    bounds = _critical(shape, df) / np.array(_scales(df))
    rates = special.ndtr(true - bounds)
    above = np.exp(-((bounds - true) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float(1 + above.sum() / rates.sum() / true)


def _power_at_effects(shape: PowerDesign, sizes: Sequence[float]) -> list[float]:
    if shape.test == "contrast":
        error = math.sqrt(math.fsum(weight * weight for weight in shape.weights) / shape.seeds)
        limits = contrast_limits(shape.weights, shape.seeds, shape.level)
        return [float(special.ndtr(size / error - limits).mean()) for size in sizes]
    error = math.sqrt(2 * (1 - shape.correlation if shape.test == "paired" else 1.0) / shape.seeds)
    shifts = [size / error for size in sizes]
    if shape.test == "welch":
        return _welch(shape, shifts)
    df = (1 if shape.test == "paired" else shape.arms) * (shape.seeds - 1)
    own: list[float] = _beyond(df, shifts, [_critical(shape, df)])[:, 0].tolist()
    if shape.test == "paired":
        return own
    return [(one + other) / 2 for one, other in zip(own, _welch(shape, shifts), strict=True)]


def _welch(shape: PowerDesign, shifts: Sequence[float]) -> list[float]:
    """Average over the share r of one arm in the sum of both variances, which is Beta and independent of the sum.
    Satterthwaite's degrees of freedom follow from r alone: (n - 1) / (r^2 + (1 - r)^2)."""
    df = shape.seeds - 1
    limits = [_critical(shape, df / (r * r + (1 - r) ** 2)) for r in _ratios(df)]
    different = list(dict.fromkeys(limits))  # r and 1 - r have the same, but for rounding
    places = [different.index(limit) for limit in limits]
    return [sum(row) / _STRATA for row in _beyond(2 * df, shifts, different)[:, places].tolist()]


def _critical(shape: PowerDesign, df: float) -> float:
    return dunnett_critical(1 - shape.level, df, shape.seeds, [shape.seeds] * shape.compared)


def _beyond(df: float, shifts: Sequence[float], limits: Sequence[float]) -> Any:
    shift, limit = np.array(shifts)[:, None], np.array(limits)
    below = special.nctdtr(df, shift, limit)
    return np.where(np.isfinite(below), 1 - below, special.ndtr(shift - limit))


@lru_cache(maxsize=256)
def _ratios(df: int) -> tuple[float, ...]:
    return tuple(float(special.betaincinv(df / 2, df / 2, (i + 0.5) / _STRATA)) for i in range(_STRATA))


@lru_cache(maxsize=256)
def _scales(df: float) -> tuple[float, ...]:
    return tuple(math.sqrt(df / float(special.chdtri(df, (i + 0.5) / _STRATA))) for i in range(_STRATA))


@lru_cache(maxsize=256)
def plan_analyses(
    seeds: int, most: int, level: float = ALPHA, alike: float | None = None, pilot: int | None = None
) -> tuple[InterimAnalysis, ...]:
    """Return up to `most` looks at `seeds` seeds with their levels, from half of them on (after a `pilot` from a
    third); up to 5 seeds two are enough. `level` is that of all looks together, `alike` that of a claim of no
    difference."""
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


def decide_steps(
    extension: Extension, steps: int, pairs: Sequence[tuple[float, float]], of: int, carried: bool
) -> RunLength:
    """Return how long runs are by what those of a pilot have before their last steps and in them.

    Only the mean rise of all counts, whatever their order: where arms are alike it does not say who has which runs.
    """
    rise = math.fsum(last - before for before, last in pairs) / len(pairs) if 2 * len(pairs) >= max(1, of) else None
    longer = carried and rise is not None and rise >= extension.rise
    return RunLength(steps=extension.steps if longer else steps, rise=rise, runs=len(pairs), of=of, carried=carried)


def widest(contrasts: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return max(contrasts, key=lambda weights: math.fsum(weight * weight for weight in weights))


def blinded_variance(
    arms: Sequence[Sequence[float]], effect: float, weights: Sequence[float] = ()
) -> tuple[float, int]:
    """Return the variance between runs of one arm without comparing arms, and its df (0 where few runs say nothing)."""
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
    `arms` are the values of the pilot's runs that did not collapse, `collapsed` counts the others."""
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
