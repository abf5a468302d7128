"""What a comparison promises and how its stages are split, before it is sized.

A draft is sound (every arm is a valid job that differs from the control in what is declared) and has no seeds yet. The
numbers of a screen were chosen by simulation (`benchmarks/simlab.py`, docs/calibration.md): a screening run is half as
long as a whole one, and the best go to fresh seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from research.design.pricing import EVALUATION_EPISODES, Estimates, Pricing, Stage
from research.errors import DesignRefused, Unmeasurable
from research.installation.base_job import require_agreement
from research.proposals.actions import EvaluateApart, ProposeDesign, ProposedScreen
from research.proposals.arms import ResolvedArms, Scalar, compare, constant_value, field_value, is_job, set_knobs
from research.proposals.metric_choice import (
    MetricChoice,
    RequestedMetric,
    default_effect,
    format_difference,
    metric_range,
)
from studies.metrics import kind_of
from studies.metrics.base import LEAST_POINTS
from studies.metrics.builtin import Success
from studies.records.alpha import MOST_ROUNDS
from studies.records.design import KNOB, MATCHED, MODEL, MOST_REPAIRS, PLAYING, REWARD, Arm, Hypothesis, Kind, Metric
from studies.records.procedure import Extension, Prediction, Rung, Screen, ScreenField
from studies.records.runs import TRAINING_AREA
from studies.records.statements import metric_name
from studies.statistics.power import widest
from swarm.environments.custom import CustomEnvironment
from swarm.environments.registry import environments
from swarm.job import Job, TinyModel, knobs_of

DEFAULT_POWER = 0.8
DEFAULT_ANALYSES = 3
DEFAULT_REPAIRS = 2
MOST_ANALYSES = 5
LEAST_EPISODES, MOST_EPISODES = 64, 8192
_LEAST_OF_RANGE: Final = 1e-3
"""No effect of a time or a cost is smaller than such a part of its range: who says less means a share of it."""
PREDICTION_LEVEL = 0.8
CONTROL = "control"
MOST_CANDIDATES = 60
"""Most candidates of a screen, whatever the budget."""
INITIAL_SHARE = 0.3
"""Share of the candidates that are spread over the space before the surface is asked."""
LEAST_INITIAL = 4
"""Of these at the least, or there is nothing to draw a surface through."""
BOUND = 2.0
"""Standard deviations of the surface above its mean that candidates are chosen by (`Screen.bound`)."""
RISES: Final = 0.02
"""Least mean rise of training success, from a run's third quarter to its last, with which all runs are longer."""
SCREEN_LENGTH = 0.5
"""Share of a whole run's steps that a screening run has."""


@dataclass(frozen=True, slots=True)
class StatisticalRequirements:
    """The promise that a design must keep; raises DesignRefused for one that no design could."""

    effect: float | None = None
    """Smallest effect of interest, in the metric's own unit, where a hypothesis names none; None for the metric's."""
    power: float = DEFAULT_POWER
    """Probability of a claim in the right direction, if the true difference is the effect."""
    analyses: int = DEFAULT_ANALYSES
    """Most times the data are analysed."""
    episodes: int | None = None
    """Hidden episodes of an evaluation; None for as many as make a design cheapest."""
    metric: RequestedMetric | None = None
    """What somebody asks runs to be judged by; None for success, or its gain where models are compared."""
    rounds: int | None = 1
    """Most rounds of the inquiry, over which its level is shared; None for as many as the budget leaves time for."""
    repairs: int = DEFAULT_REPAIRS
    """How often code that crashes early in training may be repaired, where its planner does not say."""
    power_named: bool = False
    """Whether somebody asked for just this power: a design that has less is refused then, as long as nothing ran."""
    extend_to: int | None = None
    """Steps to which runs are made longer where the first ones still rise; None for never."""

    def __post_init__(self) -> None:
        if self.effect is not None and (self.metric is None or self.metric.kind == Success.name):
            require_effect_in_range(self.effect, Metric(meaning="hidden success", episodes=1))
        elif self.effect is not None and not (self.effect > 0 and math.isfinite(self.effect)):
            raise DesignRefused(  # the range of others is known with their jobs
                f"expected a smallest effect above 0, in the unit of --metric {self.metric.text if self.metric else ''}"
                f"; found {self.effect:g}; leave --effect out for the metric's own"
            )
        if not 0.5 <= self.power <= 0.99:
            raise DesignRefused(f"expected a power from 0.5 to 0.99; found {self.power:g}; 0.8 is usual")
        if not 1 <= self.analyses <= MOST_ANALYSES:
            raise DesignRefused(
                f"expected 1 to {MOST_ANALYSES} looks; found {self.analyses}; use --looks {DEFAULT_ANALYSES}"
            )
        if self.rounds is not None and not 1 <= self.rounds <= MOST_ROUNDS:
            raise DesignRefused(f"expected 1 to {MOST_ROUNDS} rounds; found {self.rounds}; leave --rounds out")
        if not 0 <= self.repairs <= MOST_REPAIRS:
            raise DesignRefused(f"expected 0 to {MOST_REPAIRS} repairs; found {self.repairs}; leave --repairs out")
        if self.episodes is not None and not LEAST_EPISODES <= self.episodes <= MOST_EPISODES:
            raise DesignRefused(
                f"expected {LEAST_EPISODES} to {MOST_EPISODES} evaluation episodes; found {self.episodes}; "
                f"use --episodes {EVALUATION_EPISODES}"
            )

    @property
    def hidden_episodes(self) -> int:
        """How many an evaluation has before any are chosen."""
        return self.episodes or EVALUATION_EPISODES

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        effect = settings.get("effect")
        return cls(
            effect=None if effect is None else float(effect), power=float(settings.get("power", DEFAULT_POWER)),
            analyses=int(settings.get("looks", DEFAULT_ANALYSES)),
            episodes=settings.get("episodes", EVALUATION_EPISODES), metric=RequestedMetric.from_settings(settings),
            rounds=settings.get("rounds", 1), repairs=settings.get("repairs", DEFAULT_REPAIRS),
            power_named=settings.get("power_named", False), extend_to=settings.get("extend_to"),
        )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        usual = {"effect": None, "rounds": 1, "power_named": False, "repairs": DEFAULT_REPAIRS, "extend_to": None}
        named = {name: value for name in usual if (value := getattr(self, name)) != usual[name]}
        asked = {} if self.metric is None else self.metric.settings()
        return {"power": self.power, "looks": self.analyses, "episodes": self.episodes, **asked, **named}

    def min_effect(self, metric: Metric) -> float:
        """Return a study's smallest effect of interest; raise DesignRefused for one beyond the metric's range."""
        if self.effect is None:
            return default_effect(metric)
        require_effect_in_range(self.effect, metric)
        return self.effect

    def choose_effect(self, effect: float | None, metric: Metric) -> float:
        """Return the effect that counts where a planner wants one; raise DesignRefused for one above the study's."""
        least = self.min_effect(metric)
        if effect is None:
            return least
        if effect > least and self.effect is None and metric.unit:
            return least  # a part of the range, which was another where it was named
        if effect > least:
            raise DesignRefused(
                f"expected a smallest_effect of at most {format_difference(metric, least)}, which is the study's; "
                f"found {effect:g}; name {least:g} or a smaller one"
            )
        require_effect_in_range(effect, metric)
        return effect

    def min_effect_of(self, hypotheses: Sequence[Hypothesis], metric: Metric) -> float:
        """Return the smallest effect of interest of all claims; raise DesignRefused for one above the study's."""
        return min(self.choose_effect(claim.smallest_effect, metric) for claim in hypotheses)


def require_effect_in_range(effect: float, metric: Metric) -> None:
    """Raise DesignRefused for an effect that is none, or that no two runs can differ by."""
    most = metric_range(metric)
    least = 0.0 if metric.cut_at is None else _LEAST_OF_RANGE * most
    if least < effect < most:
        return
    ends = f"{metric.worst:g} to {metric.best:g}" if metric.unit else "a share"
    bounds = f"above {least:g} and below {format_difference(metric, most)}"
    message = f"expected a smallest effect {bounds}, as the metric is {ends}; found {effect:g}"
    usual = format_difference(metric, default_effect(metric))
    raise DesignRefused(f"{message}; use --effect {default_effect(metric):g}, which is {usual}", model_feedback=message)


def check_prediction(direction: str, low: float, high: float, metric: Metric | None = None) -> None:
    """Raise DesignRefused for a prediction that contradicts its claim everywhere, or that a metric cannot reach."""
    timed = metric is not None and metric.unit and metric.horizon is not None
    if metric is not None and not timed and max(abs(low), abs(high)) > metric_range(metric):
        raise DesignRefused(
            f"expected a predicted interval within {format_difference(metric, metric_range(metric))} either way, "
            f"as the metric reaches from {metric.worst:g} to {metric.best:g}; found {low:g} to {high:g}; "
            f"predict a difference of {metric_name(metric)}"
        )
    if (direction == "increase" and high <= 0) or (direction == "decrease" and low >= 0):
        raise DesignRefused(
            f"expected a predicted interval that reaches into the direction {direction!r}; found {low:g} to {high:g}, "
            "which contradicts it; claim the other direction, or predict what you claim"
        )


def count_initial(candidates: int) -> int:
    """Return how many of the candidates are spread over the space before the surface is asked."""
    return min(candidates, max(LEAST_INITIAL, round(INITIAL_SHARE * candidates)))


@dataclass(frozen=True, slots=True)
class DesignDraft:
    """A comparison without seeds."""

    comparison: ResolvedArms
    """The arms; with a screen, the control alone."""
    effect: float
    """The smallest effect that one of its claims is about."""
    families: int = 1
    """Variables that claims are about."""
    screen: Screen | None = None
    """The least screen, with no seed yet (0); `with_candidates` widens it."""
    points: int = 0
    """Most candidates that a screen may try."""
    replication: tuple[Job, ...] = ()
    """The arms' jobs in the replication's environment; empty for none."""
    weights: tuple[float, ...] = ()
    """Of an interaction or a trend, what the mean of each arm counts in its effect; empty for differences."""
    kind: Kind = "difference"
    mediators: int = 0
    contrasts: int = 0
    """Claims on weighted sums of the same arms; 0 for differences."""
    evaluate_apart: EvaluateApart = False
    extend_to: int = 0
    """Steps of the longest runs there may be; 0 where runs are as long as the job."""

    @property
    def extension(self) -> Extension | None:
        """When its runs are longer: by training success in the third quarter of their steps and in the last one."""
        quarter, steps = self.job.steps // 4, self.job.steps
        ends = (steps - quarter, steps)
        before, last = (f"logged:critic/success/mean:mean:{end - quarter + 1}-{end}" for end in ends)
        return Extension(steps=self.extend_to, before=before, last=last, rise=RISES) if self.extend_to else None

    @property
    def job(self) -> Job:
        """The control's."""
        return self.comparison.base

    @property
    def varies_model(self) -> bool:
        """Whether its arms begin with different models, so that runs are judged by what they gain."""
        return any(MODEL in arm.overrides for arm in self.comparison.arms)

    @property
    def played(self) -> tuple[Job, ...]:
        """All jobs whose plays runs may be of, as far as they are known before the runs."""
        coded = any("agent" in arm.slots for arm in self.comparison.arms)
        return () if coded or self.screen is not None else (*self.comparison.jobs, *self.replication)

    @property
    def varies_steps(self) -> bool:
        return any("steps" in arm.overrides for arm in self.comparison.arms)

    @property
    def arms(self) -> int:
        return 1 + self.screen.confirmed if self.screen else len(self.comparison.arms)

    @property
    def claims(self) -> int:
        return self.contrasts or self.arms - 1

    @property
    def compared(self) -> int:
        """How many treatments one variable has, at the most."""
        return self.claims - self.families + 1

    @property
    def chosen(self) -> set[str]:
        """Return the slots of code which training tasks are played, and how, is up to."""
        return {slot for arm in self.comparison.arms for slot in arm.slots} - {REWARD, "advantage"}

    def with_candidates(self, candidates: int) -> "DesignDraft":
        assert self.screen is not None
        counts = {"candidates": candidates, "initial": count_initial(candidates)}
        return replace(self, screen=self.screen.model_copy(update=counts))

    def with_steps(self, steps: int) -> "DesignDraft":
        base, *jobs = (job.model_copy(update={"steps": steps}) for job in (self.job, *self.comparison.jobs))
        replication = tuple(job.model_copy(update={"steps": steps}) for job in self.replication)
        return replace(self, comparison=replace(self.comparison, base=base, jobs=tuple(jobs)), replication=replication)

    def metric(self, judge: MetricChoice, episodes: int) -> Metric:
        """Return what its runs are judged by; raise DesignRefused for what its environment does not give."""
        if self.evaluate_apart == "agent":  # which lives through an evaluation, and could know a task again
            episodes = min(episodes, len(environments()[self.job.environment].tasks("hidden")))
        metric = judge.metric(self.comparison.jobs, episodes, models=self.varies_model, played=self.played)
        coded = sorted({slot for arm in self.comparison.arms for slot in arm.slots})
        if coded and (metric.key.startswith("logged/critic/") or (self.chosen and metric.kind == TRAINING_AREA)):
            found = f"found {metric_name(metric)}, which the code of {coded[0]} makes itself; ask for another one"
            raise DesignRefused(f"expected a metric of what training does where {coded[0]} differs; {found}")
        varied = sorted({name for arm in self.comparison.arms for name in arm.overrides if name.startswith(KNOB)})
        if self.evaluate_apart == "agent":
            return self._evaluated_by_agent(metric, varied)
        if not varied:
            return metric
        if (both := self.evaluate_apart == "both") and kind_of(metric).of_environment:
            raise DesignRefused(f"expected evaluate = control or apart beside {metric_name(metric)}; found both")
        if both or not self.evaluate_apart:
            if kind_of(metric).name == TRAINING_AREA:
                found = f"found {metric_name(metric)}, of plays at each arm's own value; ask for --metric area"
                raise DesignRefused(f"expected a metric of evaluations where {varied[0]} differs; {found}")
            held = {f"{KNOB}{name}": value for name, value in self.job.environment_args.items()}
            if self.replication:  # whose game has defaults of its own
                held |= {name: value for name, value in self.comparison.arms[0].overrides.items() if name in varied}
            return metric.model_copy(update={"knobs": held, "also_own": both})
        return metric.model_copy(update={"meaning": f"{metric.meaning}, each arm at its own {' and '.join(varied)}"})

    def _evaluated_by_agent(self, metric: Metric, knobs: Sequence[str]) -> Metric:
        kind, playing = kind_of(metric), any(slot in PLAYING for arm in self.comparison.arms for slot in arm.slots)
        before = kind.reads_initial or kind.rates  # which code that plays badly before training would raise
        if not playing or knobs or self.replication or metric.schedule is not None or kind.of_environment or before:
            raise DesignRefused(
                "expected agent or prompt varied, no knob or replication, and a metric of plays after training alone "
                f"where arms' agents evaluate; found another design, by {metric_name(metric)}; leave evaluate_apart out"
            )
        return metric.model_copy(update={"evaluate_by": "the arm's agent"})

    def stages(self, seeds: int, price: Pricing, metric: Metric) -> tuple[Stage, ...]:
        """Return what is run with so many seeds, at the worst."""

        def stage(name: str, runs: int, jobs: Sequence[Job], metric: Metric = metric) -> Stage:
            return Stage(name, runs, max(price.run_with_evaluations(job, metric) for job in jobs))

        stages = []
        if self.screen is not None:
            steps, on_search = self.screen.rungs[0].steps, metric.model_copy(update={"split": "search"})
            short = self.job.model_copy(update={"steps": steps})
            stages.append(stage(f"screen, {steps} steps", self.screen.candidates, [short], on_search))
        if self.extend_to:
            stages.append(stage(f"first, {self.job.steps} steps", seeds * self.arms, self.comparison.jobs))
        longest = self.with_steps(self.extend_to) if self.extend_to else self
        stages.append(stage("confirm", seeds * self.arms, longest.comparison.jobs))
        if self.replication:
            stages.append(stage("replicate", seeds * self.arms, longest.replication))
        return tuple(stages)


def draft_design(
    hypotheses: Sequence[Hypothesis], proposal: ProposeDesign, base: Job | None, requirements: StatisticalRequirements,
    judge: MetricChoice | None = None,
) -> DesignDraft:  # fmt: skip
    """Return what a planner proposed, without seeds; raise DesignRefused for what is not sound."""
    judge = judge or MetricChoice(requirements.metric, Estimates().training)
    constants: dict[str, Scalar] = {}
    for constant in proposal.constants:
        if constant.field in constants or constant.field == "steps":
            raise DesignRefused(f"constants name {constant.field!r} twice, or beside `steps`; give each field once")
        constants[constant.field] = constant.value
    steps_compared = {claim.varied["steps"][0] for claim in hypotheses if "steps" in claim.varied}
    if proposal.steps is not None and proposal.steps not in steps_compared:
        constants["steps"] = proposal.steps
    if proposal.screen is not None:
        if hypotheses:
            raise DesignRefused("expected a screen without hypotheses, as its claims are on what it finds; found both")
        return _draft_search(proposal, proposal.screen, constants, base, requirements, judge)
    if not hypotheses:
        raise DesignRefused("expected hypotheses before a design; found none; propose some first")
    comparison = compare(proposal.environment, hypotheses, constants, base)
    replication = _replication_jobs(proposal, comparison)
    for job in (comparison.base, *replication[:1]):
        _require_environment(job)
    claim = hypotheses[0]
    families, mediators = len({claim.family for claim in hypotheses}), sum(len(c.mediators) for c in hypotheses)
    draft = DesignDraft(
        comparison, 0.0, families, replication=replication, mediators=mediators, evaluate_apart=proposal.evaluate_apart
    )
    metric = draft.metric(judge, requirements.hidden_episodes)
    if (requirements.episodes or 0) > metric.episodes:
        expected = f"expected at most {metric.episodes} episodes, each hidden task once, where the arms' agents play"
        raise DesignRefused(f"{expected}; found --episodes {requirements.episodes}")
    if claim.kind != "difference":
        if kind_of(metric).rates:
            raise DesignRefused(
                f"expected differences of {metric_name(metric)}, which is judged by counting runs, exactly; found "
                f"{'an interaction' if claim.moderator else 'a trend'}, which is a sum of means; compare two arms, or "
                "ask for another metric"
            )
        hardest = widest([entry.weights for entry in hypotheses])
        draft = replace(draft, weights=hardest, kind=claim.kind, contrasts=len(hypotheses))
    draft = replace(draft, effect=requirements.min_effect_of(hypotheses, metric))
    return _extend(draft, proposal, requirements, metric)


def _extend(
    draft: DesignDraft, proposal: ProposeDesign, requirements: StatisticalRequirements, metric: Metric
) -> DesignDraft:
    steps, longest = draft.job.steps, proposal.extend_to or requirements.extend_to
    if longest is None or proposal.extend_to == steps:
        return draft
    if draft.screen is not None:
        fault = "settings that are compared, to make all their runs longer; found a search"
    elif draft.varies_steps:
        fault = "arms of as many steps, to make all of them longer; found some that differ in theirs"
    elif metric.horizon is not None or kind_of(metric).rates or metric.kind in MATCHED:
        fault = f"a mean of what runs are at their end, to make them longer; found {metric_name(metric)}"
    elif draft.chosen:
        fault = f"training success that no code makes itself, to make runs longer by; found {min(draft.chosen)}"
    elif steps < 8 or longest <= steps:
        fault = f"runs of 8 steps or more, and more to extend them to; found {steps} and {longest}"
    else:
        return replace(draft, extend_to=longest)
    own = f"expected {fault}"
    raise DesignRefused(f"{own}; leave --extend-to out", model_feedback=f"{own}; set extend_to to the number of steps")


def _draft_search(
    proposal: ProposeDesign, proposed: ProposedScreen, constants: Mapping[str, Scalar], base: Job | None,
    requirements: StatisticalRequirements, judge: MetricChoice,
) -> DesignDraft:  # fmt: skip
    if proposal.environment not in environments():
        known = ", ".join(environments())
        raise DesignRefused(f"expected an environment among {known}; found {proposal.environment!r}")
    knobs = []
    for knob in proposed.knobs:
        if knob.field == "steps":
            raise DesignRefused("expected knobs other than steps, as a screen trains shortly itself; found steps")
        ladder = tuple(dict.fromkeys(field_value(knob.field, value) for value in knob.values))
        if len(ladder) < 2:
            raise DesignRefused(f"{knob.field}: expected two different values to search; found {ladder[0]!r} alone")
        knobs.append(ScreenField(field=knob.field, values=ladder))
    fixed = {name: constant_value(name, value) for name, value in constants.items()}
    if both := fixed.keys() & {knob.field for knob in knobs}:
        raise DesignRefused(f"{min(both)} is searched, so it cannot be held constant; leave it out")
    require_agreement(base, {name: [value] for name, value in fixed.items()})
    fixed |= {knob.field: field_value(knob.field, knob.control) for knob in proposed.knobs if knob.control is not None}
    values = {**(base or Job()).model_dump(), "environment": proposal.environment, **fixed}
    if not is_job(values, {}):
        raise DesignRefused("the control of the screen is no valid job; choose other constants")
    job = Job.model_validate(values)
    _require_environment(job)
    tried = [knobs_of({searched.field: value}) for searched in knobs for value in searched.values]
    for candidate in tried:
        set_knobs(job.environment, candidate)
    played = set_knobs(job.environment, job.environment_args)
    held = {**{f"{KNOB}{name}": played.knob(name) for name in played.list_knobs()}, **job.model_dump()}
    control = Arm(name=CONTROL, overrides={knob.field: held[knob.field] for knob in knobs})
    comparison = ResolvedArms(job, (control,), (job,))
    metric = judge.metric((job,), requirements.hidden_episodes)
    better = "increase" if metric.higher_is_better else "decrease"
    check_prediction(better, proposed.predicted_low, proposed.predicted_high, metric)
    effect = requirements.choose_effect(proposed.smallest_effect, metric)
    inside = all(control.overrides[knob.field] in knob.values for knob in knobs)
    points, steps = math.prod(len(knob.values) for knob in knobs) - int(inside), _rung_steps(job, knobs, metric)
    if points <= proposed.confirm:
        raise DesignRefused(
            f"expected more combinations than are confirmed; found {points} beside the control, and "
            f"{proposed.confirm} to confirm; compare them by hypotheses instead"
        )
    candidates = min(points, max(proposed.confirm + 1, LEAST_INITIAL))
    screen = Screen(
        knobs=tuple(knobs), sampler="surface", bound=BOUND, candidates=candidates, initial=count_initial(candidates),
        rungs=(Rung(steps=steps, keep=proposed.confirm),), seed=0,
        prediction=Prediction(
            low=proposed.predicted_low, high=proposed.predicted_high, level=PREDICTION_LEVEL,
            probability=proposed.probability,
        ),
    )  # fmt: skip
    replication = _replication_jobs(proposal, comparison, tried)
    most, apart = min(points, MOST_CANDIDATES), proposal.evaluate_apart
    draft = DesignDraft(comparison, effect, 1, screen, most, replication, evaluate_apart=apart)
    return _extend(draft, proposal, requirements, metric)


def _rung_steps(job: Job, knobs: Sequence[ScreenField], metric: Metric) -> int:
    usual = math.ceil(SCREEN_LENGTH * job.steps)
    if (schedule := metric.schedule) is None:
        return usual
    batches = next((knob.values for knob in knobs if knob.field == "episodes_per_step"), (job.episodes_per_step,))
    least = min(int(str(batch)) for batch in batches)
    for steps in range(usual, job.steps + 1):
        if len(schedule.steps({"steps": steps, "episodes_per_step": least})) + 2 >= LEAST_POINTS:
            return steps
    raise Unmeasurable(
        f"expected candidates that are evaluated {LEAST_POINTS} times or more in {job.steps} steps, to tell "
        f"{metric_name(metric)}; found batches of {least} episodes, which an evaluation every {schedule.every} "
        "episodes does not tell; leave the smallest batches out, or train more steps"
    )


def _replication_jobs(
    proposal: ProposeDesign, comparison: ResolvedArms, tried: Sequence[Mapping[str, Scalar]] = ()
) -> tuple[Job, ...]:
    if proposal.replication is None:
        return ()
    other = proposal.replication.environment
    if other not in environments():
        raise DesignRefused(f"expected a replication in one of {', '.join(environments())}; found {other!r}")
    if other == proposal.environment:
        raise DesignRefused(f"expected a replication in another environment than {other}; found the same")
    for knobs in (*(job.environment_args for job in comparison.jobs), *tried):
        set_knobs(other, knobs)
    return tuple(job.model_copy(update={"environment": other}) for job in comparison.jobs)


def _require_environment(job: Job) -> None:
    environment = environments()[job.environment]
    imitates = isinstance(job.model, TinyModel) and job.backend != "fake"
    if isinstance(environment, CustomEnvironment) and imitates and not environment.manifest.demonstrations:
        raise DesignRefused(
            f"expected demonstrations of {environment.name}, which a tiny model imitates before it is trained; found "
            "none; give the environment `imitate`, or train a model of your own: --model DIR",
            model_feedback=f"expected demonstrations of {environment.name} for the tiny model; found none; decline",
        )
