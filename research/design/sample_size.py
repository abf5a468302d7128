"""How many seeds a comparison gets, or a refusal with its prices.

A promise can be bought with seeds or with episodes: where the bank knows what of the noise is evaluation, the pair that
costs least is taken, unless somebody fixed the episodes. Each alternative in a refusal is computed by the same rules
that refuse: whoever takes one gets a design. Longer runs are not offered: no bank knows what they do to the noise.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Self

from research.design.comparison import DEFAULT_POWER, DesignDraft, StatisticalRequirements
from research.design.headroom import require_schedule
from research.design.noise_bank import NoiseBank, load_shipped_bank
from research.design.power import MOST_SEEDS, PowerAnalysis, RatePower, rate_noise
from research.design.pricing import BudgetCheck, Stage
from research.errors import DesignRefused
from research.proposals.actions import LEAST_SEEDS
from research.proposals.metric_choice import MetricChoice, format_amount, format_difference, metric_range
from research.text import format_seconds
from studies.metrics import kind_of
from studies.records.alpha import ALPHA, AlphaLedgers
from studies.records.design import Metric, RunSpec
from studies.records.procedure import Noise, RoundPlace
from studies.records.runs import begins_alike
from studies.statistics.power import FIRST_ANALYSIS
from swarm.job import Job

EPISODES: Final = (128, 256, 512, 1024, 2048, 4096)
"""Of an evaluation, to choose from by price."""
_NEARLY: Final = 1.05
_SPREAD: Final = 0.025
"""Of trainings that differ in their seed alone: .02 to .03 in recorded landscapes of two environments."""
_PLAY: Final = 0.15
"""Most variance of a play within its task, as all runs play the same ones: two fifths of 0.25 lie between tasks."""
LEAST_RATE = 0.05
"""Of a few runs none or all do not say that no other will."""
SHORTEST_STEPS = 5
PILOT_SEEDS = 4
"""Seeds of an arm in a pilot, where the budget carries so many; else as few as a look may see."""
LIKELY_SEEDS = 8
"""Seeds of an arm that a design of unknown noise is reckoned with, where more than its pilot has to find room."""


class Unaffordable(DesignRefused):
    """Sound, but not affordable: `need_s` is the price of what would do; `shorter`: shorter runs would."""

    def __init__(
        self, message: str, model_feedback: str | None = None, *, need_s: float, shorter: bool, when: str = ""
    ) -> None:
        super().__init__(message, model_feedback=model_feedback, when=when)
        self.need_s, self.shorter = need_s, shorter


def refuse_exploring(found: str) -> DesignRefused:
    expected = f"expected settings that are compared, to explore; found {found}"
    return DesignRefused(
        f"{expected}; name settings, --vary FIELD=VALUE,VALUE, or leave --explore out",
        model_feedback=f"{expected}; name settings by hypotheses",
    )


@dataclass(frozen=True, slots=True)
class EvaluationOption:
    """What a design would be with so many episodes of an evaluation."""

    episodes: int
    seeds: int | None
    """Of each arm; None where no affordable number of them keeps the promise at all."""
    seconds: float
    """Price of the design; infinite without one."""
    affordable: bool


@dataclass(frozen=True, slots=True)
class SampleSizeCalculator(BudgetCheck):
    """What sizes are judged by, besides what may be spent."""

    requirements: StatisticalRequirements = field(default_factory=StatisticalRequirements)
    bank: NoiseBank = field(default_factory=load_shipped_bank)
    measured_by: Metric | None = None
    """What this study's runs before the lock were judged by, where it made any."""
    study: str = ""
    """The study that is designed; empty where nothing is run."""
    untrained: tuple[RunSpec, ...] = ()
    """Its runs that evaluated an untrained policy for others."""
    tried: bool = False
    """Whether the present round made such a run, or gave it up: none follows, and a design shrinks to fit."""
    ledgers: AlphaLedgers = field(default_factory=lambda: AlphaLedgers.begin(1))
    """The inquiry's error ledgers, as they stand before the round that is designed."""
    episodes: int | None = None
    """Of an evaluation, once they are chosen."""
    previous: str = ""
    """Hash of the lock of the round before; empty before the first."""

    @property
    def place(self) -> RoundPlace | None:
        """The round's place in its inquiry, with its levels; None for a study of one round."""
        return self.ledgers.next_place(self.previous)

    @property
    def extend_to(self) -> int | None:
        """What a flag asks to extend to, which is about the question that it stands beside: the first."""
        return self.requirements.extend_to if self.ledgers.round == 1 else None

    @property
    def judge(self) -> MetricChoice:
        return MetricChoice(self.requirements.metric, self.price.training, self.measured_by, self.study)

    def size(self, draft: DesignDraft) -> tuple[DesignDraft, int, PowerAnalysis]:
        """Return the widest screen, and the seeds that are needed; raise Unaffordable."""
        analysis = self.power_analysis(draft)
        need = analysis.seeds_needed(draft.effect)
        if need is None or not self.affords(self.stages(draft, need)):
            raise self._refuse(draft, analysis, need)
        return self.widen_screen(draft, need), need, analysis

    def choose_episodes(self, draft: DesignDraft) -> Self:
        """Return what sizes by the episodes that make a design cheapest; of nearly the same prices by the most."""
        options = self.list_evaluations(draft)
        if self.requirements.episodes is not None or not options:
            return replace(self, episodes=self.requirements.episodes or self._guess_episodes(draft))
        if all(option.seeds is None for option in options):
            sizes = (replace(self, episodes=option.episodes) for option in options)
            seen = [(size._see_affordable(draft)[1] or math.inf, size) for size in sizes]
            return max(seen, key=lambda had: (-had[0], had[1].episodes or 0))[1]
        affordable = [option for option in options if option.affordable]
        most = min(option.seconds for option in affordable or options) * (_NEARLY if affordable else 1.0)
        near = (option.episodes for option in affordable or options if option.seconds <= most)
        return replace(self, episodes=max(near))

    def _guess_episodes(self, draft: DesignDraft) -> int:
        """Return the episodes by which a pilot's share of solved tasks is surest for its price (Cochran 1977, 10.6), as
        if seeds alone spread by a third of the effect, `_SPREAD` at the least, and plays by `_PLAY`."""
        job, metric, kind = draft.job, self.metric(draft), kind_of(self.metric(draft))
        of_plays = kind.evaluates and not kind.rates and not metric.unit and metric.schedule is None
        if not of_plays or not isinstance(self._noise(draft), str):
            return self.requirements.hidden_episodes
        price = self.price.estimates
        play = price.evaluations(job, 1)
        best = math.sqrt(_PLAY / max(draft.effect / 3, _SPREAD) ** 2 * (price.run(job) - price.evaluations(job)) / play)
        nearest = min(EPISODES, key=lambda episodes: abs(math.log(episodes / best)))
        sizes = (replace(self, episodes=episodes) for episodes in reversed(EPISODES) if episodes <= nearest)
        carried = (size for size in sizes if size.affords(size.stages(draft, PILOT_SEEDS)))
        return next(carried, self).metric(draft).episodes

    def list_evaluations(self, draft: DesignDraft) -> tuple[EvaluationOption, ...]:
        """Return what a design would be with other numbers of episodes; none where only the usual is known of."""
        noise = None if kind_of(self.metric(draft)).rates else self._noise(draft)
        if not isinstance(noise, Noise) or noise.evaluation_sd is None:
            return ()
        options = []
        asked = (replace(self, episodes=episodes) for episodes in {*EPISODES, self.requirements.hidden_episodes})
        for episodes in sorted({size.metric(draft).episodes for size in asked}):
            size = replace(self, episodes=episodes)
            need = size.power_analysis(draft).seeds_needed(draft.effect)
            stages = () if need is None else size.stages(draft, need)
            seconds = math.inf if need is None else size.cost(stages)
            options.append(EvaluationOption(episodes, need, seconds, need is not None and size.affords(stages)))
        return tuple(options)

    def _noise(self, draft: DesignDraft) -> Noise | str:
        if draft.extend_to:
            return "The first runs say how long all are, and no noise is known before."
        job, others = draft.job, draft.comparison.jobs[1:]
        return self.bank.find(job.environment, job, self.metric(draft), others)

    def size_pilot(self, draft: DesignDraft) -> tuple[DesignDraft, int]:
        """Return the widest screen and the seeds of a pilot, where the noise is not known; raise Unaffordable."""
        for seeds in (PILOT_SEEDS, FIRST_ANALYSIS):
            if self.affords(self.stages(draft, seeds)):
                return self.widen_screen(draft, LIKELY_SEEDS), seeds
        stages = self.stages(draft, FIRST_ANALYSIS)
        why = (
            f"{self.explain_unknown_noise(draft)} The first {FIRST_ANALYSIS} seeds x {draft.arms} arms say how many it "
            f"takes: {self.describe_cost(stages)}; {self.describe_budget()}"
        )
        steps = self._find_shorter(draft, lambda less: self.stages(less, FIRST_ANALYSIS))
        exploring = self._suggest_exploring(draft)
        ways = [*_suggest_steps(draft, steps), *_suggest_smaller(draft, explorable=bool(exploring))]
        raise self._unaffordable(stages, why, [f"use {self.suggest_flags(stages)}", *exploring], ways, steps)

    def shrink(self, draft: DesignDraft) -> tuple[int, PowerAnalysis] | None:
        """Return the most seeds that are affordable, with the power that they really have, where nobody named effect or
        power, or runs were made for the design; None for none. Listed prices count where nothing else would fit."""
        wanted = self.requirements
        named = wanted.effect is not None or wanted.power != DEFAULT_POWER or wanted.power_named
        usual = not named and self.ledgers.round == 1 and draft.effect >= wanted.min_effect(self.metric(draft))
        if not (self.tried or (usual and self.makes_zero_lr_run(draft.job))):
            return None
        analysis = self.power_analysis(draft)
        counts = range(analysis.seeds_needed(draft.effect) or MOST_SEEDS, FIRST_ANALYSIS - 1, -1)
        sizes = (self, self.with_listed_prices()) if self.tried else (self,)
        fitting = (n for size in sizes for n in counts if size.affords(size.stages(draft, n)))
        seeds = next(fitting, 0)
        power = math.floor(100 * analysis.power(seeds, draft.effect)) / 100 if seeds else 0.0
        return (seeds, replace(analysis, promised=power)) if power > 0 else None

    def with_listed_prices(self) -> Self:
        """Return what sizes by the price list as it was before this study's first run."""
        return replace(self, price=replace(self.price, times=1.0))

    def power_analysis(self, draft: DesignDraft) -> PowerAnalysis:
        """Return what a design can see; raise Unaffordable where the noise is not known."""
        job, metric, wanted, place = draft.job, self.metric(draft), self.requirements, self.place
        likenesses = draft.claims + draft.mediators
        level, alike = (ALPHA, None) if place is None else (place.difference, place.equivalence / likenesses)
        shape = (draft.arms, draft.families, draft.compared, wanted.power)
        if kind_of(metric).rates:
            # The control's rate as far as runs of its job tell it, else the one at which most runs are needed.
            levels = self.bank.levels(job, metric)
            likely = (sum(levels) + 1) / (len(levels) + 2) if levels else 0.5 + wanted.min_effect(metric) / 2
            rate = min(1 - LEAST_RATE, max(LEAST_RATE, likely))
            spread = f"the spread of a rate of {rate:.2f}, each run counting 1 or 0"
            noise = rate_noise(rate, metric.episodes, spread)
            return RatePower(noise, *shape, 1, max(rate, 1 - rate), level, alike, rate=rate)
        measured = self._noise(draft)
        if isinstance(measured, str):
            raise Unaffordable(f"{measured} A pilot comes first", need_s=0.0, shorter=False)
        analyses, span = wanted.analyses, metric_range(metric)
        return PowerAnalysis(measured, *shape, analyses, span, level, alike, draft.weights)

    def explain_unknown_noise(self, draft: DesignDraft) -> str | None:
        """Return why the noise bank says nothing on a design, in a sentence; None where it does."""
        found = None if kind_of(self.metric(draft)).rates else self._noise(draft)
        return found if isinstance(found, str) else None

    def metric(self, draft: DesignDraft) -> Metric:
        return draft.metric(self.judge, self.episodes or self.requirements.hidden_episodes)

    def has_untrained(self, job: Job) -> bool:
        """Return whether the policy that a job begins with was evaluated for all runs that begin with it."""
        return any(begins_alike(job.model_dump(mode="json"), run.metric.evaluated(run.job)) for run in self.untrained)

    def makes_zero_lr_run(self, job: Job) -> bool:
        """Return whether a training with a learning rate of 0 comes first, which evaluates the untrained policy."""
        return self.bank.checked is not None and not self.tried and not self.has_untrained(job)

    def stages(self, draft: DesignDraft, seeds: int) -> tuple[Stage, ...]:
        job, metric, first = draft.job, self.metric(draft), self.makes_zero_lr_run(draft.job)
        still = (Stage("zero-lr", 1, self.price.plumbing(job, metric.episodes)),) if first else ()
        # the untrained policy may be evaluated once for all
        price = replace(self.price, untrained=job if first or self.has_untrained(job) else None)
        return (*still, *draft.stages(seeds, price, metric))

    def exploration(self, draft: DesignDraft) -> Stage:
        """Return one run of each arm, evaluated as is usual whatever a study of it would choose."""
        metric = draft.metric(self.judge, self.requirements.hidden_episodes)
        (stage,) = replace(draft, screen=None, replication=(), extend_to=0).stages(1, self.price, metric)
        return replace(stage, name="explore")

    def require_exploration(self, draft: DesignDraft) -> None:
        """Raise DesignRefused for a draft of which no one run of each arm can be had within the budget."""
        if draft.screen is not None:
            raise refuse_exploring("a search, which tries values itself in short runs")
        if draft.replication:
            raise refuse_exploring("a replication in another environment")
        stages = [self.exploration(draft)]
        if self.affords(stages):
            return
        why = f"one run of each of {draft.arms} arms: {self.describe_cost(stages)}; {self.describe_budget()}"
        steps = self._find_shorter(draft, lambda less: [self.exploration(less)])
        shorter = _suggest_steps(draft, steps)
        flags = [f"use {self.suggest_flags(stages)}", *shorter]
        raise self._unaffordable(stages, why, flags, [*shorter, *_suggest_smaller(draft)], steps)

    def _unaffordable(
        self, stages: Sequence[Stage], why: str, flags: Sequence[str], ways: Sequence[str], steps: int | None,
        *, possible: bool = True,
    ) -> Unaffordable:  # fmt: skip
        use = f": {'; or '.join(flags)}" if flags else "; nothing that a flag sets would do"
        budget = self.suggest_flags(stages).replace("--max-runs", "runs").replace("--", "") if possible else ""
        return Unaffordable(
            f"{why}{use}", f"{why}: {'; or '.join(ways)}", need_s=self.cost(stages), shorter=steps is not None,
            when=f"if the user gave it a {budget}" if budget else "",
        )  # fmt: skip

    def _suggest_exploring(self, draft: DesignDraft) -> list[str]:
        fixed = draft.screen is not None or draft.replication or draft.extend_to or self.ledgers.round > 1
        if fixed or not self.affords(stages := [self.exploration(draft)]):
            return []
        alone = " in place of --rounds" if (self.requirements.rounds or 1) > 1 else ""
        return [
            f"see one run of each arm by the same command with --explore{alone}, which tests nothing and takes about "
            f"{format_seconds(self.cost(stages))}"
        ]

    def _find_shorter(self, draft: DesignDraft, stages: Callable[[DesignDraft], Sequence[Stage]]) -> int | None:
        steps = 0 if draft.screen is not None or draft.varies_steps else draft.job.steps
        while (steps := steps // 2) >= SHORTEST_STEPS:
            less = draft.with_steps(steps)
            with suppress(DesignRefused):
                require_schedule(less, self.metric(less), self.price.estimates)
                if self.affords(stages(less)):
                    return steps
        return None

    def widen_screen(self, draft: DesignDraft, seeds: int) -> DesignDraft:
        """Return the design with the largest screen that leaves its confirmation affordable."""
        if draft.screen is None:
            return draft
        wider = map(draft.with_candidates, range(draft.points, draft.screen.candidates, -1))
        return next((entry for entry in wider if self.affords(self.stages(entry, seeds))), draft)

    def _see_affordable(self, draft: DesignDraft) -> tuple[int | None, float | None]:
        counts = range(MOST_SEEDS, LEAST_SEEDS - 1, -1)
        most = next((seeds for seeds in counts if self.affords(self.stages(draft, seeds))), None)
        return most, self.power_analysis(draft).min_detectable_effect(most) if most else None

    def _refuse(self, draft: DesignDraft, analysis: PowerAnalysis, need: int | None) -> Unaffordable:
        metric = self.metric(draft)
        most, effect = self._see_affordable(draft)
        promise = f"an effect of {format_difference(metric, draft.effect)} with power {self.requirements.power:g}"
        noise = f"as the noise between seeds in {draft.job.environment} is {format_amount(metric, analysis.noise.sd)}"
        if draft.weights:
            times = sum(weight * weight for weight in draft.weights) / 2
            noise += (
                f", and a difference of two differences has {times:g} times the variance of one"
                if draft.kind == "interaction"
                else f", and the rise over {draft.arms} values has {times:.2g} times the variance of a difference"
            )
        steps, stages = None, self.stages(draft, need or MOST_SEEDS)
        flags = [] if need is None else [f"use {self.suggest_flags(stages)}"]
        if effect is not None and effect > draft.effect:
            flags.append(f"look for a larger effect, --effect {effect:g}")
        if need is None:
            seen = analysis.min_detectable_effect(MOST_SEEDS)
            can = f"{MOST_SEEDS} see {format_difference(metric, seen) if seen else 'none'}"
            if seen is not None and effect is None:
                larger = f"--effect {seen:g} {self.suggest_flags(stages)}"
                flags.append(f"look for a larger effect with a larger budget, {larger}")
            why = f"no {MOST_SEEDS} seeds see {promise}, {noise}; {can}"
        else:
            can = f"{most} seeds are affordable and see {format_difference(metric, effect)}; " if effect else ""
            why = (
                f"{promise} needs {need} seeds x {draft.arms} arms, {noise}: {self.describe_cost(stages)}; {can}"
                f"{self.describe_budget()}"
            )
            steps = self._find_shorter(draft, lambda less: self.stages(less, need))
            flags += _suggest_steps(draft, steps)
        flags += (exploring := self._suggest_exploring(draft))
        suggestions, least = _suggest_steps(draft, steps), self.requirements.min_effect(metric)
        if effect is not None and draft.effect < effect <= least:
            suggestions.append(f"name a larger smallest_effect, {effect:g} (the study's is {least:g})")
        suggestions += _suggest_smaller(draft, explorable=bool(exploring))
        return self._unaffordable(stages, why, flags, suggestions, steps, possible=need is not None)


def _suggest_steps(draft: DesignDraft, steps: int | None) -> list[str]:
    return [] if steps is None else [f"train {steps} steps instead of {draft.job.steps}"]


def _suggest_smaller(draft: DesignDraft, *, explorable: bool = False) -> Iterator[str]:
    if draft.replication:
        yield "leave the replication out"
    if draft.extend_to:
        yield f"make no run longer (extend_to {draft.job.steps})"
    if draft.screen is not None:
        yield "search fewer knobs" if len(draft.screen.knobs) > 1 else "search fewer values"
        if draft.screen.confirmed > 1:
            yield "confirm fewer candidates"
    elif draft.claims > 1:
        yield "propose fewer hypotheses"
    explore = ", and that the user may explore: one run of each arm, which tests nothing, fits" if explorable else ""
    yield f"decline, and say why{explore}"
