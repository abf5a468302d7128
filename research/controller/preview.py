"""What a study would be, without running anything: design or refusal, power, cost.

The planner is asked as in a study, and the design is compiled as in a study, with seeds that are thrown away. Where a
design is refused, what its comparison could see with each number of seeds is shown all the same. Expected costs take
the noise for known and normal, and count no verdict of equivalence at an early look.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from research.controller.built_designs import build_replication
from research.controller.controller import budget_left
from research.controller.evaluation import EvaluatedDesign, PlanningInputs, dry_run, plan_rounds, quote_tested
from research.controller.planning import Planning
from research.controller.session import StudyRequest, capacity_for
from research.design.comparison import DesignDraft, draft_design
from research.design.compiler import LEAST_POWER, DesignCompiler
from research.design.known_findings import load_findings
from research.design.noise_bank import NoiseBank, model_key
from research.design.power import MOST_SEEDS, PowerAnalysis
from research.design.pricing import Pricing, Stage, describe_basis, local_pricing, place_of
from research.design.sample_size import EvaluationOption, Unaffordable
from research.environments.catalog import records_of
from research.errors import DesignRefused, Unmeasurable
from research.installation import base_job as jobs
from research.installation.home import Home
from research.installation.machine import Capacity, PriceTable
from research.isolation.mode import read_sandboxing
from research.models.fetch import check_loader
from research.planners.context import Planner
from research.planners.history import CampaignFacts
from research.planners.rules import RulesPlanner
from research.planners.tools import MOST_FINDINGS, PriceRequest, find_related
from research.proposals.actions import LEAST_SEEDS, Replicate
from research.proposals.metric_choice import RequestedMetric
from studies import EventLog, StudyLog, StudyState
from studies.records.alpha import AlphaLedgers
from studies.records.design import Budget, Design, Hypothesis, Metric
from studies.records.procedure import EnvironmentRecord, InterimAnalysis, Noise
from studies.records.statements import screen_sentence, sentences
from studies.statistics.power import FIRST_ANALYSIS
from studies.verdicts.wording import unequal_episodes
from swarm.job import Job, PathModel


@dataclass(frozen=True, slots=True)
class PowerRow:
    """What so many seeds of each arm could see, and what they would cost at the worst."""

    seeds: int
    power: float
    """At the smallest effect of interest."""
    detectable: float | None
    """The smallest effect that is seen with the promised power; None where no difference of shares is."""
    runs: int
    seconds: float
    run_hours: float
    affordable: bool


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """What looks save: the runs and seconds of a confirmation on average."""

    effect: float
    runs: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundRow:
    """What a round of the inquiry could still see, if no round before it ended in a claim."""

    round: int
    level: float
    """Its level for claims of a difference, all looks and arms included."""
    level_of_no_difference: float
    """Its level for claims of no difference."""
    detectable: float | None
    """The smallest difference that as many seeds as the first round's see with the promised power."""
    detectable_at_half: float | None
    """The same with power 0.5, the least with which a later round is asked."""


@dataclass(frozen=True, slots=True)
class PricedStage(Stage):
    """A stage that is run at the worst."""

    run_hours: float


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What the stages take at the worst beside time. Hours are by the slots of runs, of a shared device a part; tokens
    by what a run of the control takes in its time; the planner's until here. No money where something is `unpriced`."""

    gpu_hours: float
    core_hours: float
    server_hours: float
    tokens: Mapping[str, int]
    money: float | None
    currency: str
    unpriced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """What a study would be, as `ajet study plan --json` says it; what is for people alone stands last."""

    asked: str
    tested: tuple[str, ...]
    """What would be put to the test, in sentences; first what a language model says of it."""
    not_tested: tuple[str, ...]
    """What of the topic the plan leaves out."""
    unequal: tuple[str, ...]
    """What the arms would not share of training, each a clause."""
    unusual: tuple[str, ...]
    """Values of an arm that are far from what is usual, and ranges from what is known, each a sentence."""
    accepted: bool
    explores: bool
    """Whether one run of each arm would be made, and nothing tested."""
    refused: str | None
    job: Mapping[str, Any]
    """What the user's job fixes of the job under all arms."""
    assumed: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    environment: str
    brought: tuple[EnvironmentRecord, ...]
    """The record of the environment, if it was brought."""
    arms: tuple[str, ...]
    metric: Metric
    """What runs are judged by."""
    metric_chosen_for: str
    """The topic's words that chose it; empty where nothing did, or a flag."""
    smallest_effect: float
    """The smallest one of interest, in the metric's unit."""
    promised_power: float
    noise: Noise | None
    """The noise bank's estimate; None where `no_noise_because` says why there is none."""
    no_noise_because: str | None
    pilot_runs_first: int
    """Runs of all arms that say how many more it takes; 0 where the size is known."""
    plumbing_run_first: bool
    """Whether a training with a learning rate of 0 is made first, which must change nothing."""
    design: Design | None
    seeds: int | None
    """Of each arm of the design; with a pilot, its first ones."""
    evaluations: tuple[EvaluationOption, ...]
    """What the design would be with so many episodes of an evaluation; empty where only the usual number is known."""
    power_curve: tuple[PowerRow, ...]
    rounds: tuple[RoundRow, ...]
    """The rounds that there may be, the first one first; empty for a study of one."""
    stages: tuple[PricedStage, ...]
    total_s: float
    at_once: str
    cost: PlanCost
    priced_by: str
    """Where the prices come from, in words."""
    expected: tuple[ExpectedCost, ...]
    requested_metric: RequestedMetric | None
    requested_episodes: int | None
    budget: str


def preview_study(home: Home, log: EventLog, request: StudyRequest, planner: Planner) -> PlanPreview:
    """Return what a study on a request would be, by what was measured and found in this installation, as `preview`."""
    requirements, job = request.requirements, request.base or Job()
    capacity = capacity_for(request, check_loader(home.models))
    compiler = DesignCompiler(
        price=local_pricing(home, log, capacity.runs),
        budget=Budget(wall_clock_s=request.budget_s, max_runs=request.max_runs), base=request.base,
        requirements=requirements, ledgers=AlphaLedgers.begin(requirements.rounds or 1), bank=NoiseBank.of(log),
        models=request.requested.models, explores=request.explore,
    )  # fmt: skip
    own, every = model_key(job), load_findings(home, log).findings
    inputs = PlanningInputs(
        request.topic, compiler, lambda: request.budget_s, wanted=request.requested, parsed=request.parsed,
        findings=find_related(every, "", request.topic, MOST_FINDINGS),
        known=[entry for entry in every if entry.conditions.model_key == own],
    )  # fmt: skip
    return preview(inputs, planner, capacity, PriceTable.load(home))


def price_next_round(home: Home, log: EventLog, state: StudyState, claim: str) -> Mapping[str, Any]:
    """Return what the next round would cost if it tested a claim again, as planners are told; raise DesignRefused."""

    def prices() -> Pricing:
        place = place_of(read_sandboxing(state.settings).kind, state.settings.get("servers"))
        return local_pricing(home, log, int(state.settings["parallel"]), place, state.id)

    planning = Planning(
        home, log, StudyLog(log, state.id), RulesPlanner(), prices, jobs.base_job_of(state.settings),
        known=lambda: load_findings(home, log).findings,
    )  # fmt: skip
    now = planning.build_inputs(state, lambda: budget_left(state))
    inputs = planning.set_round(now, state, CampaignFacts.of(state))
    propose, design = build_replication(Replicate(claim=claim), inputs.campaign, inputs.compiler)
    tools = inputs.tools(inputs)
    return {} if tools is None else PriceRequest(propose=propose, design=design).answer(tools)


def preview(
    inputs: PlanningInputs, planner: Planner, on: Capacity | None = None, prices: PriceTable | None = None
) -> PlanPreview:
    """Return what a study would be. Raises BadTopic, TopicDeclined, DesignRefused, PlannerFailed, Unmeasurable. The
    design of a proposal that is refused in the topic's environment is asked for all the same: it may name another."""
    designed = dry_run(inputs, planner)
    if isinstance(designed.result, Unmeasurable):
        raise designed.result
    refused = designed.result if isinstance(designed.result, DesignRefused) else designed.proposal.turn.refused
    if refused is None:
        designed = plan_rounds(inputs, designed)
    inputs, result = inputs.with_metric_of(designed.proposal.action), designed.result
    calculator = inputs.compiler if isinstance(result, DesignRefused) else result.compiler
    requirements = inputs.compiler.requirements
    draft = draft_design(
        designed.proposal.hypotheses, designed.action, inputs.compiler.base, requirements, calculator.judge
    )
    if refused is not None:  # with the evaluation that the refusal speaks of
        calculator = calculator.choose_episodes(draft)
    said, on = None if refused is None else refused.message, on or Capacity(inputs.compiler.price.parallel)
    return _Preview(inputs, designed, calculator, draft, said, planner, on, prices or PriceTable()).build()


@dataclass(frozen=True)
class _Preview:
    inputs: PlanningInputs
    designed: EvaluatedDesign
    calculator: DesignCompiler
    draft: DesignDraft
    refused: str | None
    planner: Planner
    on: Capacity
    prices: PriceTable

    def build(self) -> PlanPreview:
        analysis: PowerAnalysis | None = None
        with suppress(Unaffordable):
            analysis = self.calculator.power_analysis(self.draft)
        explores = self.calculator.explores
        locked = None if self.refused or explores else self.designed.build_lock("plan")
        stages = self._stages(locked, analysis)
        turns = (self.designed.proposal.turn, self.designed.turn)
        effect, comparison, metric = self.draft.effect, self.draft.comparison, self.calculator.metric(self.draft)
        requirements, hypotheses = self.inputs.compiler.requirements, self.designed.proposal.hypotheses
        environment = comparison.base.environment
        arms = zip(comparison.arms, comparison.jobs, strict=True)
        planned = [(arm.name, job.steps * job.episodes_per_step) for arm, job in arms]
        said = quote_tested(self.planner, self.designed.proposal.action)
        tested = sentences(hypotheses, environment, effect, metric)
        if self.draft.screen is not None:
            tested = (screen_sentence([knob.field for knob in self.draft.screen.knobs], environment),)
        first = None if self.refused or explores else self.designed.noise_plan("plan")
        job, own = comparison.base, self.inputs.compiler.base or Job()
        varied, usual = {name for arm in comparison.arms for name in arm.overrides}, list[str]()
        if isinstance(job.model, PathModel) and "learning_rate" not in {*jobs.find_fixed_fields(own), *varied}:
            usual = [f"learning_rate = {job.learning_rate:g}, as is usual for {jobs.describe_trained_weights(job)}"]
        fitted = {name: getattr(job, name) for name in jobs.pretrained_fields(job) if name not in varied}
        wide = () if self.refused else self.calculator.describe_wide_ranges(self.draft, hypotheses)
        return PlanPreview(
            asked=self.inputs.topic, tested=() if explores else (*filter(None, [said]), *tested),
            not_tested=tuple(dict.fromkeys(text for turn in turns for text in turn.not_tested)),
            unequal=tuple(filter(None, (unequal_episodes(planned[0], arm) for arm in planned[1:]))),
            unusual=tuple(dict.fromkeys([*filter(None, map(jobs.describe_unusual_rate, comparison.jobs)), *wide])),
            accepted=self.refused is None, explores=explores, refused=self.refused,
            job=jobs.find_fixed_fields(own) | fitted,
            assumed=tuple(dict.fromkeys((*(turn.note for turn in turns if turn.note), *usual))), hypotheses=hypotheses,
            environment=environment, brought=tuple(records_of([environment])),
            arms=tuple(arm.name for arm in comparison.arms), metric=metric,
            metric_chosen_for="" if requirements.metric is None else requirements.metric.words, smallest_effect=effect,
            promised_power=requirements.power, noise=analysis.noise if analysis else None,
            no_noise_because=self.calculator.explain_unknown_noise(self.draft),
            pilot_runs_first=locked.pilot.seeds * self.draft.arms if locked and locked.pilot else 0,
            plumbing_run_first=first is not None and first.plumbing is not None, design=locked,
            seeds=_first_seeds(locked) if locked else None, evaluations=self.calculator.list_evaluations(self.draft),
            power_curve=tuple(self._build_power_curve(analysis, effect, locked)) if analysis else (),
            rounds=tuple(self._list_rounds(locked, analysis)) if locked else (),
            stages=tuple(PricedStage(s.name, s.runs, s.seconds_per_run, run_hours([s])) for s in stages),
            total_s=self.calculator.cost(stages), at_once=self.on.describe(), cost=self._cost(stages, metric),
            priced_by=describe_basis(self.inputs.compiler.price, comparison.jobs),
            expected=tuple(self._expect_cost(locked, true) for true in (0.0, effect)) if locked and analysis else (),
            requested_metric=requirements.metric, requested_episodes=requirements.episodes,
            budget=self.calculator.describe_budget(),
        )  # fmt: skip

    def _cost(self, stages: Sequence[Stage], metric: Metric) -> PlanCost:
        on, prices, price, job = self.on, self.prices, self.inputs.compiler.price, self.draft.job
        hours, model = run_hours(stages), self.planner.model or ""
        held = [(name, hours * amount, each) for name, amount, each in prices.of_run(on)]
        whole = sum(amount for _, amount, _ in held)
        turns = (self.designed.proposal.turn, self.designed.turn)
        spoken = sum(turn.prompt_tokens for turn in turns), sum(turn.completion_tokens for turn in turns)
        of_model = prices.planner_million_tokens.get(model, prices.planner_million_tokens.get("*", (None, None)))
        parts = [*held, *((model, count / 1e6, each) for count, each in zip(spoken, of_model, strict=True))]
        unpriced = tuple(dict.fromkeys(name for name, amount, each in parts if amount and each is None))
        money = None if unpriced else sum(amount * (each or 0.0) for _, amount, each in parts)
        runs = 3600 * hours / price.run_with_evaluations(job, metric)  # as many of the control
        episodes = {"trained": job.steps * job.episodes_per_step, "evaluated": 2 * metric.episodes}
        tokens = {name: round(runs * n * price.estimates.sampled_tokens(job)) for name, n in episodes.items()}
        tokens |= {"planner_read": spoken[0], "planner_written": spoken[1]}
        gpu, server = whole if on.devices else 0.0, whole if on.servers else 0.0
        return PlanCost(gpu, whole - gpu - server, server, tokens, money, prices.currency, unpriced)

    def _list_rounds(self, locked: Design, analysis: PowerAnalysis | None) -> Iterator[RoundRow]:
        if (place := locked.inquiry) is None:
            return
        ledgers, seeds = AlphaLedgers.begin(place.of), len(locked.seeds)
        levels = zip(ledgers.differences.future_levels(), ledgers.equivalences.future_levels(), strict=True)
        for number, (difference, equivalence) in enumerate(levels, start=1):
            if analysis is None:
                yield RoundRow(number, difference, equivalence, None, None)
                continue
            at = replace(analysis, level=difference, alike=equivalence / (self.draft.claims + self.draft.mediators))
            half = replace(at, promised=LEAST_POWER)
            yield RoundRow(
                number, difference, equivalence, at.min_detectable_effect(seeds), half.min_detectable_effect(seeds)
            )

    def _stages(self, locked: Design | None, analysis: PowerAnalysis | None) -> tuple[Stage, ...]:
        if self.calculator.explores:
            return (self.calculator.exploration(self.draft),)
        if locked is not None:
            screened = self.draft.with_candidates(locked.screen.candidates) if locked.screen else self.draft
            return self.calculator.stages(screened, _first_seeds(locked))
        if analysis is None:
            return self.calculator.stages(self.draft, FIRST_ANALYSIS)
        return self.calculator.stages(self.draft, analysis.seeds_needed(self.draft.effect) or MOST_SEEDS)

    def _build_power_curve(self, analysis: PowerAnalysis, effect: float, locked: Design | None) -> Iterator[PowerRow]:
        need = analysis.seeds_needed(effect) or MOST_SEEDS
        around = {need - 1, need, need + 1} & set(range(LEAST_SEEDS, max(MOST_SEEDS, need) + 1))
        for seeds in sorted({2, 3, 4, 5, 6, 8, 12, 16, MOST_SEEDS} | around):
            if locked is not None and seeds == len(locked.seeds):
                stages = self._stages(locked, None)
            else:
                stages = self.calculator.stages(self.calculator.widen_screen(self.draft, seeds), seeds)
            yield PowerRow(
                seeds=seeds, power=analysis.power(seeds, effect), detectable=analysis.min_detectable_effect(seeds),
                runs=sum(stage.runs for stage in stages), seconds=self.calculator.cost(stages),
                run_hours=run_hours(stages), affordable=self.calculator.affords(stages),
            )  # fmt: skip

    def _expect_cost(self, locked: Design, effect: float) -> ExpectedCost:
        assert locked.noise is not None
        made = average_sample_size(locked.looks, effect, locked.noise.sd) / len(locked.seeds)
        stages = self._stages(locked, None)
        confirm = next(stage for stage in stages if stage.name == "confirm")
        others = stages[: stages.index(confirm)]
        before, cost = self.calculator.cost(others), self.calculator.cost((*others, confirm))
        runs = confirm.runs * made + sum(stage.runs for stage in others)
        return ExpectedCost(effect, runs, before + made * (cost - before))


def _first_seeds(locked: Design) -> int:
    return len(locked.seeds) if locked.pilot is None else locked.pilot.seeds


def run_hours(stages: Sequence[Stage]) -> float:
    return sum(stage.runs * stage.seconds_per_run for stage in stages) / 3600


def average_sample_size(analyses: Sequence[InterimAnalysis], effect: float, sd: float) -> float:
    """Return the seeds of each arm that are run on average, if `effect` is the true difference."""
    from scipy import special  # takes a while to import, which a command that plans nothing should not wait for

    from studies.statistics.power import crossings

    last = analyses[-1].seeds
    bounds = [-float(special.ndtri(look.alpha / 2)) for look in analyses]
    drift = effect / (sd * math.sqrt(2 / last))
    ends = crossings(bounds[:-1], [look.seeds / last for look in analyses[:-1]], drift) if len(analyses) > 1 else ()
    saved = sum((end.above + end.below) * (last - look.seeds) for end, look in zip(ends, analyses, strict=False))
    return last - saved
