"""What runs took on this installation before: the prices that beat an estimate."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from statistics import median

from pydantic import ValidationError

from research.every_study import readable
from research.pricing import EVALUATION_EPISODES, PROCESSES, price_key
from studies import AttemptState, EventLog, RunState
from swarm.job import Job

NEWEST_STUDIES = 10


def observed_seconds(log: EventLog, besides: str = "") -> dict[str, float]:
    """Return the median seconds of the finished attempts at each job, by its price key, over the newest studies.

    A study whose own prices are asked for is left out (`besides`): it follows its own runs by `pricing.price_of`. Only
    runs whose evaluations had the usual number of episodes count: the price of others is computed from theirs.
    """
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    others = (study for study in readable(log) if study.id != besides)
    for study in islice(others, NEWEST_STUDIES):
        for run in study.runs.values():
            if (job := _job(run)) is None or run.spec.metric.episodes != EVALUATION_EPISODES:
                continue
            for attempt in run.attempts:
                if attempt.status == "finished" and attempt.seconds:
                    seconds[price_key(job, _kind(attempt))].append(attempt.seconds)
    return {key: median(values) for key, values in seconds.items()}


def _kind(attempt: AttemptState) -> str:
    return str(attempt.sandbox.get("kind", PROCESSES))


def _job(run: RunState) -> Job | None:
    """Return the run's job; None for one that an older ajet ran and this one does not know."""
    try:
        return Job.recorded(run.spec.job)
    except ValidationError:
        return None
