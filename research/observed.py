"""What runs took on this installation before: the prices that beat an estimate."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from pydantic import ValidationError

from research.pricing import price_key
from studies import EventLog, LogCorrupt, RunState, fold
from swarm.job import Job

NEWEST_STUDIES = 10


def observed_seconds(log: EventLog) -> dict[str, float]:
    """Return the median seconds of the finished attempts at each job, by its price key, over the newest studies."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for study in log.studies()[:NEWEST_STUDIES]:
        for run in _runs(log, study):
            finished = [attempt.seconds for attempt in run.attempts if attempt.status == "finished" and attempt.seconds]
            if (key := _key(run)) is not None:
                seconds[key] += finished
    return {key: median(values) for key, values in seconds.items() if values}


def _key(run: RunState) -> str | None:
    """Return the run's price key; None for a job that an older ajet ran and this one does not know."""
    try:
        return price_key(Job.model_validate(run.spec.job))
    except ValidationError:
        return None


def _runs(log: EventLog, study: str) -> list[RunState]:
    try:
        return list(fold(log.read(study)).runs.values())
    except LogCorrupt:
        # Another study's broken log says nothing about prices; who asks for that study is told.
        return []
