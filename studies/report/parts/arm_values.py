"""What the runs of an arm come to in a metric: a mean with its interval, a count of a rate, or neither.

A rate of runs is told as a count with exact limits, and of a time that more than half of an arm never reached there is
no mean: it would be told by where times are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from studies.metrics import Refused, kind_of
from studies.records.design import Metric
from studies.report.parts.wording import NONE, cut_said, number
from studies.statistics.exact_rates import exact_limits
from studies.statistics.samples import Interval, mean_interval, spread


def is_rate(metric: Metric) -> bool:
    """Return whether every run has 1 or 0."""
    if not metric.kind:
        return False
    try:
        return kind_of(metric).rates
    except Refused:  # the package that brought it is gone
        return False


def mostly_cut(metric: Metric, values: Sequence[float]) -> bool:
    """Return whether more than half of the runs lie where the metric is cut."""
    return 2 * _cut(metric, values) > len(values)


def mean_said(metric: Metric, values: Sequence[float]) -> str:
    """Return the mean; of a rate the count, of what is mostly cut who was."""
    if not values:
        return NONE
    if mostly_cut(metric, values):
        return cut_said(metric, _cut(metric, values), len(values))
    return f"{_ones(values)} of {len(values)}" if is_rate(metric) else number(fmean(values), unit=metric.unit)


def spread_said(metric: Metric, values: Sequence[float]) -> str:
    """Return the standard deviation, where it says something."""
    return NONE if mostly_cut(metric, values) or is_rate(metric) else number(spread(values), unit=metric.unit)


def arrived_said(metric: Metric, values: Sequence[float]) -> str:
    """Return how many runs do not lie where the metric is cut."""
    return f"{len(values) - _cut(metric, values)} of {len(values)}"


def arm_interval(metric: Metric, values: Sequence[float]) -> Interval | None:
    """Return the mean with its 95 % interval: Student's, or of a rate its exact limits."""
    if not values or mostly_cut(metric, values):
        return None
    if is_rate(metric):
        found = exact_limits(_ones(values), len(values))
        return Interval(found.rate, found.low, found.high)
    return mean_interval(values)


def count_of(values: Sequence[float]) -> tuple[int, int]:
    """Return how many of how many runs have 1."""
    return _ones(values), len(values)


def _ones(values: Sequence[float]) -> int:
    return round(sum(values))


def _cut(metric: Metric, values: Sequence[float]) -> int:
    cut = metric.cut_at
    return 0 if cut is None else sum(value >= cut for value in values)
