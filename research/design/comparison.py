"""What a comparison promises and how its stages are split, before it is sized.

The promise (smallest effect of interest, power, looks, evaluation size, metric) is given by flags and kept in
`study.created`; older studies have the defaults. A draft is sound (every arm is a valid job that differs from the
control in what is declared) and has no seeds yet.

The numbers of the usual screen were chosen by simulation on `simlab.families.LEARNED_ON` and judged on other
worlds (`benchmarks/simlab.py`, docs/calibration.md). They count whole runs, so they hold for any job. A screening run
is half as long as a whole one and the best go to fresh seeds: halves favour what learns quickly and ends low. Where
much shorter runs are known to tell (`telling`) they go first, and the best quarter of them is run whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from research.design.pricing import EVALUATION_EPISODES, BudgetCheck, Estimates, Stage
from research.errors import DesignRefused, Unmeasurable
from research.installation.base_job import require_agreement
from research.proposals.actions import ProposeDesign, ProposedScreen
from research.proposals.arms import (
    ResolvedArms,
    Scalar,
    compare,
    constant_value,
    field_value,
    job_validator,
    potential_confounders,
)
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
from studies.records.design import MODEL, REWARD, Arm, Hypothesis, Kind, Metric
from studies.records.procedure import Knob, Prediction, Rung, Screen
from studies.records.statements import metric_name
from swarm.environments.base import PlainEnvironment
from swarm.environments.custom import CustomEnvironment
from swarm.environments.registry import environments
from swarm.job import Job, TinyModel


def require_environment(job: Job, variables: Iterable[str]) -> None:
    """Raise DesignRefused where a job's environment lacks what its model, or what is varied, needs."""
    environment = environments()[job.environment]
    imitates = isinstance(job.model, TinyModel) and job.backend != "fake"
    if isinstance(environment, CustomEnvironment) and imitates and not environment.manifest.demonstrations:
        raise DesignRefused(
            f"expected demonstrations of {environment.name}, which a tiny model imitates before it is trained; found "
            "none; give the environment `imitate`, or train a model of your own: --model-path DIR",
            model_feedback=f"expected demonstrations of {environment.name} for the tiny model; found none; decline",
        )
    if REWARD in variables and not isinstance(environment, PlainEnvironment):
        raise DesignRefused(
            f"expected another variable than the reward in {environment.name}: what generated code trained on is "
            "played again afterwards, which is known to give the same of the built-in environments alone; write the "
            "reward into the environment, and compare two environments"
        )


DEFAULT_POWER = 0.8
DEFAULT_ANALYSES = 3
MOST_ANALYSES = 5
LEAST_EPISODES, MOST_EPISODES = 64, 8192


_LEAST_OF_RANGE: Final = 1e-3
"""No effect of a time or a cost is smaller than such a part of its range: who says less means a share of it."""
_SHARE: Final = Metric(meaning="hidden success", episodes=1)


@dataclass(frozen=True, slots=True)
class StatisticalRequirements:
    """The promise that a design must keep; raises DesignRefused for one that no design could."""

    effect: float | None = None
    """Smallest effect of interest, in the metric's own unit, where a hypothesis names none; None for the metric's."""
    power: float = DEFAULT_POWER
    """Probability of a claim in the right direction, if the true difference is the effect."""
    analyses: int = DEFAULT_ANALYSES
    """Most times the data are analysed."""
    episodes: int = EVALUATION_EPISODES
    """Hidden episodes of each evaluation before and after training."""
    metric: RequestedMetric | None = None
    """What somebody asks runs to be judged by; None for success, or its gain where models are compared."""
    rounds: int | None = 1
    """Most rounds of the inquiry, over which its level is shared; None for as many as the budget leaves time for."""

    def __post_init__(self) -> None:
        _check_effect(self.effect, self.metric)
        if not 0.5 <= self.power <= 0.99:
            raise DesignRefused(f"expected a power from 0.5 to 0.99; found {self.power:g}; 0.8 is usual")
        if not 1 <= self.analyses <= MOST_ANALYSES:
            raise DesignRefused(
                f"expected 1 to {MOST_ANALYSES} looks; found {self.analyses}; use --looks {DEFAULT_ANALYSES}"
            )
        if self.rounds is not None and not 1 <= self.rounds <= MOST_ROUNDS:
            raise DesignRefused(f"expected 1 to {MOST_ROUNDS} rounds; found {self.rounds}; leave --rounds out")
        if not LEAST_EPISODES <= self.episodes <= MOST_EPISODES:
            raise DesignRefused(
                f"expected {LEAST_EPISODES} to {MOST_EPISODES} evaluation episodes; found {self.episodes}; "
                f"use --episodes {EVALUATION_EPISODES}"
            )

    @classmethod
    def from_flags(
        cls,
        effect: float | None,
        power: float,
        analyses: int,
        episodes: int,
        metrics: Sequence[str] = (),
        rounds: int | None = 1,
    ) -> Self:
        """Return the requirements that flags give, None for what was not given; raise DesignRefused or BadMetric."""
        if len(metrics) > 1:
            raise DesignRefused(
                f"expected one metric; found --metric {' and --metric '.join(metrics)}; name the one that decides: a "
                "report tells others beside it"
            )
        return cls(effect, power, analyses, episodes, RequestedMetric.parse(metrics[0]) if metrics else None, rounds)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        effect = settings.get("effect")
        return cls(
            effect=None if effect is None else float(effect),
            power=float(settings.get("power", DEFAULT_POWER)),
            analyses=int(settings.get("looks", DEFAULT_ANALYSES)),
            episodes=int(settings.get("episodes", EVALUATION_EPISODES)),
            metric=RequestedMetric.from_settings(settings),
            rounds=settings.get("rounds", 1),
        )

    def settings(self) -> dict[str, Any]:
        effect = {} if self.effect is None else {"effect": self.effect}
        asked = {} if self.metric is None else self.metric.settings()
        rounds = {} if self.rounds == 1 else {"rounds": self.rounds}
        return {**effect, "power": self.power, "looks": self.analyses, "episodes": self.episodes, **asked, **rounds}

    def min_effect(self, metric: Metric) -> float:
        """Return a study's smallest effect of interest; raise DesignRefused for one beyond the metric's range."""
        if self.effect is None:
            return default_effect(metric)
        require_effect_in_range(self.effect, metric)
        return self.effect

    def choose_effect(self, effect: float | None, metric: Metric) -> float:
        """Return the effect that counts where a planner wants `effect` (None: it named none).

        Raises DesignRefused for a larger one than the study's: a difference that matters to the user would pass for
        none.
        """
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


def require_effect_in_range(effect: float, metric: Metric) -> None:
    """Raise DesignRefused for an effect that is none, or that no two runs can differ by."""
    most = metric_range(metric)
    least = 0.0 if metric.cut_at is None else _LEAST_OF_RANGE * most
    if least < effect < most:
        return
    ends = f"{metric.worst:g} to {metric.best:g}" if metric.unit else "a share"
    bounds = f"above {least:g} and below {format_difference(metric, most)}"
    told = f"expected a smallest effect {bounds}, as the metric is {ends}; found {effect:g}"
    usual = format_difference(metric, default_effect(metric))
    raise DesignRefused(f"{told}; use --effect {default_effect(metric):g}, which is {usual}", model_feedback=told)


def _check_effect(effect: float | None, metric: RequestedMetric | None) -> None:
    """Refuse an effect that is none of any metric of the kind: the range of others is known with their jobs."""
    if effect is None:
        return
    if metric is None or metric.kind == Success.name:
        require_effect_in_range(effect, _SHARE)
    elif not (effect > 0 and math.isfinite(effect)):
        raise DesignRefused(
            f"expected a smallest effect above 0, in the unit of --metric {metric.text}; found {effect:g}; leave "
            "--effect out for the metric's own"
        )


DEFAULT_REQUIREMENTS = StatisticalRequirements()
"""Ten points of success seen with power 0.8, at three looks or fewer."""


SCREEN_SHARE = 0.6
"""Share of a budget's runs that a screen takes; the rest confirms what it found."""
CONFIRMED = 2
"""Candidates that are confirmed."""
INITIAL_SHARE = 0.3
"""Share of the candidates that are spread over the space before the surface is asked."""
BOUND = 2.0
"""Standard deviations of the surface above its mean that candidates are chosen by (`Screen.bound`)."""
SCREEN_LENGTH = 0.5
"""Share of a whole run's steps that a screening run has."""
LEAST_INITIAL = 4
"""Of these at the least, or there is nothing to draw a surface through."""
REDUCTION = 4
"""One in so many candidates goes on from a short rung that tells."""
LEAST_SEEDS = 3
MOST_SEEDS = 12
"""Seeds an arm of a confirmation whose size no power calculation gives."""


def default_seeds(runs_affordable: float, confirmed: int = CONFIRMED) -> int:
    """Return the seeds of each arm where nothing is known of the noise: what the screen's share leaves."""
    left = (1 - SCREEN_SHARE) * runs_affordable / (1 + confirmed)
    return max(LEAST_SEEDS, min(MOST_SEEDS, math.floor(left + 1e-9)))


def default_screen(
    knobs: Sequence[Knob],
    runs_affordable: float,
    *,
    steps: int,
    seeds: int | None = None,
    confirmed: int = CONFIRMED,
    seed: int = 0,
    points: int | None = None,
    telling: int | None = None,
) -> Screen | None:
    """Return the screen that `runs_affordable` whole runs carry beside its confirmation; None where it carries none.

    `steps` is the length of a whole run, `seeds` those of each confirmed arm, `points` the number of candidate
    combinations, `telling` a number of steps after which runs are known to rank as at the end (None: unknown).
    """
    possible = math.prod(len(knob.values) for knob in knobs) - 1 if points is None else points
    reserved = (1 + confirmed) * (seeds or default_seeds(runs_affordable, confirmed))
    left = runs_affordable - reserved + 1e-9
    if telling is None or telling >= steps:
        short = screening_steps(steps)
        candidates = min(possible, math.floor(left * steps / short))
        rungs: tuple[Rung, ...] = (Rung(steps=short, keep=confirmed),)
    else:
        share = telling / steps
        fitting = (n for n in range(possible, 0, -1) if n * share + _count_survivors(n, confirmed) <= left)
        candidates = next(fitting, 0)
        rungs = (Rung(steps=telling, keep=_count_survivors(candidates, confirmed)), Rung(steps=steps, keep=confirmed))
    if candidates <= confirmed:
        return None
    return Screen(
        knobs=tuple(knobs), sampler="surface", bound=BOUND, candidates=candidates, initial=count_initial(candidates),
        rungs=rungs, seed=seed,
    )  # fmt: skip


def _count_survivors(candidates: int, confirmed: int) -> int:
    return max(1, min(candidates, max(confirmed, math.ceil(candidates / REDUCTION))))


def screening_steps(steps: int) -> int:
    return math.ceil(SCREEN_LENGTH * steps)


def count_initial(candidates: int) -> int:
    """Return how many of the candidates are spread over the space before the surface is asked."""
    return min(candidates, max(LEAST_INITIAL, round(INITIAL_SHARE * candidates)))


PREDICTION_LEVEL = 0.8
CONTROL = "control"
MOST_CANDIDATES = 60
"""Most candidates of a screen, whatever the budget."""


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

    @property
    def varies_model(self) -> bool:
        """Whether its arms begin with different models, so that runs are judged by what they gain."""
        return any(MODEL in arm.overrides for arm in self.comparison.arms)

    @property
    def arms(self) -> int:
        return 1 + self.screen.confirmed if self.screen else len(self.comparison.arms)

    @property
    def claims(self) -> int:
        return 1 if self.weights else self.arms - 1

    @property
    def compared(self) -> int:
        """How many treatments one variable has, at the most."""
        return self.claims - self.families + 1

    def with_candidates(self, candidates: int) -> DesignDraft:
        assert self.screen is not None
        counts = {"candidates": candidates, "initial": count_initial(candidates)}
        return replace(self, screen=self.screen.model_copy(update=counts))

    def metric(self, judge: MetricChoice, episodes: int) -> Metric:
        """Return what its runs are judged by; raise DesignRefused for what its environment does not give."""
        return judge.metric(self.comparison.jobs, episodes, models=self.varies_model)

    def stages(self, seeds: int, budget_check: BudgetCheck, metric: Metric) -> tuple[Stage, ...]:
        """Return what is run with so many seeds, at the worst."""
        stages = [Stage("confirm", seeds * self.arms, self._max_seconds(self.comparison.jobs, budget_check, metric))]
        if self.screen is not None:
            stages = [*self._list_screen_stages(self.screen, budget_check, metric), *stages]
        if self.replication:
            stages.append(
                Stage("replicate", seeds * self.arms, self._max_seconds(self.replication, budget_check, metric))
            )
        return tuple(stages)

    def _list_screen_stages(self, screen: Screen, budget_check: BudgetCheck, metric: Metric) -> list[Stage]:
        entering = [screen.candidates, *(rung.keep for rung in screen.rungs)]
        jobs = [self.comparison.base.model_copy(update={"steps": rung.steps}) for rung in screen.rungs]
        return [
            Stage(f"screen, {rung.steps} steps", count, self._max_seconds([job], budget_check, metric))
            for count, rung, job in zip(entering, screen.rungs, jobs, strict=False)
        ]

    def _max_seconds(self, jobs: Sequence[Job], budget_check: BudgetCheck, metric: Metric) -> float:
        return max(budget_check.price.run_with_evaluations(job, metric) for job in jobs)


def draft_design(
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    base: Job | None,
    requirements: StatisticalRequirements,
    judge: MetricChoice | None = None,
) -> DesignDraft:
    """Return what a planner proposed, without seeds; raise DesignRefused for what is not sound."""
    judge = judge or MetricChoice(requirements.metric, Estimates().training)
    constants = _collect_constants(proposal, hypotheses)
    if proposal.screen is not None:
        return _draft_search(hypotheses, proposal, proposal.screen, constants, base, requirements, judge)
    if not hypotheses:
        raise DesignRefused("expected hypotheses before a design; found none; propose some first")
    comparison = compare(proposal.environment, hypotheses, constants, base)
    for job in (comparison.base, *_replication_jobs(proposal, comparison)[:1]):
        require_environment(job, {name for entry in hypotheses for name in entry.varied})
    families = len({entry.variable for entry in hypotheses})
    draft = DesignDraft(comparison, 0.0, families, replication=_replication_jobs(proposal, comparison))
    metric = draft.metric(judge, requirements.episodes)
    if (claim := hypotheses[0]).kind != "difference":
        _require_means(claim, metric)
        draft = replace(draft, weights=claim.weights, kind=claim.kind)
    return replace(draft, effect=min_effect_of_interest(hypotheses, requirements, metric))


def _require_means(claim: Hypothesis, metric: Metric) -> None:
    """Raise DesignRefused for an interaction or a trend of what is judged by counting runs."""
    if kind_of(metric).rates:
        raise DesignRefused(
            f"expected differences of {metric_name(metric)}, which is judged by counting runs, exactly; found "
            f"{'an interaction' if claim.moderator else 'a trend'}, which is a sum of means; compare two arms, or ask "
            "for another metric"
        )


def min_effect_of_interest(
    hypotheses: Sequence[Hypothesis], requirements: StatisticalRequirements, metric: Metric
) -> float:
    """Return the smallest effect of interest of all claims; raise DesignRefused for one above the study's."""
    return min(requirements.choose_effect(entry.smallest_effect, metric) for entry in hypotheses)


def check_prediction(direction: str, low: float, high: float, metric: Metric | None = None) -> None:
    """Raise DesignRefused for a prediction that contradicts its claim everywhere, or that a metric cannot reach.

    How far a time reaches follows from how long a design trains, which a proposal does not say.
    """
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


def _collect_constants(proposal: ProposeDesign, hypotheses: Sequence[Hypothesis]) -> dict[str, Scalar]:
    constants: dict[str, Scalar] = {}
    for constant in proposal.constants:
        if constant.field in constants or constant.field == "steps":
            raise DesignRefused(f"constants name {constant.field!r} twice, or beside `steps`; give each field once")
        constants[constant.field] = constant.value
    steps_compared = {entry.varied["steps"][0] for entry in hypotheses if "steps" in entry.varied}
    if proposal.steps is not None and proposal.steps not in steps_compared:
        constants["steps"] = proposal.steps
    return constants


def _draft_search(
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    proposed: ProposedScreen,
    constants: Mapping[str, Scalar],
    base: Job | None,
    requirements: StatisticalRequirements,
    judge: MetricChoice,
) -> DesignDraft:
    if hypotheses:
        raise DesignRefused("expected a screen without hypotheses, as its claims are on what it finds; found both")
    if proposal.environment not in environments():
        known = ", ".join(environments())
        raise DesignRefused(f"expected an environment among {known}; found {proposal.environment!r}")
    knobs = tuple(_parse_knob(knob.field, knob.values) for knob in proposed.knobs)
    fixed = {name: constant_value(name, value) for name, value in constants.items()}
    if both := fixed.keys() & {knob.field for knob in knobs}:
        raise DesignRefused(f"{min(both)} is searched, so it cannot be held constant; leave it out")
    require_agreement(base, {name: [value] for name, value in fixed.items()})
    fixed |= {knob.field: field_value(knob.field, knob.control) for knob in proposed.knobs if knob.control is not None}
    values = {**(base or Job()).model_dump(), "environment": proposal.environment, **fixed}
    if not job_validator(values)({}):
        raise DesignRefused("the control of the screen is no valid job; choose other constants")
    job = Job.model_validate(values)
    require_environment(job, ())
    control = Arm(name=CONTROL, overrides={knob.field: getattr(job, knob.field) for knob in knobs})
    comparison = ResolvedArms(job, (control,), (job,))
    metric = judge.metric((job,), requirements.episodes)
    better = "increase" if metric.higher_is_better else "decrease"
    check_prediction(better, proposed.predicted_low, proposed.predicted_high, metric)
    effect = requirements.choose_effect(proposed.smallest_effect, metric)
    inside = all(control.overrides[knob.field] in knob.values for knob in knobs)
    points = math.prod(len(knob.values) for knob in knobs) - int(inside)
    screen = _build_screen(knobs, points, _rung_steps(job, knobs, metric), proposed)
    return DesignDraft(
        comparison, effect, 1, screen, min(points, MOST_CANDIDATES),
        _replication_jobs(proposal, comparison),
    )  # fmt: skip


def _parse_knob(name: str, values: Sequence[Scalar]) -> Knob:
    if name == "steps":
        raise DesignRefused("expected knobs other than steps, as a screen trains shortly itself; found steps")
    known = tuple(dict.fromkeys(field_value(name, value) for value in values))
    if len(known) < 2:
        raise DesignRefused(f"{name}: expected two different values to search; found {known[0]!r} alone")
    return Knob(field=name, values=known)


def _rung_steps(job: Job, knobs: Sequence[Knob], metric: Metric) -> int:
    """Return how long a screening run is: half a whole one, or as its metric needs; raise Unmeasurable."""
    usual = screening_steps(job.steps)
    if (schedule := metric.schedule) is None:
        return usual
    batches = next((knob.values for knob in knobs if knob.field == "episodes_per_step"), (job.episodes_per_step,))
    least = min(int(str(batch)) for batch in batches)
    evaluations = (
        (n, len(schedule.steps({"steps": n, "episodes_per_step": least}))) for n in range(usual, job.steps + 1)
    )
    found = next((steps for steps, during in evaluations if during + 2 >= LEAST_POINTS), None)
    if found is None:
        raise Unmeasurable(
            f"expected candidates that are evaluated {LEAST_POINTS} times or more in {job.steps} steps, to tell "
            f"{metric_name(metric)}; found batches of {least} episodes, which an evaluation every {schedule.every} "
            "episodes does not tell; leave the smallest batches out, or train more steps"
        )
    return found


def _build_screen(knobs: tuple[Knob, ...], points: int, steps: int, proposed: ProposedScreen) -> Screen:
    if points <= proposed.confirm:
        raise DesignRefused(
            f"expected more combinations than are confirmed; found {points} beside the control, and "
            f"{proposed.confirm} to confirm; compare them by hypotheses instead"
        )
    candidates = min(points, max(proposed.confirm + 1, LEAST_INITIAL))
    return Screen(
        knobs=knobs,
        sampler="surface",
        bound=BOUND,
        candidates=candidates,
        initial=count_initial(candidates),
        rungs=(Rung(steps=steps, keep=proposed.confirm),),
        seed=0,
        prediction=Prediction(
            low=proposed.predicted_low,
            high=proposed.predicted_high,
            level=PREDICTION_LEVEL,
            probability=proposed.probability,
        ),
    )


def _replication_jobs(proposal: ProposeDesign, comparison: ResolvedArms) -> tuple[Job, ...]:
    if proposal.replication is None:
        return ()
    other = proposal.replication.environment
    if other not in environments():
        raise DesignRefused(f"expected a replication in one of {', '.join(environments())}; found {other!r}")
    if other == proposal.environment:
        raise DesignRefused(f"expected a replication in another environment than {other}; found the same")
    return tuple(job.model_copy(update={"environment": other}) for job in comparison.jobs)


def add_potential_confounders(entry: Hypothesis) -> Hypothesis:
    """Return the hypothesis with the confounds that its variable brings by itself, before those the planner fears."""
    variables = () if entry.variable == REWARD else tuple(entry.varied)
    matched = "together" if _has_equal_episodes(entry) else entry.matched
    known = tuple(dict.fromkeys((*potential_confounders(variables, matched), *entry.confounds)))
    return entry.model_copy(update={"confounds": known[:8]})


def _has_equal_episodes(entry: Hypothesis) -> bool:
    steps, batches = (entry.varied.get(name) for name in ("steps", "episodes_per_step"))
    if steps is None or batches is None:
        return False
    return len({int(n) * int(size) for n, size in zip(steps, batches, strict=True)}) == 1
