"""What else the files of a study's runs give: each kind of metric that nobody asked for, with the usual parameters.

They are read when a report is built, and no lock names them: no claim rests on them. What needs a name besides (a fact,
another environment) is left to whoever asks for it; facts have a table of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from studies.log.study_state import StudyState
from studies.metrics import Asked, MetricKind, Refused, Results
from studies.metrics.reading import defined, values_of
from studies.metrics.registry import kinds
from studies.records.design import Design, Metric

USUAL_THRESHOLD: Final = 0.7
"""Hidden success up to which other measures look, where the design names no threshold."""

_NOT_GIVEN: Final = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)
"""What reading a metric raises off files that lack what it needs; of somebody's code, whatever it meets there."""


def other_metrics(state: StudyState) -> tuple[Metric, ...]:
    """Return the metrics that a study was not asked for, as they would be defined for its design."""
    design = state.design
    if design is None:
        return ()
    asked = Asked(
        measures="it is solved", episodes=design.metric.episodes, horizon=_longest(design),
        horizon_s=_most_seconds(state), threshold=design.metric.threshold or USUAL_THRESHOLD,
        tokens=_context(design),
    )  # fmt: skip
    own = design.metric
    found = {metric.key: metric for kind in kinds().values() for metric in _defined(kind, asked)}
    looked = own.schedule is not None  # without looks during training there is no course to read
    return tuple(metric for key, metric in found.items() if key != own.key and (looked or metric.schedule is None))


def measured(metrics: tuple[Metric, ...], run: Results) -> Mapping[str, float]:
    """Return what a run's files give of these, by key; without those that they do not give."""
    found: dict[str, float] = {}
    for metric in metrics:
        try:
            found[metric.key] = values_of(metric, run)[metric.key].value
        except _NOT_GIVEN:
            continue
    return found


def _defined(kind: MetricKind, asked: Asked) -> Iterator[Metric]:
    """Yield the metrics of a kind: of one that may do without a threshold, both."""
    if "of" in kind.takes:
        return
    for threshold in (None, asked.threshold) if "threshold" in kind.takes else (None,):
        try:
            metric = defined(kind, replace(asked, threshold=threshold))
        except Refused:
            continue
        if metric.threshold == threshold:  # else it is a threshold of something else than success
            yield metric


def _longest(design: Design) -> int:
    """Return the training episodes of the longest arm; 1 where jobs do not say."""
    jobs = [{**design.base_job, **arm.overrides} for arm in design.arms]
    return max(1, *(_whole(job.get("steps")) * _whole(job.get("episodes_per_step")) for job in jobs))


def _context(design: Design) -> int | None:
    """Return the tokens that a play may take at most; None where jobs do not say."""
    told = [_whole({**design.base_job, **arm.overrides}.get("max_context")) for arm in design.arms]
    return max(told, default=0) or None


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _most_seconds(state: StudyState) -> float | None:
    told = [((run.collected or {}).get("conditions") or {}).get("wall_s") for run in state.runs_in("confirm")]
    known = [float(seconds) for seconds in told if seconds]
    return max(known) if known else None
