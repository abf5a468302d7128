"""Replications and explorations: what a planner may ask for besides a new question.

A claim of an earlier round put to the test once more: code builds the comparison from the record of the round.
Values, constants, steps, direction and prediction are those of the lock; seeds and level are the new round's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from research.design.compiler import DesignCompiler
from research.errors import DesignRefused
from research.planners.history import CampaignFacts
from research.proposals.actions import Constant, Explore, Propose, ProposeDesign, ProposedHypothesis, Replicate, Tried
from research.proposals.arms import arm_text, constant_value, value_text
from research.proposals.metric_choice import RequestedMetric
from research.text import describe, format_seconds
from studies.records.alpha import Exploration
from studies.records.design import CONFIGURATION, MODEL, REWARD, Arm, Hypothesis, Metric
from studies.records.runs import screen_metric
from swarm.environments.registry import environments
from swarm.job import Job

MOST_OF_A_ROUND: Final = 3
"""Explorations before one question."""
_SHARE: Final = 0.25
"""Most of the time left that one exploration may take: what it hints at is still to be shown."""


@dataclass(frozen=True, slots=True)
class PricedExploration:
    """What would be tried, before a seed is drawn for it."""

    why: str
    job: Job
    arms: tuple[Arm, ...]
    metric: Metric
    seconds_per_run: float

    def plan(self, draw_seed: Callable[[], int], used: frozenset[int]) -> Exploration:
        seed = next(drawn for drawn in iter(draw_seed, None) if drawn not in used)
        return Exploration(
            why=self.why, environment=self.job.environment,
            base_job=self.job.model_dump(mode="json", exclude={"seed", "tracking"}),
            arms=self.arms, seed=seed, metric=self.metric,
        )  # fmt: skip


def price_exploration(compiler: DesignCompiler, campaign: CampaignFacts, action: Explore) -> PricedExploration:
    """Return what a planner wants to try, or raise DesignRefused: for settings, or for what it would cost."""
    if campaign.explored >= MOST_OF_A_ROUND:
        raise DesignRefused(
            f"expected at most {MOST_OF_A_ROUND} explorations before a question; found one more; propose, or conclude"
        )
    if action.environment not in environments():
        raise DesignRefused(f"expected an environment among {', '.join(environments())}; found {action.environment!r}")
    base = compiler.base or Job()
    steps = min(base.steps, action.steps or max(1, base.steps // 2))
    job = base.model_copy(update={"environment": action.environment, "steps": steps})
    arms = tuple({arm.name: arm for arm in map(_build_arm, action.tried)}.values())
    jobs = []
    for arm in arms:
        values: dict[str, Any] = {**job.model_dump(), **arm.overrides}
        try:
            jobs.append(Job.model_validate(values))
        except ValidationError as error:
            raise DesignRefused(f"{arm.name}: {describe(error)}; try other values") from error
    episodes = compiler.requirements.hidden_episodes
    metric = Metric(meaning=f"share of {episodes} hidden tasks solved after the last step", episodes=episodes)
    seconds = max(compiler.price.run_with_evaluations(variant, metric) for variant in jobs)
    runs = len(arms)
    need, left = -(-runs // compiler.price.parallel) * seconds, compiler.left
    if need > _SHARE * left:
        raise DesignRefused(
            f"expected an exploration of at most a quarter of the {format_seconds(left)} left; found {runs} runs of "
            f"about {format_seconds(seconds)}; try less, or shorter"
        )
    most = compiler.budget.max_runs
    if most is not None and compiler.runs_made + runs > most:
        raise DesignRefused(
            f"expected at most {most} runs in all; found {compiler.runs_made} made and {runs} more; try less"
        )
    return PricedExploration(action.why, job, arms, screen_metric(metric), seconds)


def _build_arm(tried: Tried) -> Arm:
    overrides = {entry.field: constant_value(entry.field, entry.value) for entry in tried.settings}
    if "steps" in overrides or "environment" in overrides:
        raise DesignRefused("expected steps and environment once, for all that is tried; found them among its settings")
    name = "+".join(f"{field}={value_text(value)}" for field, value in overrides.items()) or "as-it-is"
    try:
        return Arm(name=name.lower(), overrides=overrides)
    except ValidationError as error:
        raise DesignRefused(f"expected fewer settings, or shorter ones, of one try; found {name[:80]!r}") from error


_NO_CONSTANTS: Final = ("environment", "steps", "seed", "tracking", MODEL)
"""Fields of a job that a design names elsewhere, or that no planner sets."""
_MOST_CONSTANTS: Final = 8
_SAME: Final = (
    "mechanism", "variable", "control", "treatment", "direction", "smallest_effect", "falsifier", "kill_if",
    "confounds", "matched", "sought", "ladder",
)  # fmt: skip
"""Fields that a hypothesis has as it was proposed."""


@dataclass(frozen=True, slots=True)
class ReplicationProposal:
    """The proposal and the design that a claim of an earlier round becomes."""

    proposal: Propose
    design: ProposeDesign


def build_replication(
    action: Replicate, campaign: CampaignFacts | None, compiler: DesignCompiler
) -> ReplicationProposal:
    """Return the comparison of an earlier claim once more; raise DesignRefused for one that cannot be had again."""
    known = {
        entry.claim.id: (told, entry.claim) for told in (campaign.rounds if campaign else ()) for entry in told.claims
    }
    if action.claim not in known:
        names = ", ".join(known) or "none"
        raise DesignRefused(f"expected a claim of an earlier round ({names}); found {action.claim!r}")
    told, claim = known[action.claim]
    if claim.variable == CONFIGURATION:
        raise DesignRefused(
            f"expected a claim about one field; found {claim.id}, which a search made and is about several; propose a "
            "hypothesis about one of them"
        )
    design = told.design
    judged = design.metric
    named = judged.kind and compiler.requirements.metric is None
    metric = RequestedMetric(judged.kind, judged.threshold, judged.of).text if named else ""
    constants = tuple(_find_constants(design.base_job, claim, compiler.base or Job()))
    if len(constants) > _MOST_CONSTANTS:
        raise DesignRefused(f"{claim.id} was tested with {len(constants)} fields held, more than a design can hold")
    try:
        again = _copy_hypothesis(claim, design.code)
    except ValidationError as error:
        raise DesignRefused(f"{claim.id} cannot be asked again as it was locked: {describe(error)}") from error
    why = action.why or f"{claim.id}, of round {told.number}, is put to the test once more."
    return ReplicationProposal(
        Propose(hypotheses=(again,), metric=metric, why=why),
        ProposeDesign(
            environment=action.environment or design.environment,
            steps=int(design.base_job["steps"]),
            constants=constants,
        ),
    )


def _copy_hypothesis(claim: Hypothesis, code: Mapping[str, str]) -> ProposedHypothesis:
    same = claim.model_dump(include=set(_SAME))
    if claim.variable == MODEL:
        same |= {"control": arm_text(claim.control), "treatment": arm_text(claim.treatment)}
    return ProposedHypothesis.model_validate(same | {
        "statement": claim.said, "predicted_low": claim.prediction.low, "predicted_high": claim.prediction.high,
        "probability": claim.prediction.probability,
        "code": code.get(str(claim.treatment)) if claim.variable == REWARD else None,
    })  # fmt: skip


def _find_constants(job: Mapping[str, Any], claim: Hypothesis, base: Job) -> Iterator[Constant]:
    """Yield the fields that the round held at another value than the base job."""
    usual = base.model_dump(mode="json")
    for name, value in job.items():
        if name in _NO_CONSTANTS or name == claim.variable or value == usual.get(name):
            continue
        if not isinstance(value, bool | int | float | str):
            raise DesignRefused(f"{claim.id} was tested with a {name} that no design can hold; propose it anew")
        yield Constant(field=name, value=value)
