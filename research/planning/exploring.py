"""From a planner's wish to explore to runs that feed no claim: what it may try, and what that may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from research.design.compiler import DesignCompiler
from research.durations import format_seconds
from research.errors import DesignRefused
from research.planner.inquiry import InquiryFacts
from research.proposals.actions import Explore, Tried
from research.proposals.arms import constant_value, value_text
from research.validation import describe
from studies.inquiry.exploration import Exploration
from studies.records.design import Arm, Metric
from studies.records.run_specs import screen_metric
from swarm.environments.registry import environments
from swarm.job import Job

MOST_OF_A_ROUND: Final = 3
"""Explorations before one question."""
_SHARE: Final = 0.25
"""Most of the time left that one exploration may take: what it hints at is still to be shown."""
_AS_IT_IS: Final = "as-it-is"


@dataclass(frozen=True, slots=True)
class PricedExploration:
    """What would be tried, before a seed is drawn for it."""

    why: str
    job: Job
    arms: tuple[Arm, ...]
    metric: Metric
    seconds_per_run: float

    def plan(self, draw_seed: Callable[[], int], used: frozenset[int]) -> Exploration:
        """Return it on a seed that no run of the study had."""
        seed = next(drawn for drawn in iter(draw_seed, None) if drawn not in used)
        return Exploration(
            why=self.why, environment=self.job.environment,
            base_job=self.job.model_dump(mode="json", exclude={"seed", "tracking"}),
            arms=self.arms, seed=seed, metric=self.metric,
        )  # fmt: skip


def explored(compiler: DesignCompiler, inquiry: InquiryFacts, action: Explore) -> PricedExploration:
    """Return what a planner wants to try, or raise DesignRefused: for settings, or for what it would cost."""
    if inquiry.explored >= MOST_OF_A_ROUND:
        raise DesignRefused(
            f"expected at most {MOST_OF_A_ROUND} explorations before a question; found one more; propose, or conclude"
        )
    if action.environment not in environments():
        raise DesignRefused(f"expected an environment among {', '.join(environments())}; found {action.environment!r}")
    base = compiler.base or Job()
    steps = min(base.steps, action.steps or max(1, base.steps // 2))
    job = base.model_copy(update={"environment": action.environment, "steps": steps})
    arms = tuple({arm.name: arm for arm in map(_arm, action.tried)}.values())
    jobs = [_valid(job, arm) for arm in arms]
    episodes = compiler.requirements.episodes
    scored = Metric(meaning=f"share of {episodes} hidden tasks solved after the last step", episodes=episodes)
    seconds = max(compiler.price.judged(each, scored) for each in jobs)
    _require_affordable(compiler, len(arms), seconds)
    return PricedExploration(action.why, job, arms, screen_metric(scored), seconds)


def _arm(tried: Tried) -> Arm:
    overrides = {entry.field: constant_value(entry.field, entry.value) for entry in tried.settings}
    if "steps" in overrides or "environment" in overrides:
        raise DesignRefused("expected steps and environment once, for all that is tried; found them among its settings")
    name = "+".join(f"{field}={value_text(value)}" for field, value in overrides.items()) or _AS_IT_IS
    try:
        return Arm(name=name.lower(), overrides=overrides)
    except ValidationError as error:
        raise DesignRefused(f"expected fewer settings, or shorter ones, of one try; found {name[:80]!r}") from error


def _valid(job: Job, arm: Arm) -> Job:
    values: dict[str, Any] = {**job.model_dump(), **arm.overrides}
    try:
        return Job.model_validate(values)
    except ValidationError as error:
        raise DesignRefused(f"{arm.name}: {describe(error)}; try other values") from error


def _require_affordable(compiler: DesignCompiler, runs: int, seconds: float) -> None:
    check = compiler.sizing.budget_check
    need, left = -(-runs // check.price.parallel) * seconds, check.left
    if need > _SHARE * left:
        raise DesignRefused(
            f"expected an exploration of at most a quarter of the {format_seconds(left)} left; found {runs} runs of "
            f"about {format_seconds(seconds)}; try less, or shorter"
        )
    most = check.budget.max_runs
    if most is not None and check.runs_made + runs > most:
        raise DesignRefused(
            f"expected at most {most} runs in all; found {check.runs_made} made and {runs} more; try less"
        )
