"""A comparison before it is sized: its arms or its screen, and what its stages cost.

It is sound (every arm is a valid job that differs from the control in what is declared) and has no seeds yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from research.base_fields import require_agreement
from research.design.cost import BudgetCheck, Stage
from research.design.environment_needs import require_environment
from research.design.estimates import Estimates
from research.design.requirements import StatisticalRequirements
from research.design.screen_defaults import BOUND, LEAST_INITIAL, initial, screening_steps
from research.errors import DesignRefused, Unmeasurable
from research.metrics.judge import MetricChoice, span, with_unit
from research.proposals.actions import ProposeDesign, ProposedScreen
from research.proposals.arms import ResolvedArms, Scalar, compare, constant_value, feared, field_value, possible
from studies.metrics import kind_of
from studies.metrics.kinds.curve import LEAST_POINTS
from studies.records.design import MODEL, REWARD, Arm, Hypothesis, Kind, Metric
from studies.records.design_parts import Knob, Prediction, Rung, Screen
from studies.records.sentences import metric_name
from swarm.environments.registry import environments
from swarm.job import Job

PREDICTION_LEVEL = 0.8
CONTROL = "control"
MOST_CANDIDATES = 60
"""Most candidates of a screen, whatever the budget."""


@dataclass(frozen=True, slots=True)
class UnsizedDesign:
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
        """How many arms are confirmed."""
        return 1 + self.screen.confirmed if self.screen else len(self.comparison.arms)

    @property
    def claims(self) -> int:
        """How many claims are judged."""
        return 1 if self.weights else self.arms - 1

    @property
    def compared(self) -> int:
        """How many treatments one variable has, at the most."""
        return self.claims - self.families + 1

    def with_candidates(self, candidates: int) -> UnsizedDesign:
        """Return the design with a screen of so many candidates."""
        assert self.screen is not None
        counts = {"candidates": candidates, "initial": initial(candidates)}
        return replace(self, screen=self.screen.model_copy(update=counts))

    def metric(self, judge: MetricChoice, episodes: int) -> Metric:
        """Return what its runs are judged by; raise DesignRefused for what its environment does not give."""
        return judge.metric(self.comparison.jobs, episodes, models=self.varies_model)

    def stages(self, seeds: int, budget_check: BudgetCheck, metric: Metric) -> tuple[Stage, ...]:
        """Return what is run with so many seeds, at the worst."""
        stages = [Stage("confirm", seeds * self.arms, self._slowest(self.comparison.jobs, budget_check, metric))]
        if self.screen is not None:
            stages = [*self._screening(self.screen, budget_check, metric), *stages]
        if self.replication:
            stages.append(Stage("replicate", seeds * self.arms, self._slowest(self.replication, budget_check, metric)))
        return tuple(stages)

    def _screening(self, screen: Screen, budget_check: BudgetCheck, metric: Metric) -> list[Stage]:
        entering = [screen.candidates, *(rung.keep for rung in screen.rungs)]
        jobs = [self.comparison.base.model_copy(update={"steps": rung.steps}) for rung in screen.rungs]
        return [
            Stage(f"screen, {rung.steps} steps", count, self._slowest([job], budget_check, metric))
            for count, rung, job in zip(entering, screen.rungs, jobs, strict=False)
        ]

    def _slowest(self, jobs: Sequence[Job], budget_check: BudgetCheck, metric: Metric) -> float:
        return max(budget_check.price.judged(job, metric) for job in jobs)


def unsized_design(
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    base: Job | None,
    requirements: StatisticalRequirements,
    judge: MetricChoice | None = None,
) -> UnsizedDesign:
    """Return what a planner proposed, without seeds; raise DesignRefused for what is not sound."""
    judge = judge or MetricChoice(requirements.metric, Estimates().training)
    constants = _constants(proposal, hypotheses)
    if proposal.screen is not None:
        return _searching(hypotheses, proposal, proposal.screen, constants, base, requirements, judge)
    if not hypotheses:
        raise DesignRefused("expected hypotheses before a design; found none; propose some first")
    comparison = compare(proposal.environment, hypotheses, constants, base)
    for job in (comparison.base, *_replicated(proposal, comparison)[:1]):
        require_environment(job, {name for entry in hypotheses for name in entry.varied})
    families = len({entry.variable for entry in hypotheses})
    unsized = UnsizedDesign(comparison, 0.0, families, replication=_replicated(proposal, comparison))
    metric = unsized.metric(judge, requirements.episodes)
    if (claim := hypotheses[0]).kind != "difference":
        _require_means(claim, metric)
        unsized = replace(unsized, weights=claim.weights, kind=claim.kind)
    return replace(unsized, effect=smallest_effect(hypotheses, requirements, metric))


def _require_means(claim: Hypothesis, metric: Metric) -> None:
    """Raise DesignRefused for an interaction or a trend of what is judged by counting runs."""
    if kind_of(metric).rates:
        raise DesignRefused(
            f"expected differences of {metric_name(metric)}, which is judged by counting runs, exactly; found "
            f"{'an interaction' if claim.moderator else 'a trend'}, which is a sum of means; compare two arms, or ask "
            "for another metric"
        )


def smallest_effect(hypotheses: Sequence[Hypothesis], requirements: StatisticalRequirements, metric: Metric) -> float:
    """Return the smallest effect of interest of a study: of all its claims, where they name one.

    Raises DesignRefused for a claim that names a larger one than the study's.
    """
    return min(requirements.wanted(entry.smallest_effect, metric) for entry in hypotheses)


def check_prediction(direction: str, low: float, high: float, metric: Metric | None = None) -> None:
    """Raise DesignRefused for a prediction that contradicts its claim everywhere, or that a metric cannot reach.

    How far a time reaches follows from how long a design trains, which a proposal does not say.
    """
    timed = metric is not None and metric.unit and metric.horizon is not None
    if metric is not None and not timed and max(abs(low), abs(high)) > span(metric):
        raise DesignRefused(
            f"expected a predicted interval within {with_unit(metric, span(metric))} either way, as the metric reaches "
            f"from {metric.worst:g} to {metric.best:g}; found {low:g} to {high:g}; predict a difference of "
            f"{metric_name(metric)}"
        )
    if (direction == "increase" and high <= 0) or (direction == "decrease" and low >= 0):
        raise DesignRefused(
            f"expected a predicted interval that reaches into the direction {direction!r}; found {low:g} to {high:g}, "
            "which contradicts it; claim the other direction, or predict what you claim"
        )


def _constants(proposal: ProposeDesign, hypotheses: Sequence[Hypothesis]) -> dict[str, Scalar]:
    constants: dict[str, Scalar] = {}
    for constant in proposal.constants:
        if constant.field in constants or constant.field == "steps":
            raise DesignRefused(f"constants name {constant.field!r} twice, or beside `steps`; give each field once")
        constants[constant.field] = constant.value
    steps_compared = {entry.varied["steps"][0] for entry in hypotheses if "steps" in entry.varied}
    if proposal.steps is not None and proposal.steps not in steps_compared:
        constants["steps"] = proposal.steps
    return constants


def _searching(
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    proposed: ProposedScreen,
    constants: Mapping[str, Scalar],
    base: Job | None,
    requirements: StatisticalRequirements,
    judge: MetricChoice,
) -> UnsizedDesign:
    """Return a screen whose control is the base job, with the values that the knobs name for it.

    The claims are on what it finds.
    """
    if hypotheses:
        raise DesignRefused("expected a screen without hypotheses, as its claims are on what it finds; found both")
    if proposal.environment not in environments():
        known = ", ".join(environments())
        raise DesignRefused(f"expected an environment among {known}; found {proposal.environment!r}")
    knobs = tuple(_knob(knob.field, knob.values) for knob in proposed.knobs)
    fixed = {name: constant_value(name, value) for name, value in constants.items()}
    if both := fixed.keys() & {knob.field for knob in knobs}:
        raise DesignRefused(f"{min(both)} is searched, so it cannot be held constant; leave it out")
    require_agreement(base, {name: [value] for name, value in fixed.items()})
    fixed |= {knob.field: field_value(knob.field, knob.control) for knob in proposed.knobs if knob.control is not None}
    values = {**(base or Job()).model_dump(), "environment": proposal.environment, **fixed}
    if not possible(values)({}):
        raise DesignRefused("the control of the screen is no valid job; choose other constants")
    job = Job.model_validate(values)
    require_environment(job, ())
    control = Arm(name=CONTROL, overrides={knob.field: getattr(job, knob.field) for knob in knobs})
    comparison = ResolvedArms(job, (control,), (job,))
    metric = judge.metric((job,), requirements.episodes)
    better = "increase" if metric.higher_is_better else "decrease"
    check_prediction(better, proposed.predicted_low, proposed.predicted_high, metric)
    effect = requirements.wanted(proposed.smallest_effect, metric)
    inside = all(control.overrides[knob.field] in knob.values for knob in knobs)
    points = math.prod(len(knob.values) for knob in knobs) - int(inside)
    screen = _screen(knobs, points, _rung_steps(job, knobs, metric), proposed)
    return UnsizedDesign(
        comparison, effect, 1, screen, min(points, MOST_CANDIDATES),
        _replicated(proposal, comparison),
    )  # fmt: skip


def _knob(name: str, values: Sequence[Scalar]) -> Knob:
    if name == "steps":
        raise DesignRefused("expected knobs other than steps, as a screen trains shortly itself; found steps")
    known = tuple(dict.fromkeys(field_value(name, value) for value in values))
    if len(known) < 2:
        raise DesignRefused(f"{name}: expected two different values to search; found {known[0]!r} alone")
    return Knob(field=name, values=known)


def _rung_steps(job: Job, knobs: Sequence[Knob], metric: Metric) -> int:
    """Return how long a screening run is: half a whole one, or as long as it takes to look often enough during it.

    Raises Unmeasurable where a candidate of small batches has no curve even in a whole run.
    """
    usual = screening_steps(job.steps)
    if (schedule := metric.schedule) is None:
        return usual
    batches = next((knob.values for knob in knobs if knob.field == "episodes_per_step"), (job.episodes_per_step,))
    least = min(int(str(batch)) for batch in batches)
    looks = ((n, len(schedule.steps({"steps": n, "episodes_per_step": least}))) for n in range(usual, job.steps + 1))
    found = next((steps for steps, during in looks if during + 2 >= LEAST_POINTS), None)
    if found is None:
        raise Unmeasurable(
            f"expected candidates that are evaluated {LEAST_POINTS} times or more in {job.steps} steps, to tell "
            f"{metric_name(metric)}; found batches of {least} episodes, which an evaluation every {schedule.every} "
            "episodes does not tell; leave the smallest batches out, or train more steps"
        )
    return found


def _screen(knobs: tuple[Knob, ...], points: int, steps: int, proposed: ProposedScreen) -> Screen:
    """Return the least screen worth its name; it is widened to what the budget affords."""
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
        initial=initial(candidates),
        rungs=(Rung(steps=steps, keep=proposed.confirm),),
        seed=0,
        prediction=Prediction(
            low=proposed.predicted_low,
            high=proposed.predicted_high,
            level=PREDICTION_LEVEL,
            probability=proposed.probability,
        ),
    )


def _replicated(proposal: ProposeDesign, comparison: ResolvedArms) -> tuple[Job, ...]:
    """Return the arms' jobs in the environment of the replication."""
    if proposal.replication is None:
        return ()
    other = proposal.replication.environment
    if other not in environments():
        raise DesignRefused(f"expected a replication in one of {', '.join(environments())}; found {other!r}")
    if other == proposal.environment:
        raise DesignRefused(f"expected a replication in another environment than {other}; found the same")
    return tuple(job.model_copy(update={"environment": other}) for job in comparison.jobs)


def with_feared_confounds(entry: Hypothesis) -> Hypothesis:
    """Return the hypothesis with the confounds that its variable brings by itself, before those the planner fears."""
    variables = () if entry.variable == REWARD else tuple(entry.varied)
    matched = "together" if _as_many(entry) else entry.matched
    known = tuple(dict.fromkeys((*feared(variables, matched), *entry.confounds)))
    return entry.model_copy(update={"confounds": known[:8]})


def _as_many(entry: Hypothesis) -> bool:
    """Return whether steps and batches differ together such that both arms train on as many episodes."""
    steps, batches = (entry.varied.get(name) for name in ("steps", "episodes_per_step"))
    if steps is None or batches is None:
        return False
    return len({int(n) * int(size) for n, size in zip(steps, batches, strict=True)}) == 1
