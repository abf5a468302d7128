"""What the runs of a comparison are judged by: the metric that was asked for, defined for its environment and jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from research.errors import DesignRefused
from research.metrics.asked import AskedMetric, known_kind
from studies.metrics import Asked, Refused, kind_of
from studies.metrics.kinds.gain import Gain
from studies.metrics.kinds.success import Success
from studies.metrics.reading import defined
from studies.records.design import Metric
from swarm.environments.registry import environments
from swarm.job import Job

_SLACK = 2.0
"""A time is cut at so many times what the longest training is priced at."""
_ROUND = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)
"""Seconds are cut at one of these, times a power of ten, so that a price that moves a little moves no horizon."""


@dataclass(frozen=True, slots=True)
class MetricChoice:
    """Says what runs are judged by."""

    asked: AskedMetric | None
    """None where nobody asked for one: success, or its gain where models are compared."""
    training_s: Callable[[Job], float]
    """Seconds that the training of a job is taken to last."""
    measured_by: Metric | None = None
    """What runs of this study are judged by already: seconds are cut where theirs are."""

    def metric(self, jobs: Sequence[Job], episodes: int, *, models: bool = False) -> Metric:
        """Return the metric of a comparison of jobs, which differ in their `models` or not, with so many episodes.

        Raises DesignRefused for one that their environment does not give, or with parameters that cannot be.
        """
        asked = self.asked or AskedMetric(Gain.name if models else Success.name)
        environment = environments()[jobs[0].environment]
        _require_another(asked, environment.name)
        try:
            return defined(
                known_kind(asked.kind),
                Asked(
                    measures=environment.measures,
                    episodes=episodes,
                    horizon=max(job.steps * job.episodes_per_step for job in jobs),
                    horizon_s=self._horizon_s(jobs),
                    threshold=asked.threshold,
                    rewards=environment.reward_range,
                    tokens=max(job.max_context for job in jobs),
                    facts=environment.facts,
                    of=asked.of,
                ),
            )
        except Refused as error:
            raise DesignRefused(str(error)) from error

    def _horizon_s(self, jobs: Sequence[Job]) -> float:
        if self.measured_by is not None and self.measured_by.unit == "seconds" and self.measured_by.horizon is not None:
            return self.measured_by.horizon
        return _rounded_up(_SLACK * max(map(self.training_s, jobs)))


def _require_another(asked: AskedMetric, trained: str) -> None:
    """Raise DesignRefused where success elsewhere is asked for and no other environment that is here is named."""
    known = sorted(set(environments()) - {trained})
    if known_kind(asked.kind).of_environment and asked.of not in known:
        raise DesignRefused(
            f"expected another environment than {trained}, of {', '.join(known)}; found {asked.of or 'no name'}; "
            f"name one (--metric {asked.kind}:{known[0]})"
        )


def scheduled(job: Job, metric: Metric) -> Job:
    """Return a job with the evaluations that a metric takes during training, as its runs have them."""
    if metric.schedule is None:
        return job
    steps = metric.schedule.steps(job.model_dump(mode="json", include={"steps", "episodes_per_step"}))
    return job.model_copy(update={"evaluate_after": steps, "evaluation_episodes": metric.schedule.episodes})


def unscheduled(job: Job) -> Job:
    """Return a job without evaluations during training."""
    usual = {name: Job.model_fields[name].default for name in ("evaluate_after", "evaluation_episodes")}
    return job.model_copy(update=usual)


def span(metric: Metric) -> float:
    """Return the widest difference that two runs can have."""
    return abs(metric.best - metric.worst)


def default_effect(metric: Metric) -> float:
    """Return the smallest difference that matters where nobody says another one, in the metric's unit."""
    return float(f"{kind_of(metric).effect * span(metric):.6g}")


def amount(metric: Metric, value: float, digits: int = 3) -> str:
    """Return a value or difference of a metric with its unit; a share with so many decimals."""
    if not metric.unit:
        return f"{value:.{digits}f}"
    return f"{plain(metric, value)} {metric.unit}"


def plain(metric: Metric, value: float) -> str:
    """Return a value without its unit, as short as it may be; whole where the range is of hundreds."""
    return f"{value:g}" if not metric.unit or span(metric) < 100 else f"{value:,.0f}"


def with_unit(metric: Metric, value: float) -> str:
    """Return a difference as it was given, with its unit: `0.1`, or `512 episodes`."""
    return f"{value:g} {metric.unit}".strip()


def _rounded_up(seconds: float) -> float:
    whole = 10.0 ** math.floor(math.log10(max(seconds, 1.0)))
    return next(part * whole for part in _ROUND if part * whole >= seconds or part == _ROUND[-1])
