"""Kinds of metrics by name, those of installed packages included.

A package names its kinds in `[project.entry-points."ajet.metrics"]` with `NAME = "module:Class"`. A kind may be
anybody's code: what it locks and what it reads off a run are checked, and what cannot be is refused in one line.
"""

import math
import re
import traceback
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from studies.metrics.base import Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.metrics.builtin import KINDS, Gain, OfPlays, Success
from studies.records.design import GAIN, SUCCESS, Metric

AT_OWN: Final = "/at_own_value"
"""What the key of a number ends with that is of the run's own knobs, where claims are of the control's."""
GROUP: Final = "ajet.metrics"
"""Each a `MetricKind` without arguments; names that ajet has itself are not taken over."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TAKES: Final = ("threshold", "of")
BUILT_IN: Final[Mapping[str, MetricKind]] = MappingProxyType({kind.name: kind() for kind in KINDS})
_ROUNDING: Final = 1e-9
"""How far beyond its range, as a share of it, sums of many numbers may end."""


def _load_packages() -> tuple[dict[str, MetricKind], dict[str, str]]:
    named: dict[str, dict[str, EntryPoint]] = {}
    for entry_point in entry_points(group=GROUP):  # one that is listed twice is one
        package = entry_point.dist.name if entry_point.dist is not None else "an unknown package"
        named.setdefault(entry_point.name, {})[f"{package} ({entry_point.value})"] = entry_point
    kinds: dict[str, MetricKind] = {}
    faults: dict[str, str] = {}
    for name, points in sorted(named.items()):
        try:
            packages = " and ".join(sorted(points))
            if name in BUILT_IN:
                raise Refused(
                    f"expected a name of its own for the metric of {packages}; found {name!r}, ajet's; give another"
                )
            if len(points) > 1:
                raise Refused(
                    f"expected one package that brings the metric {name!r}; found {packages}; remove one of them"
                )
            (point,) = points.values()
            try:
                loaded = point.load()
                made = loaded() if callable(loaded) else loaded
            except Exception as error:  # somebody's module may raise anything when it is imported
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                raise Refused(f"expected the metric {name!r} of {packages} to load; found {reason}; mend it") from error
            if fault := _fault_of_kind(name, made):
                raise Refused(f"expected {fault}, of the metric {name!r} of {packages}; mend it")
            assert isinstance(made, MetricKind)
            kinds[name] = made
        except Refused as fault:
            faults[name] = str(fault)
    return kinds, faults


def _fault_of_kind(name: str, made: Any) -> str | None:
    if not isinstance(made, MetricKind):
        return f"a MetricKind; found {made!r:.80}"
    names = ("name", "title", "unit", "words", "takes", "effect")
    own, title, unit, words, takes, effect = (getattr(made, field, None) for field in names)
    texts = isinstance(words, tuple | list) and all(isinstance(word, str) and word.strip() for word in words)
    for holds, expected, value in (
        (own == name and _NAME.fullmatch(name), "a `name` like its entry point's, of a-z, 0-9, - and _", own),
        (isinstance(title, str) and title, "a text as `title`", title),
        (isinstance(unit, str), "a text as `unit`", unit),
        (texts, "`words` as a tuple of texts", words),
        (isinstance(takes, Set) and takes <= set(_TAKES), f"`takes` as a set of {' and '.join(_TAKES)}", takes),
        (isinstance(effect, int | float) and 0 < effect < 1, "`effect` as a share of its range, above 0 and below 1",
         effect),
    ):  # fmt: skip
        if not holds:
            return f"{expected}; found {value!r:.80}"
    return None


@cache
def kinds() -> Mapping[str, MetricKind]:
    """Return all kinds by name; of packages' those that can be had."""
    return MappingProxyType({**BUILT_IN, **_load_packages()[0]})


def faults() -> Mapping[str, str]:
    return _load_packages()[1]


def kind_named(name: str) -> MetricKind:
    """Return the kind of a name; raise Refused for one that there is not, or that cannot be had."""
    known = kinds()
    if name in known:
        return known[name]
    if (fault := faults().get(name)) is not None:
        raise Refused(fault)
    raise Refused(f"expected a metric ({', '.join(known)}); found {name!r}; see `ajet metric list`")


def kind_of(metric: Metric) -> MetricKind:
    """Return the kind of a design's metric, of old ones by its key; raise Refused where its package is gone."""
    gain = metric.key.endswith(GAIN.partition("/")[2])
    return kind_named(metric.kind or (Gain.name if gain else Success.name))


def other_environment(metric: Metric, job: Mapping[str, Any]) -> str | None:
    """Return the environment of a run's second evaluation, after training: another one that its metric is of, or its
    own one at its own knobs; None for no such evaluation."""
    if metric.also_own and metric.evaluated(job) != dict(job):
        return str(job["environment"])
    return metric.of if kind_of(metric).of_environment else None


def metric_at_own(metric: Metric) -> Metric:
    """Return what is read off evaluations at runs' own knobs: the metric, where one evaluation tells it, or success."""
    told = isinstance(BUILT_IN.get(metric.kind), OfPlays) and metric.schedule is None
    plain = metric if told else Metric(meaning="hidden success", episodes=metric.episodes, split=metric.split)
    return plain.model_copy(update={"also_own": False, "beside": {}})


def define_metric(kind: MetricKind, asked: Asked) -> Metric:
    """Return the metric of a kind for what is asked; raise Refused for parameters, or a metric, that cannot be."""
    metric = _call_kind(f"define of the metric {kind.name!r} to return a Metric", kind, kind.define, asked)
    if fault := _fault_of_metric(kind, metric):
        raise Refused(f"expected {fault}; mend the metric {kind.name!r}")
    assert isinstance(metric, Metric)
    return metric


def values_of(metric: Metric, run: Results) -> Mapping[str, Value]:
    """Return all that a metric reads off a run, by key, and success before and after; Refused for no such number."""
    kind = kind_of(metric)
    found = _call_kind(f"a value of {metric.key}", kind, kind.measure, metric, run)
    if not isinstance(found, Mapping) or metric.key not in found:
        raise Refused(f"expected a value of {metric.key}; found {found!r:.80}; mend the metric {kind.name!r}")
    for key, value in found.items():
        typed = isinstance(value, Value) and isinstance(value.value, int | float) and isinstance(value.n, int)
        if not typed or not math.isfinite(value.value) or value.n < 1:
            raise Refused(
                f"expected a finite number of {key} and how many episodes are behind it, as a Value; found "
                f"{value!r:.80}; mend the metric {kind.name!r}"
            )
    own, (low, high) = found[metric.key].value, sorted((metric.worst, metric.best))
    slack = _ROUNDING * (high - low)
    if not low - slack <= own <= high + slack:
        raise Refused(
            f"expected {metric.key} within its range, {low:g} to {high:g}; found {own:g}; say the range that it has"
        )
    if kind.rates and own not in (0.0, 1.0):
        raise Refused(f"expected 1 or 0 of {metric.key}, as the kind {metric.kind!r} is of rates; found {own:g}")
    return {**_values_beside(metric, run), **found, **before_and_after(metric, run)}


def _values_beside(metric: Metric, run: Results) -> dict[str, Value]:
    """Return what is read off a run besides; one that its files do not tell has none, and no run is lost for it. They
    come first: a run is measured once it has its own metric's value."""
    values = dict[str, Value]()
    besides = [(other.key, other, run) for other in metric.beside.values()]
    if metric.also_own:
        own = metric_at_own(metric)
        besides.append((own.key + AT_OWN, own, replace(run, final=run.other or run.final)))
    for key, other, read in besides:
        with suppress(Refused):
            values[key] = values_of(other, read)[other.key]
    return values


def _call_kind(expected: str, kind: MetricKind, function: Callable[..., Any], *given: Any) -> Any:
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


def _fault_of_metric(kind: MetricKind, metric: Any) -> str | None:
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
