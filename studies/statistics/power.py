"""What a comparison can see: power, smallest effect, the seeds it needs; a pilot's sizing, alpha spending, Dunnett.

Power is the probability that the last look alone makes a claim in the right direction, with one claim of the study true
and the others not. Exact for Welch's test (equal noise and numbers) and for the paired one; with one variance of all
arms within 3 points of what the test does (`tests/studies/statistics/test_power.py`). `assured_power` averages over the
true noise that an estimate leaves open (O'Hagan, Stevens & Campbell 2005). Not known are arms with noise of their own,
runs that are excluded or collapse, and what equivalence takes from an effect near the margin.

A design whose noise nobody knew is sized by its first runs (an internal pilot: Wittes & Brittain 1990, Stat Med 9:65),
blind to what is compared: arms are not told apart, less what the promised effect would add to their variance (Gould &
Shih 1992, Commun Stat 21:2833). Sized so, Welch's test keeps its level (`benchmarks/` measures it).

Each look gets its two-sided level, so that the chance of a false claim at any look is alpha (Lan & DeMets 1983,
Biometrika 70), by the share of seeds that are in, as O'Brien and Fleming's bounds do. Bounds: the recursion of
Armitage, McPherson & Rowe (1969, JRSS A 132) for normal means. For t-tests the levels are used on the p-scale (Jennison
& Turnbull 2000, section 3.8): near, not exact; `benchmarks/verdicts.py` measures it.

Dunnett (1955, JASA 50; 1964, Biometrics 20): with T_i = (Z_i - a_i Z_0) / S the probability that all |T_i| <= c is the
integral over Z_0 and S of a product of normal probabilities, corr(T_i, T_j) = r_i r_j, r_i = sqrt(n_i / (n_i + n_0)).
Fixed quadratures: the same inputs give the same digits on any machine.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from statistics import variance
from typing import Any, Final, NamedTuple

from studies.records.alpha import ALPHA
from studies.records.design import Design, Hypothesis
from studies.records.procedure import Extension, InterimAnalysis, Noise, RunLength, Sizing
from studies.statistics import np, optimize, special, stats
from studies.statistics.comparison import Test, contrast_limits
from studies.statistics.proportions import MOST_SEEDS

_STRATA: Final = 25
"""Equally likely values of the true noise, or of the ratio of two sample variances, that power is averaged over."""
FIRST_ANALYSIS: Final = 3
"""Fewest seeds of an arm that are looked at: where trainings collapse, a look at 2 brings nearly all false claims."""
_LEAST_SHARE: Final = 0.1
"""Of the variance of two arms' runs, what is left to chance at the least, however large the effect."""
_NOTHING: Final = 1e-12
"""Variance below which runs do not vary."""
_NORMAL_NODES: Final = 80
"""Points of each quadrature: 1e-8 of the probability at 2 degrees of freedom and more."""
_FARTHEST_Z: Final = 8.5
"""Standard deviations beyond which a normal density counts as nothing."""
_RARE: Final = 1e-13
"""Share of the distribution of S left out at each end."""
_NODES: Final = 120
"""Points of the quadrature over the values at which a look does not stop: six digits of a bound."""
_HIGHEST_BOUND: Final = 38.0
"""Largest bound in standard errors: beyond it a normal tail is zero."""
_LEAST_LEVEL: Final = 1e-12
"""Of a last look, so that its interval has ends: as good as nothing."""


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


def dunnett_p(t: float, df: float, n_control: int, n_treatments: Sequence[int]) -> float:
    """Return the two-sided p of `t` corrected for all comparisons with the control."""
    if len(n_treatments) == 1:
        return float(2 * special.stdtr(df, -abs(t)))
    return min(1.0, max(0.0, 1 - _all_within(abs(t), df, _shares(n_control, n_treatments))))


def dunnett_critical(level: float, df: float, n_control: int, n_treatments: Sequence[int]) -> float:
    """Return the number of standard errors within which all comparisons lie with probability `level`."""
    return _dunnett_bound(level, df, _shares(n_control, n_treatments))


@lru_cache(maxsize=4096)
def _dunnett_bound(level: float, df: float, shares: tuple[float, ...]) -> float:
    alone = float(special.stdtrit(df, (1 + level) / 2))
    if len(shares) == 1:
        return alone
    bonferroni = float(special.stdtrit(df, 1 - (1 - level) / (2 * len(shares))))
    ends = alone * (1 - 1e-6), bonferroni * (1 + 1e-6)
    if not _all_within(ends[0], df, shares) < level < _all_within(ends[1], df, shares):
        return bonferroni  # with hardly any freedom and a tiny level the quadrature is too coarse
    return float(optimize.brentq(lambda c: _all_within(c, df, shares) - level, *ends, xtol=1e-10))


def _shares(n_control: int, n_treatments: Sequence[int]) -> tuple[float, ...]:
    return tuple(sorted(math.sqrt(n / (n + n_control)) for n in n_treatments))


@lru_cache(maxsize=16_384)
def _all_within(c: float, df: float, shares: tuple[float, ...]) -> float:
    x, w = _legendre_rule(_NORMAL_NODES)
    z = _FARTHEST_Z * x
    weight_z = _FARTHEST_Z * w * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    s, weight_s = _scale_rule(df)
    inside = np.ones((len(s), len(z)))
    for r, alike in groupby(shares):
        rest = math.sqrt(1 - r * r)
        within = special.ndtr((r * z + c * s[:, None]) / rest) - special.ndtr((r * z - c * s[:, None]) / rest)
        for _ in alike:
            inside *= within
    return float(weight_s @ inside @ weight_z)


@lru_cache(maxsize=2)
def _legendre_rule(nodes: int) -> tuple[Any, Any]:
    """Return points and weights on -1 to 1, which take as long as all else of a quadrature."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return points, weights


@lru_cache(maxsize=512)
def _scale_rule(df: float) -> tuple[Any, Any]:
    x, w = _legendre_rule(_NORMAL_NODES)
    low, high = (math.sqrt(end / df) for end in (stats.chi2.ppf(_RARE, df), stats.chi2.isf(_RARE, df)))
    s = low + (high - low) * (x + 1) / 2
    density = stats.chi2.pdf(s * s * df, df) * 2 * s * df
    weights = w * (high - low) / 2 * density
    return s, weights / weights.sum()


class Crossing(NamedTuple):
    """Probability that a look is the first to leave its bounds, by side."""

    below: float
    above: float


def spend_alpha(seeds: Sequence[int], alpha: float = 0.05) -> tuple[InterimAnalysis, ...]:
    """Return the looks after these numbers of seeds per arm, the last of which is the end."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1; found {alpha}")
    if not seeds or list(seeds) != sorted(set(seeds)) or seeds[0] < 2:
        raise ValueError(f"looks must grow, from 2 seeds or more; found {list(seeds)}")
    levels = _levels(tuple(seeds), alpha)
    return tuple(InterimAnalysis(seeds=n, alpha=level) for n, level in zip(seeds, levels, strict=True))


def crossings(bounds: Sequence[float], shares: Sequence[float], drift: float = 0.0) -> tuple[Crossing, ...]:
    """Return for each look how probable it is that it is the first outside its bounds, with a `drift` at the end."""
    walk = _Walk(drift)
    return tuple(walk.step(bound, share) for bound, share in zip(bounds, shares, strict=True))


@lru_cache(maxsize=512)
def _levels(seeds: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    walk, levels, before = _Walk(0.0), list[float](), 0.0
    for share in (n / seeds[-1] for n in seeds):
        now = _spent(share, alpha)
        bound = _solve_bound(walk, share, now - before)
        walk.step(bound, share)
        levels.append(max(2 * float(special.ndtr(-bound)), 1e-300))
        before = now
    return tuple(levels)


@lru_cache(maxsize=4096)
def last_level(looks: tuple[tuple[int, float], ...], made: tuple[float, ...], count: float, *, whole: bool) -> float:
    """Return the two-sided level of a last look at `count` runs of each arm, before all that were planned. `looks` are
    the planned numbers of runs and levels, `made` what the first of them had. Where no data brought the end about it is
    the `whole` that is left; where somebody chose the moment a quarter of what may be spent by then: half of it is the
    level where O'Brien and Fleming's bound is watched at every moment, and the planned looks stand beside it."""
    spent = crossings([_bound(level) for _, level in looks], [n / looks[-1][0] for n, _ in looks])
    alpha = round(sum(map(sum, spent)), 12)
    if not whole:
        return max(_spent(min(1.0, count / looks[-1][0]), alpha) / 4, _LEAST_LEVEL)
    walk, left, levels = _Walk(0.0), alpha, dict[float, float]()
    for n, (_, level) in zip(made, looks, strict=False):
        levels[n] = max(level, levels.get(n, 0.0))
    for n, level in levels.items():
        if 0 < n < count:
            left -= sum(walk.step(_bound(level), n / count))
    return 2 * float(special.ndtr(-_solve_bound(walk, 1.0, max(left, _LEAST_LEVEL))))


def _bound(level: float) -> float:
    return -float(special.ndtri(level / 2))


def _spent(share: float, alpha: float) -> float:
    return float(4 * special.ndtr(special.ndtri(alpha / 4) / math.sqrt(share)))


def _solve_bound(walk: "_Walk", share: float, left: float) -> float:
    found = optimize.brentq(lambda b: sum(walk.exit_probability(b, share)) - left, 0.0, _HIGHEST_BOUND, xtol=1e-12)
    return float(found)


class _Walk:
    """A sum of independent normal steps, watched at shares of its variance, as far as it has stayed inside."""

    def __init__(self, drift: float) -> None:
        self._drift = drift
        self._share = 0.0
        self._at: Any = None
        """Points where the walk may be, and the density times the weight of each."""

    def exit_probability(self, bound: float, share: float) -> Crossing:
        """Return the probability of being outside `bound` at `share` for the first time."""
        points, mass = self._at or (np.zeros(1), np.ones(1))
        step = share - self._share
        mean, edge = points + self._drift * step, bound * math.sqrt(share)
        above = special.ndtr((mean - edge) / math.sqrt(step))
        below = special.ndtr((-edge - mean) / math.sqrt(step))
        return Crossing(float(below @ mass), float(above @ mass))

    def step(self, bound: float, share: float) -> Crossing:
        """Go on to `share` and stay inside `bound`; return the probability of having left there."""
        left = self.exit_probability(bound, share)
        points, mass = self._at or (np.zeros(1), np.ones(1))
        step = share - self._share
        edge = min(bound * math.sqrt(share), abs(self._drift) * share + 9 * math.sqrt(share))
        x, w = _legendre_rule(_NODES)
        here = edge * x
        away = (here[:, None] - points - self._drift * step) / math.sqrt(step)
        density = np.exp(-away * away / 2) / math.sqrt(2 * math.pi * step) @ mass
        self._at, self._share = (here, edge * w * density), share
        return left
