"""How many seeds a comparison gets, or a refusal with its prices.

Each alternative in a refusal is computed by the same rules that refuse: whoever takes one gets a design. They are more
seeds (the budget they cost), a larger effect, a larger evaluation (where the bank knows its part of the noise) and,
where time is short, shorter runs. Pairing seeds needs no alternative: it is chosen by itself where it is known to help.
Longer runs are not offered: no bank knows what they do to the noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from research.design.comparison import MOST_EPISODES, StatisticalRequirements, UnsizedDesign
from research.design.headroom import require_schedule
from research.design.noise_bank import NOISE_SEEDS, NoiseBank
from research.design.power import MOST_SEEDS, PowerAnalysis, RatePower, rate_noise
from research.design.pricing import BudgetCheck, Stage
from research.errors import DesignRefused
from research.proposals.actions import LEAST_SEEDS
from research.proposals.metric_choice import MetricChoice, amount, span, with_unit
from research.text import format_seconds
from studies.metrics import kind_of
from studies.records.alpha import ALPHA
from studies.records.design import Metric
from studies.records.procedure import Noise, RoundPlace

LEAST_RATE = 0.05
"""Of a few runs none or all do not say that no other will."""
SHORTEST_STEPS = 5
_AFTER_NOISE_SEEDS = 3
"""Seeds of an arm that must still be affordable after A/A runs, or those would teach what nobody can use."""


class Unaffordable(DesignRefused):
    """Sound, but not affordable: `need_s` is the price of what would do; `shorter`: shorter runs would."""

    def __init__(self, message: str, *, need_s: float, shorter: bool = False, for_planner: str | None = None) -> None:
        super().__init__(message, for_planner=for_planner)
        self.need_s = need_s
        self.shorter = shorter


@dataclass(frozen=True, slots=True)
class SizedDesign:
    """A comparison with its number of seeds."""

    unsized: UnsizedDesign
    seeds: int
    analysis: PowerAnalysis
    noise: Noise
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Sizing:
    """What sizes are judged by."""

    requirements: StatisticalRequirements
    budget_check: BudgetCheck
    bank: NoiseBank
    measured_by: Metric | None = None
    """What A/A runs of this study were judged by, where it made any."""
    place: RoundPlace | None = None
    """The round's place in its inquiry, with its levels; None for a study of one round."""

    @property
    def judge(self) -> MetricChoice:
        """Who says what runs are judged by."""
        return MetricChoice(self.requirements.metric, self.budget_check.price.training, self.measured_by)

    def size(self, unsized: UnsizedDesign, wanted: int) -> SizedDesign:
        """Return the seeds that are needed, or more if they are wanted and affordable; raise Unaffordable."""
        noise, analysis = self.power_analysis(unsized)
        need = analysis.seeds_needed(unsized.effect)
        if need is None or not self.budget_check.affords(self.stages(unsized, need)):
            raise self._refused(unsized, analysis, need)
        whole = self.with_largest_screen(unsized, need)
        for seeds in range(max(need, wanted), need, -1):
            if analysis.detects(seeds, unsized.effect) and self.budget_check.affords(self.stages(whole, seeds)):
                return SizedDesign(whole, seeds, analysis, noise, self.stages(whole, seeds))
        return SizedDesign(whole, need, analysis, noise, self.stages(whole, need))

    def power_analysis(self, unsized: UnsizedDesign) -> tuple[Noise, PowerAnalysis]:
        """Return the noise of a design and its power analysis; raise Unaffordable where the noise is not known."""
        noise = self._noise(unsized, self.requirements.episodes)
        if noise is None:
            raise Unaffordable(f"{self.unknown(unsized)} A/A runs come first", need_s=0.0)
        return noise, self._seen_by(unsized, noise)

    def unknown(self, unsized: UnsizedDesign) -> str | None:
        """Return why the noise bank says nothing on a design, in a sentence; None where it does."""
        job, metric = unsized.comparison.base, self.metric(unsized)
        return None if kind_of(metric).rates else self.bank.why_not(job.environment, job, metric)

    def metric(self, unsized: UnsizedDesign, episodes: int | None = None) -> Metric:
        """Return what the runs of a design are judged by, at its own or another number of evaluation episodes."""
        return unsized.metric(self.judge, episodes or self.requirements.episodes)

    def stages(self, unsized: UnsizedDesign, seeds: int, episodes: int | None = None) -> tuple[Stage, ...]:
        """Return what is run with so many seeds, at the worst."""
        job, metric = unsized.comparison.base, self.metric(unsized, episodes)
        plumbing = self.budget_check.price.plumbing(job, metric.episodes)
        still = (Stage("zero-lr", 1, plumbing),) if self.bank.unchecked(job) else ()
        return (*still, *unsized.stages(seeds, self.budget_check, metric))

    def noise_stage(self, unsized: UnsizedDesign) -> tuple[Stage, ...]:
        """Return the A/A runs and the least that has to follow; raise Unaffordable where they are not."""
        stages = self.noise_first(unsized)
        if not self.budget_check.affords(stages):
            still = "One run with a learning rate of 0 and " if self.bank.unchecked(unsized.comparison.base) else ""
            why = (
                f"{self.unknown(unsized)} {still}{NOISE_SEEDS} A/A runs first, and then {_AFTER_NOISE_SEEDS} seeds x "
                f"{unsized.arms} arms: {self.budget_check.priced(stages)}; {self.budget_check.stated()}"
            )
            less = next((n for n in self._lengths(unsized) if self._affords_noise(shorter(unsized, n))), None)
            ways = _ways([*self._fewer_steps(unsized, less), *_smaller(unsized)])
            raise Unaffordable(
                f"{why}: use {self.budget_check.flags(stages)}",
                need_s=self.budget_check.cost(stages),
                shorter=less is not None,
                for_planner=f"{why}: {ways}",
            )
        return stages

    def _lengths(self, unsized: UnsizedDesign) -> Iterator[int]:
        """Yield shorter trainings of which the metric can be told."""
        for steps in _lengths(unsized):
            less = shorter(unsized, steps)
            with suppress(DesignRefused):
                require_schedule(less, self.metric(less), self.budget_check.price.estimates)
                yield steps

    def _affords_noise(self, unsized: UnsizedDesign) -> bool:
        return self.budget_check.affords(self.noise_first(unsized))

    def noise_first(self, unsized: UnsizedDesign) -> tuple[Stage, ...]:
        """Return A/A runs and the least that has to follow them."""
        metric = self.metric(unsized)
        runs = Stage("A/A", NOISE_SEEDS, self.budget_check.price.judged(unsized.comparison.base, metric))
        return (runs, *self.stages(unsized, _AFTER_NOISE_SEEDS))

    def _noise(self, unsized: UnsizedDesign, episodes: int) -> Noise | None:
        job, metric = unsized.comparison.base, self.metric(unsized, episodes)
        if kind_of(metric).rates:
            rate = self._rate(unsized, metric)
            return rate_noise(rate, metric.episodes, f"the spread of a rate of {rate:.2f}, each run counting 1 or 0")
        return self.bank.find(job.environment, job, metric)

    def _rate(self, unsized: UnsizedDesign, metric: Metric) -> float:
        """Return the control's rate as far as runs of its job tell it, else the one at which most runs are needed."""
        known = self.bank.levels(unsized.comparison.base, metric)
        likely = (sum(known) + 1) / (len(known) + 2) if known else 0.5 + self.requirements.least(metric) / 2
        return min(1 - LEAST_RATE, max(LEAST_RATE, likely))

    def _seen_by(self, unsized: UnsizedDesign, noise: Noise) -> PowerAnalysis:
        metric, wanted = self.metric(unsized), self.requirements
        shape = (noise, unsized.arms, unsized.families, unsized.compared, wanted.power)
        level, alike = self._levels(unsized)
        if kind_of(metric).rates:
            rate = self._rate(unsized, metric)
            return RatePower(*shape, 1, max(rate, 1 - rate), level, alike, rate=rate)
        return PowerAnalysis(*shape, wanted.looks, span(metric), level, alike, unsized.weights)

    def _levels(self, unsized: UnsizedDesign) -> tuple[float, float | None]:
        """Return the level of all claims of a difference, and of each claim of no difference where it has its own."""
        if self.place is None:
            return ALPHA, None
        return self.place.difference, self.place.equivalence / unsized.claims

    def with_largest_screen(self, unsized: UnsizedDesign, seeds: int) -> UnsizedDesign:
        """Return the design with the largest screen that leaves its confirmation affordable."""
        if unsized.screen is None:
            return unsized
        sizes = range(unsized.points, unsized.screen.candidates, -1)
        wider = (unsized.with_candidates(candidates) for candidates in sizes)
        return next((entry for entry in wider if self.budget_check.affords(self.stages(entry, seeds))), unsized)

    def affordable(self, unsized: UnsizedDesign) -> int | None:
        """Return the most seeds that the budget affords; None for fewer than a test needs."""
        counts = range(MOST_SEEDS, LEAST_SEEDS - 1, -1)
        return next((seeds for seeds in counts if self.budget_check.affords(self.stages(unsized, seeds))), None)

    def _refused(self, unsized: UnsizedDesign, analysis: PowerAnalysis, need: int | None) -> Unaffordable:
        offers = [*self._offers(unsized, analysis, need)]
        ways = f": {'; or '.join(offers)}" if offers else "; nothing that a flag sets would do"
        cost = self.budget_check.cost(self.stages(unsized, need or MOST_SEEDS))
        steps = None if need is None else self.shorter_steps(unsized, need)
        why = self._why(unsized, analysis, need)
        suggestions = _ways([*self._fewer_steps(unsized, steps), *self._plainer(unsized, analysis), *_smaller(unsized)])
        return Unaffordable(f"{why}{ways}", need_s=cost, shorter=steps is not None, for_planner=f"{why}: {suggestions}")

    def _why(self, unsized: UnsizedDesign, analysis: PowerAnalysis, need: int | None) -> str:
        """Say what would be needed, what there is, and what can be seen with it."""
        metric = self.metric(unsized)
        promise = f"an effect of {with_unit(metric, unsized.effect)} with power {self.requirements.power:g}"
        sd = amount(metric, analysis.noise.sd)
        noise = f"the noise between seeds in {unsized.comparison.base.environment} is {sd}"
        if need is None:
            seen = analysis.detectable(MOST_SEEDS)
            can = f"{MOST_SEEDS} see {with_unit(metric, seen)}" if seen else f"{MOST_SEEDS} see none"
            return f"no {MOST_SEEDS} seeds see {promise}, as {noise}{wider(unsized)}; {can}"
        stages, most = self.stages(unsized, need), self.affordable(unsized)
        seen = analysis.detectable(most) if most else None
        can = f"{most} seeds are affordable and see {with_unit(metric, seen)}; " if seen else ""
        noise += wider(unsized)
        return (
            f"{promise} needs {need} seeds x {unsized.arms} arms, as {noise}: {self.budget_check.priced(stages)}; {can}"
            f"{self.budget_check.stated()}"
        )

    def _plainer(self, unsized: UnsizedDesign, analysis: PowerAnalysis) -> Iterator[str]:
        """Offer a planner that proposed a smaller effect than the study's one that can be seen."""
        most = self.affordable(unsized)
        effect = analysis.detectable(most) if most else None
        least = self.requirements.least(self.metric(unsized))
        if effect is not None and unsized.effect < effect <= least:
            yield f"name a larger smallest_effect, {effect:g} (the study's is {least:g})"

    def _offers(self, unsized: UnsizedDesign, analysis: PowerAnalysis, need: int | None) -> Iterator[str]:
        if need is not None:
            yield f"use {self.budget_check.flags(self.stages(unsized, need))}"
        yield from self._larger_effect(unsized, analysis)
        yield from self._larger_evaluation(unsized, need)
        yield from self._shorter(unsized, need)

    def _larger_effect(self, unsized: UnsizedDesign, analysis: PowerAnalysis) -> Iterator[str]:
        most = self.affordable(unsized)
        effect = analysis.detectable(most) if most else None
        if effect is not None and effect > unsized.effect:
            yield f"look for a larger effect, --effect {effect:g}"

    def _larger_evaluation(self, unsized: UnsizedDesign, need: int | None) -> Iterator[str]:
        """Offer the smallest of the next sizes of evaluation with which a design is affordable, or its budget."""
        for episodes in _sizes(self.requirements.episodes):
            noise = self._noise(unsized, episodes)
            fewer = (
                self._seen_by(unsized, noise).seeds_needed(unsized.effect) if noise and noise.evaluation_sd else None
            )
            if fewer is None or (need is not None and fewer >= need):
                continue
            stages = self.stages(unsized, fewer, episodes)
            flags = " ".join(filter(None, (f"--episodes {episodes}", self.budget_check.flags(stages))))
            cost = self.budget_check.cost(stages)
            if need is None or cost < self.budget_check.cost(self.stages(unsized, need)):
                yield f"evaluate on more episodes, {flags} ({fewer} seeds, {format_seconds(cost)})"
                return

    def _shorter(self, unsized: UnsizedDesign, need: int | None) -> Iterator[str]:
        if need is not None:
            yield from self._fewer_steps(unsized, self.shorter_steps(unsized, need))

    def _fewer_steps(self, unsized: UnsizedDesign, steps: int | None) -> Iterator[str]:
        if steps is not None:
            yield f"train {steps} steps instead of {unsized.comparison.base.steps}"

    def shorter_steps(self, unsized: UnsizedDesign, seeds: int) -> int | None:
        """Return the most steps, of halves of those wanted, with which so many seeds are affordable."""
        fitting = (
            n for n in self._lengths(unsized) if self.budget_check.affords(self.stages(shorter(unsized, n), seeds))
        )
        return next(fitting, None)


def wider(unsized: UnsizedDesign) -> str:
    """Return how much wider a contrast is than a difference on as many seeds, as a clause; empty for a difference."""
    if not unsized.weights:
        return ""
    times = sum(weight * weight for weight in unsized.weights) / 2
    if unsized.kind == "interaction":
        return f", and a difference of two differences has {times:g} times the variance of one"
    return f", and the rise over {unsized.arms} values has {times:.2g} times the variance of a difference"


def shorter(unsized: UnsizedDesign, steps: int) -> UnsizedDesign:
    """Return the design with another length of training."""
    comparison = replace(
        unsized.comparison,
        base=unsized.comparison.base.model_copy(update={"steps": steps}),
        jobs=tuple(job.model_copy(update={"steps": steps}) for job in unsized.comparison.jobs),
    )
    replication = tuple(job.model_copy(update={"steps": steps}) for job in unsized.replication)
    return replace(unsized, comparison=comparison, replication=replication)


def _smaller(unsized: UnsizedDesign) -> Iterator[str]:
    """Yield what a planner may ask for less of; whether it is enough is seen when it asks."""
    if unsized.replication:
        yield "leave the replication out"
    if unsized.screen is not None:
        yield "search fewer knobs" if len(unsized.screen.knobs) > 1 else "search fewer values"
        if unsized.screen.confirmed > 1:
            yield "confirm fewer candidates"
    elif unsized.claims > 1:
        yield "propose fewer hypotheses"


def _ways(suggestions: list[str]) -> str:
    return "; or ".join([*suggestions, "decline, and say why"])


def _lengths(unsized: UnsizedDesign) -> Iterator[int]:
    """Yield shorter trainings, each half of the one before; none where the length is varied, or screened."""
    if unsized.screen is not None or any("steps" in arm.overrides for arm in unsized.comparison.arms):
        return
    steps = unsized.comparison.base.steps // 2
    while steps >= SHORTEST_STEPS:
        yield steps
        steps //= 2


def _sizes(episodes: int) -> Iterator[int]:
    """Yield the sizes of evaluation that are offered: twice, four times, ... as many episodes."""
    return (size for power in range(1, 5) if (size := episodes * 2**power) <= MOST_EPISODES)
