"""The design compiler: a proposal becomes a lockable design, or is refused with a reason.

A compiled design is sound, sees its smallest effect of interest with the promised power by the noise bank's estimate,
and is affordable by its own price at the worst. Where the bank knows nothing, its first runs size it, by a rule that is
locked. Seeds come from the caller's source; no planner sees them. The compiler is pure: it runs nothing.
"""

import hmac
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from research.design import headroom
from research.design.comparison import PREDICTION_LEVEL, DesignDraft, check_prediction, draft_design
from research.design.noise_bank import LEAST_DF
from research.design.power import MOST_SEEDS, PowerAnalysis, Test
from research.design.pricing import Stage, describe_basis
from research.design.sample_size import LIKELY_SEEDS, SampleSizeCalculator, Unaffordable, refuse_exploring
from research.environments.catalog import records_of
from research.errors import BadInput, DesignRefused
from research.installation.base_job import require_agreement
from research.proposals import actions
from research.proposals.actions import DEFAULT_TABLE, Propose, ProposeDesign
from research.proposals.arms import NO_MODELS, ComparedModels, common_controls, variable_value
from research.proposals.arms import add_potential_confounders as add_confounders
from research.proposals.metric_choice import RequestedMetric, add_evaluations, default_effect
from research.proposals.slots import SLOTS, does_as_written
from studies.checks.alarms import watchdog_of
from studies.metrics import kind_of
from studies.metrics.base import FORMS, Logged
from studies.metrics.builtin import Gain, TokensPerTask
from studies.records.alpha import ALPHA, Exploration
from studies.records.design import Arm, Design, Hypothesis, Metric, NoisePlan, Price, is_expression
from studies.records.procedure import CollapseRule, Pilot, PowerTarget, Prediction, Replication, Rule, StartRule
from studies.records.runs import EXCLUDED_CODES, WORST_CODES, screen_metric
from studies.records.statements import metric_name, statement_of
from swarm.environments.registry import environments
from swarm.job import Job

MOST_EXCLUDED = 0.2
"""Largest share of an arm's runs that may be excluded: of five runs one, as with two the rest is a choice."""
_MOST_REDRAWS = 100
LEAST_POWER = 0.5
"""Power with which a later round is still worth asking."""
LESS_POWER = (0.7, 0.6, LEAST_POWER)
"""With which power a later round may be asked, where the budget carries no more."""
_QUOTED = {*(Hypothesis.model_fields.keys() & actions.ProposedHypothesis.model_fields)}
"""Fields of a hypothesis that are what its proposal says, but for those that are resolved."""
REPLICATING_TABLE = (
    Rule(name="found", when="verdict == 'supported'", then="replicate"),
    Rule(name="decided", when="verdict in ('refuted', 'equivalent')", then="settle"),
    *DEFAULT_TABLE[1:],
)
"""The default table, where a supported claim is tried once more in another setting."""
_WIDE: Final = (Logged.name, TokensPerTask.name)
"""Kinds of metrics whose range may be far wider than what runs come to."""


def accept_hypotheses(
    proposal: Propose, models: ComparedModels = NO_MODELS, metric: Metric | None = None, round: int = 1
) -> tuple[Hypothesis, ...]:
    """Return the proposal's hypotheses as records `h1`, `h2`, ... (`r2h1` in round 2); raise DesignRefused."""
    accepted = []
    for index, entry in enumerate(proposal.hypotheses, start=1):
        low, high = entry.predicted_low, entry.predicted_high
        check_prediction(entry.direction, low, high)
        control, treatment = (variable_value(entry.variable, value, models) for value in entry.sides)
        ladder = tuple(variable_value(entry.variable, actions.as_json(value), models) for value in entry.ladder)
        prediction = Prediction(low=low, high=high, level=PREDICTION_LEVEL, probability=entry.probability)
        resolved = {"statement": "-", "said": entry.statement, "control": control, "treatment": treatment}
        resolved |= {"id": f"h{index}" if round == 1 else f"r{round}h{index}", "ladder": ladder}
        claim = Hypothesis(**entry.model_dump(include=_QUOTED) | resolved | {"prediction": prediction})
        accepted.append(add_confounders(claim.model_copy(update={"statement": statement_of(claim, metric)})))
    common_controls(accepted)
    collect_code(proposal)
    return tuple(accepted)


def collect_code(proposal: Propose) -> dict[str, str]:
    """Return the source of all code a proposal names; raise DesignRefused where it is missing or not well formed."""
    code: dict[str, str] = {}
    for entry in proposal.hypotheses:
        if entry.variable in SLOTS:
            if (name := str(entry.treatment)) in code:
                raise DesignRefused(f"code: expected a name of its own for each source; found {name!r} twice")
            code[name] = SLOTS[entry.variable].check(entry.code or "")
        elif entry.code:
            raise DesignRefused(
                f"code: expected null beside the variable {entry.variable}; found a source; leave it out"
            )
    return code


@dataclass(frozen=True, slots=True)
class PricedExploration:
    """Runs of each arm, before seeds are drawn that all of them share."""

    why: str
    job: Job
    arms: tuple[Arm, ...]
    metric: Metric
    seconds_per_run: float
    seeds: int = 1

    def plan(self, draw_seed: Callable[[], int], used: frozenset[int]) -> Exploration:
        seed, *more = draw_distinct(draw_seed, self.seeds, used)
        return Exploration(
            why=self.why, environment=self.job.environment, base_job=_under_arms(self.job), arms=self.arms,
            seed=seed, more_seeds=tuple(more), metric=self.metric,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompiledDesign:
    """A sound design that keeps its promise within the budget, before seeds are drawn for it."""

    hypotheses: tuple[Hypothesis, ...]
    proposal: ProposeDesign
    draft: DesignDraft
    compiler: "DesignCompiler"
    """With the power that is promised: less than what was asked for where a later round can have no more."""
    seeds: int = 0
    """Of each arm; where a pilot sizes it, the pilot's."""
    analysis: PowerAnalysis | None = None
    """None where a pilot sizes it."""

    @property
    def job(self) -> Job:
        return self.draft.job

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.compiler.stages(self.draft, self.seeds)

    def affords_repeats(self, times: int) -> bool:
        """Return whether the budget carries it so often; what was shrunk to fit has nothing to share its level with."""
        if self.analysis is not None and self.analysis.promised < self.compiler.requirements.power:
            return False
        seeds = self.seeds if self.analysis is not None else max(self.seeds, LIKELY_SEEDS)
        return self.compiler.affords(self.compiler.stages(self.draft, seeds) * times)

    @property
    def test(self) -> Test:
        if self.analysis is not None:
            return self.analysis.test(self.seeds, self.draft.effect)
        return "contrast" if self.draft.weights else "welch" if self.draft.arms == 2 else "common"

    def explore(self, why: str) -> PricedExploration:
        metric = self.compiler.metric(self.draft)
        scored, name = screen_metric(metric), metric_name(metric).replace("hidden success", "success on search tasks")
        named = scored.model_copy(update={"name": scored.name or name})
        seconds = self.compiler.exploration(self.draft).seconds_per_run
        return PricedExploration(why, self.job, self.draft.comparison.arms, named, seconds)

    def build_lock(self, question: str, draw_seed: Callable[[], int], code: Mapping[str, str]) -> Design:
        """Return the design on seeds of `draw_seed`; with a pilot on as many as it may come to."""
        compiler, analysis, draft, stages = self.compiler, self.analysis, self.draft, self.stages
        other, place, noise = self.proposal.replication, compiler.place, analysis.noise if analysis else None
        shares = place is None and not draft.weights
        count = self.seeds if analysis is not None else MOST_SEEDS
        jobs, metric = draft.comparison.jobs, compiler.metric(draft)
        if beside := compiler.measure_beside(draft, self.hypotheses):
            metric = metric.model_copy(update={"beside": beside})
        # By the price of a whole run: more than a step takes, never less.
        step_s = max(compiler.price.run(add_evaluations(job, metric)) / job.steps for job in jobs)
        seeds = draw_distinct(draw_seed, count * (2 if other else 1) + bool(draft.screen), self.compiler.used)
        arms, repairs = draft.comparison.arms, self.proposal.repairs
        # Code that evaluates could have the runs counted as collapsed, and left out, that went badly.
        counts_all = kind_of(metric).reads_collapses or bool(metric.evaluate_by)
        repairs = compiler.requirements.repairs if repairs is None else repairs
        promised = compiler.requirements.power if analysis is None else analysis.promised
        pilot = Pilot(seeds=self.seeds, most=count, analyses=compiler.requirements.analyses)
        price = Price(
            runs=sum(stage.runs for stage in stages), parallel=compiler.price.parallel,
            seconds_per_run=max(stage.seconds_per_run for stage in stages), total_s=compiler.cost(stages),
            basis=describe_basis(compiler.price, jobs),
        )  # fmt: skip
        job = draft.job.model_dump(include={"algorithm", "normalize_advantage"})
        slots = [slot for arm in arms for slot in arm.slots if does_as_written(slot, job)]
        return Design(
            question=question, environment=draft.job.environment, base_job=_under_arms(draft.job), arms=arms,
            control_arm=arms[0].name, hypotheses=self.hypotheses, seeds=seeds[:count], metric=metric, test=self.test,
            alpha=ALPHA if place is None else place.difference, exclusions=EXCLUDED_CODES, budget=compiler.budget,
            price=price, code=code, built_in={slot: SLOTS[slot].built_in for slot in slots}, noise=noise,
            promise=PowerTarget(power=promised, effect=draft.effect), repairs=repairs if code else 0,
            equivalence_margin=draft.effect, looks=() if analysis is None else analysis.analyses(count),
            multiplicity="none" if draft.claims == 1 else "dunnett_bh" if shares else "dunnett_bonferroni",
            screen=draft.screen.model_copy(update={"seed": seeds[-1]}) if draft.screen else None,
            replication=Replication(environment=other.environment, seeds=seeds[count : 2 * count]) if other else None,
            watchdog=watchdog_of(step_s), decision_table=build_decision_table(self.proposal),
            counted_as_worst=WORST_CODES, most_excluded=MOST_EXCLUDED,
            collapse=None if counts_all else CollapseRule(drop=noise.drop if noise else None),
            start=None if counts_all else StartRule(), scope_reached=counts_all and metric.cut_at is not None,
            shared_seeds=analysis is None or analysis.shares_seeds,
            environments=records_of([draft.job.environment, *([other.environment] if other else [])]),
            inquiry=place, spending="reached", pilot=pilot if analysis is None else None, extension=draft.extension,
        )  # fmt: skip

    def noise_plan(self, draw_seed: Callable[[], int]) -> NoisePlan | None:
        """Return the run with a learning rate of 0 that the design must wait for; None where there is none."""
        if not self.compiler.makes_zero_lr_run(self.job):
            return None
        (seed,) = draw_distinct(draw_seed, 1, self.compiler.used)
        return zero_lr_plan(self.job, self.compiler.metric(self.draft), seed)


@dataclass(frozen=True, slots=True)
class DesignCompiler(SampleSizeCalculator):
    """What designs are judged by: the price list, the budget, the requirements and the noise bank."""

    base: Job | None = None
    """The job under all arms; None for `Job()`."""
    models: ComparedModels = NO_MODELS
    """Models that a hypothesis may compare."""
    used: frozenset[int] = frozenset()
    """Seeds of earlier rounds, which no claim of a later one may rest on."""
    explores: bool = False
    """Whether one run of each arm is all that is made: nothing is tested then, and nothing sized."""

    def metric_in(self, environment: str | None = None) -> Metric:
        """Return what the base job's runs would be judged by in an environment; raise DesignRefused."""
        base = self.base or Job()
        job = base if environment is None else base.model_copy(update={"environment": environment})
        models, size = bool(self.models.by_name), self.requirements.hidden_episodes
        return self.judge.metric((job,), size, models=models, played=(job,))

    def compile(self, hypotheses: Sequence[Hypothesis], proposal: ProposeDesign) -> CompiledDesign:
        """Return the design that tests `hypotheses` (or runs a screen) and keeps the promise; raise DesignRefused."""
        if proposal.screen is not None and self.ledgers.round == 1:  # later ones may begin at what was confirmed
            named = {knob.field: [knob.control] for knob in proposal.screen.knobs if knob.control is not None}
            require_agreement(self.base, named)
        build_decision_table(proposal)
        if proposal.replication is not None and self.place is not None:
            message = "expected no replication in a round of several, as it is a question of its own; found one"
            again = "ask it in the next round"
            raise DesignRefused(f"{message}; {again}, or use --rounds 1", model_feedback=f"{message}; {again}")
        requirements = replace(self.requirements, extend_to=self.extend_to)
        draft = draft_design(hypotheses, proposal, self.base, requirements, self.judge)
        metric = self.metric(draft)
        for measured in (metric, *self.measure_beside(draft, hypotheses).values()):
            headroom.require_steps(draft, measured)
        headroom.require_schedule(draft, metric, self.price.estimates)
        headroom.require_observable_collapse(draft, metric)
        if self.explores:
            self.require_exploration(draft)
            return CompiledDesign(tuple(hypotheses), proposal, draft, self)
        if draft.replication:
            models, played = draft.varies_model, draft.played
            there = self.judge.metric(draft.replication, metric.episodes, models=models, played=played)
            headroom.require_replicable(metric, there)
        self._require_room(draft, metric, hypotheses)
        if self.explain_unknown_noise(draft) is not None:
            compiler = self.choose_episodes(draft)
            try:
                draft, seeds = compiler.size_pilot(draft)
            except Unaffordable:
                if not self.tried:
                    raise
                draft, seeds = compiler.with_listed_prices().size_pilot(draft)
            return CompiledDesign(tuple(hypotheses), proposal, draft, compiler, seeds)
        powers = [self.requirements.power]
        powers += [power for power in LESS_POWER if self.ledgers.round > 1 and power < self.requirements.power]
        for power in powers:
            compiler = replace(self, requirements=replace(self.requirements, power=power)).choose_episodes(draft)
            try:
                draft, seeds, analysis = compiler.size(draft)
                break
            except Unaffordable:
                if power == powers[-1]:
                    if (shrunk := compiler.shrink(draft)) is None:
                        raise
                    seeds, analysis = shrunk
        return CompiledDesign(tuple(hypotheses), proposal, draft, compiler, seeds, analysis)

    def measure_beside(self, draft: DesignDraft, hypotheses: Sequence[Hypothesis]) -> dict[str, Metric]:
        """Return what mediators measure, by their names; raise DesignRefused for one that cannot be measured."""
        found, own = dict[str, Metric](), self.metric(draft)
        longer = draft.extension
        for name in () if longer is None else (longer.before, longer.last):  # of which no claim is
            judge = replace(self.judge, asked=RequestedMetric.parse(name))
            found[name] = judge.metric(draft.comparison.jobs, own.episodes)
        for mediator in (entry for claim in hypotheses for entry in claim.mediators):
            try:
                asked = RequestedMetric.parse(mediator.metric)
            except BadInput as error:
                raise DesignRefused(f"mediators: {error.message}") from error
            metric = draft.metric(replace(self.judge, asked=asked), own.episodes)
            others = [own.key, *(other.key for name, other in found.items() if name != mediator.metric)]
            if metric.schedule is not None and own.schedule is None:
                wanted = f"expected evaluations during training, as {mediator.metric} takes; found {metric_name(own)}"
                raise DesignRefused(f"mediators: {wanted}; take fact:{metric.unit}, or be judged by --metric area")
            metric = metric.model_copy(update={"schedule": metric.schedule and own.schedule, "also_own": False})
            if metric.kind not in FORMS or asked.text != mediator.metric or metric.key in others:
                raise DesignRefused(
                    f"mediators: expected logged: or fact: numbers that nothing else is; found {mediator.metric!r}"
                )
            found[mediator.metric] = metric
        return found

    def describe_wide_ranges(self, draft: DesignDraft, hypotheses: Sequence[Hypothesis]) -> Iterator[str]:
        """Yield a sentence for each number, counted or logged, of which all known runs differ by what is none."""
        beside = self.measure_beside(draft, hypotheses)
        acting = [(beside[each.metric], each.smallest_effect) for claim in hypotheses for each in claim.mediators]
        for metric, named in [(self.metric(draft), draft.effect), *acting]:
            values, least = self.bank.values(draft.job, metric), named or default_effect(metric)
            if metric.kind in _WIDE and len(values) > LEAST_DF and least > max(values) - min(values):
                told = f"all {len(values)} runs known here lie from {min(values):g} to {max(values):g}"
                yield f"{metric_name(metric)}: differences below {least:g} count as none, and {told}; narrow its range"

    def _require_room(self, draft: DesignDraft, metric: Metric, hypotheses: Sequence[Hypothesis]) -> None:
        if kind_of(metric).name == Gain.name:
            differences = [claim for claim in hypotheses if claim.kind == "difference"]  # a contrast is of all arms
            jobs = draft.comparison.jobs if differences else draft.comparison.jobs[:1]
            known = [self.price.estimates.of(job) for job in jobs]
            headroom.require_room_to_gain(draft, self.bank.levels(draft.job, metric), known, differences)
            return
        # where two effects are compared, either may fit although their difference would not
        plain = [claim for claim in hypotheses if claim.kind != "interaction"]
        sought = [claim.direction for claim in plain if claim.sought != "equivalence"]
        directions = sought if hypotheses else ["increase" if metric.higher_is_better else "decrease"]
        headroom.require_signal(draft, metric, self.price.estimates.of(draft.job), directions)
        if not kind_of(metric).rates:  # of a few runs none or all are no bound
            headroom.require_headroom(draft, self.bank, metric, directions)

    def accept_proposal(
        self, proposal: Propose, environment: str | None = None, *, code_allowed: bool = False
    ) -> tuple[Hypothesis, ...]:
        """Return the hypotheses of a proposal as records, none of a search; raise DesignRefused for what none tests."""
        if not code_allowed and any(claim.code and not is_expression(claim.code) for claim in proposal.hypotheses):
            message = (
                "expected an expression behind `=`, or hypotheses about job fields; found Python, which runs in "
                "containers only; vary job fields"
            )
            raise DesignRefused(
                f"{message}, or start the study with --sandbox docker", model_feedback=f"{message}, or decline",
                when="with containers",
            )  # fmt: skip
        judged = None if self.requirements.metric is None else self.metric_in(environment)
        hypotheses = accept_hypotheses(proposal, self.models, judged, self.ledgers.round)
        if self.explores and not hypotheses:
            raise refuse_exploring("a search, which tries values itself in short runs")
        if hypotheses:  # of a search all depends on the knobs, which the design names
            metric = self.metric_in(environment)
            self.requirements.min_effect_of(hypotheses, metric)
            for entry in hypotheses:
                check_prediction(entry.direction, entry.prediction.low, entry.prediction.high, metric)
        return hypotheses

    def check_proposal(self, proposal: Propose, environment: str | None = None, *, code_allowed: bool = False) -> None:
        """Raise DesignRefused for a proposal that cannot be tested in any environment, however short the training."""
        if not (hypotheses := self.accept_proposal(proposal, environment, code_allowed=code_allowed)):
            return
        refusals: dict[str, Unaffordable] = {}
        for name in environments():
            try:
                self.compile(hypotheses, ProposeDesign(environment=name, seeds_per_arm=actions.LEAST_SEEDS))
            except Unaffordable as error:
                if error.shorter:
                    return
                refusals[name] = error
            except DesignRefused:
                return  # unsound with the default constants; the design may choose others, and is judged then
            else:
                return
        fewer = "; or propose fewer hypotheses" if len(hypotheses) > 1 else ""
        refusal = refusals.get(environment or "") or max(refusals.values(), key=lambda error: error.need_s)
        raise DesignRefused(refusal.message + fewer, model_feedback=refusal.model_feedback)


def seed_source(study: str, secret: bytes) -> Callable[[], int]:
    """Return the seeds of a study, one a call: 31 bits of HMAC-SHA256(secret, "study:index"), index 0, 1, ... With a
    secret that is drawn when the design is compiled, nobody can know the seeds before the design is locked."""
    index = itertools.count()

    def draw() -> int:
        code = hmac.digest(secret, f"{study}:{next(index)}".encode(), "sha256")
        return int.from_bytes(code[:4], "big") >> 1

    return draw


def zero_lr_plan(job: Job, metric: Metric, seed: int) -> NoisePlan:
    return NoisePlan(
        environment=job.environment, job=_under_arms(job), seeds=(), metric_key=metric.key, episodes=metric.episodes,
        plumbing=seed, metric=metric,
    )  # fmt: skip


def build_decision_table(proposal: ProposeDesign) -> tuple[Rule, ...]:
    """Return the decision table, the planner's or the default; raise DesignRefused for rules at odds."""
    own = tuple(Rule(name=rule.name, when=rule.when, then=rule.then) for rule in proposal.decision_table)
    names = [*actions.KEPT_NAMES, *(rule.name for rule in own)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        kept = f"{' and '.join(actions.KEPT_NAMES)} are kept for code"
        raise DesignRefused(f"decision table: expected rules with names of their own ({kept}); found {twice} twice")
    if proposal.replication is None and (idle := next((rule for rule in own if rule.then == "replicate"), None)):
        raise DesignRefused(f"decision table: {idle.name} replicates, but no replication is designed; name its setting")
    return own or (REPLICATING_TABLE if proposal.replication else DEFAULT_TABLE)


def _under_arms(job: Job) -> dict[str, Any]:
    return job.model_dump(mode="json", exclude={"seed", "tracking"})


def draw_distinct(draw_seed: Callable[[], int], count: int, used: frozenset[int]) -> tuple[int, ...]:
    seeds: dict[int, None] = {}
    for _ in range(count + len(used) + _MOST_REDRAWS):
        if (seed := draw_seed()) not in used:
            seeds[seed] = None
        if len(seeds) == count:
            return tuple(seeds)
    raise ValueError(f"the source of seeds gave fewer than {count} different ones in {count + _MOST_REDRAWS} draws")
