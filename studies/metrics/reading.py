"""Calls a kind of metric, which may be anybody's code: what it locks and what it reads off a run are checked.

What cannot be is refused in one line, which names what somebody's code raised and where.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.metrics.registry import BUILT_IN, kind_of
from studies.records.design import SUCCESS, Metric

_ROUNDING: Final = 1e-9
"""How far beyond its range, as a share of it, sums of many numbers may end."""


def defined(kind: MetricKind, asked: Asked) -> Metric:
    """Return the metric of a kind for what is asked; raise Refused for parameters, or a metric, that cannot be."""
    metric = _called(f"define of the metric {kind.name!r} to return a Metric", kind, kind.define, asked)
    if fault := _fault(kind, metric):
        raise Refused(f"expected {fault}; mend the metric {kind.name!r}")
    assert isinstance(metric, Metric)
    return metric


def values_of(metric: Metric, run: Results) -> Mapping[str, Value]:
    """Return all that a metric reads off a run, by key, and success before and after, whatever the metric is.

    Raises Refused where that gives no number within its range.
    """
    kind = kind_of(metric)
    found = _called(f"a value of {metric.key}", kind, kind.measure, metric, run)
    if not isinstance(found, Mapping) or metric.key not in found:
        raise Refused(f"expected a value of {metric.key}; found {found!r:.80}; mend the metric {kind.name!r}")
    for key, value in found.items():
        if not _is_value(value):
            raise Refused(
                f"expected a finite number of {key} and how many episodes are behind it, as a Value; found "
                f"{value!r:.80}; mend the metric {kind.name!r}"
            )
    _require_within(metric, found[metric.key].value, rates=kind.rates)
    return {**found, **before_and_after(metric, run)}


def _called(expected: str, kind: MetricKind, function: Callable[..., Any], *given: Any) -> Any:
    """Return what a kind's function returns; raise Refused for what somebody's code raises, our own as it is."""
    try:
        return function(*given)
    except Refused:
        raise
    except Exception as error:
        if kind.name in BUILT_IN:
            raise
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}, line {last.lineno}"
        raise Refused(f"expected {expected}; found {said} ({place}); mend it") from error


def _fault(kind: MetricKind, metric: Any) -> str | None:
    """Return what was expected of a metric, and what there is in its place; None for one that can be locked."""
    if not isinstance(metric, Metric):
        return f"a Metric; found {metric!r:.80}"
    if metric.kind != kind.name and kind.name not in BUILT_IN:
        return f"kind=self.name, {kind.name!r}, in its Metric; found {metric.kind!r}"
    if metric.key.startswith(SUCCESS) and kind.name not in BUILT_IN:
        return f"a key of its own, such as 'hidden/{kind.name}'; found {metric.key!r}"
    if not (math.isfinite(metric.worst) and math.isfinite(metric.best)) or metric.worst == metric.best:
        return f"worst and best as two numbers that differ; found {metric.worst:g} and {metric.best:g}"
    if metric.higher_is_better != (metric.best > metric.worst):
        return (
            f"higher_is_better={metric.best > metric.worst}, as the worst is {metric.worst:g} and the best "
            f"{metric.best:g}; found {metric.higher_is_better}"
        )
    if kind.rates and {metric.worst, metric.best} != {0.0, 1.0}:
        return f"a range of 0 and 1, as each run has one of them; found {metric.worst:g} to {metric.best:g}"
    return None


def _is_value(value: Any) -> bool:
    number = isinstance(value, Value) and isinstance(value.value, int | float) and isinstance(value.n, int)
    return number and math.isfinite(value.value) and value.n >= 1


def _require_within(metric: Metric, value: float, *, rates: bool) -> None:
    low, high = sorted((metric.worst, metric.best))
    slack = _ROUNDING * (high - low)
    if not low - slack <= value <= high + slack:
        raise Refused(
            f"expected {metric.key} within its range, {low:g} to {high:g}; found {value:g}; say the range that it has"
        )
    if rates and value not in (0.0, 1.0):
        raise Refused(f"expected 1 or 0 of {metric.key}, as the kind {metric.kind!r} is of rates; found {value:g}")
