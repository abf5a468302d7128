"""Logged: a metric that every training step logs (docs/training-metrics.md), made one number a run by a reduction.

Nothing of a hidden task is in it: it tells how a training went. Where a name has no range by itself one is given, as a
smallest difference that matters is a share of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from studies.checks.conditions import Row
from studies.metrics.base import BY_EPISODES, Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.records.design import Metric

_SHARES: Final = (
    "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "batch/constant_groups", "response_length/clip_ratio",
    "rollouter/idle_ratio", "trainer/idle_ratio",
)  # fmt: skip
"""What lies between 0 and 1, and is better the smaller it is."""
_PER: Final = {"batch/constant_groups": "batch/groups"}
_FORM: Final = "NAME:REDUCTION[:WORST..BEST]"
_OF: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][\w./+-]{0,79}):(?P<how>first(?P<first>[1-9]\d{0,5})|"
    r"mean:(?P<low>[1-9]\d{0,5})-(?P<high>[1-9]\d{0,5})|last|slope|max)(?::(?P<worst>[^:]+?)\.\.(?P<best>[^:]+))?",
    re.ASCII,
)
LAST: Final = 5
"""Steps that `last` is the mean of: one is too few to tell a policy by."""


class Logged(MetricKind):
    """A number of the training steps, reduced to one: the mean of some steps, the last ones, the largest, or what a
    straight line over all of them rises by. A training that was stopped early has the steps that it made."""

    name = "logged"
    title = "a number that training steps log, by a reduction (of a training, not of hidden tasks)"
    takes = frozenset({"of"})
    form = _FORM
    evaluates = False

    def define(self, asked: Asked) -> Metric:
        name, how, (first, last), ends = _parse(asked.of)
        known = dict.fromkeys(_SHARES, (1.0, 0.0)) | {"critic/success/mean": (0.0, 1.0)}
        known |= {f"critic/rewards/{which}": asked.rewards for which in ("mean", "min", "max")}
        known |= {} if asked.tokens is None else {"response_length/mean": (float(asked.tokens), 0.0)}
        if ends is None and name not in known:
            told = f"expected the range of {name}, from its worst to its best value, by which a difference matters"
            raise Refused(f"{told}; found none; give it (--metric logged:{name}:{how}:0..1)")
        worst, best = ends or known[name]
        if how == "slope":  # it may fall as far as it may rise
            worst, best = worst - best, best - worst
        words = {
            "last": f"mean of the last {LAST} steps",
            "slope": "rise over all steps",
            "max": "largest of all steps",
        }
        own = f"{name}{' as a share of the groups' if name in _PER else ''}"
        called = f"{own}, {words.get(how, f'mean of steps {first} to {last}')}"
        return Metric(
            key=f"logged/{name}/{how.replace(':', '')}", kind=self.name, name=called, of=asked.of,
            unit="" if name in known and name in (*_SHARES, "critic/success/mean") else name,
            meaning=f"{called}, as trainings log it; no hidden task is in it", episodes=asked.episodes,
            worst=worst, best=best, higher_is_better=best > worst,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        played = sum(row["metrics"].get(BY_EPISODES) or 0 for row in run.history)
        name, how, window, _ = _parse(metric.of)
        value = Value(_reduce(run.history, name, how, window), max(1, round(played)))
        return {**before_and_after(metric, run), metric.key: value}


def _parse(of: str) -> tuple[str, str, tuple[int, int], tuple[float, float] | None]:
    """Return the name, the reduction, the steps that it is of, and the range where one is given; raise Refused."""
    found = _OF.fullmatch(of)
    try:
        ends = None if found is None or not found["worst"] else (float(found["worst"]), float(found["best"]))
    except ValueError:
        ends = (math.nan, math.nan)
    window = (1, 1) if found is None else (int(found["low"] or 1), int(found["high"] or found["first"] or 10**6))
    if (
        found is None
        or window[0] > window[1]
        or (ends and not (math.isfinite(2 * (ends[0] - ends[1])) and ends[0] != ends[1]))
    ):
        raise Refused(
            f"expected logged:{_FORM}, with a reduction of first10, mean:3-8, last, slope or max, such as "
            f"logged:actor/entropy:first10:0..3; found {of or 'no name'}; write it so"
        )
    return found["name"], found["how"], window, ends


def _reduce(history: Sequence[Row], name: str, how: str, window: tuple[int, int]) -> float:
    """Return the number of a training; Refused where fewer than half of the steps that it is of tell it."""
    rows = [row for row in history if window[0] <= row["step"] <= window[1]][-LAST if how == "last" else 0 :]
    points = [(int(row["step"]), value) for row in rows if (value := _read(row, name)) is not None]
    if len(points) * 2 < max(1, len(rows)) or (how == "slope" and len(points) < 3):
        raise Refused(f"expected {name} of the steps that {how} is of; found {len(points)} of {len(rows)} with it")
    values = [value for _, value in points]
    if how != "slope":
        return max(values) if how == "max" else fmean(values)
    middle = fmean(step for step, _ in points)
    squares = math.fsum((step - middle) ** 2 for step, _ in points)
    rise = math.fsum((step - middle) * value for step, value in points) / squares
    return rise * (points[-1][0] - points[0][0])


def _read(row: Row, name: str) -> float | None:
    value, whole = row["metrics"].get(name), row["metrics"].get(_PER.get(name, ""), 1.0)
    sound = isinstance(value, int | float) and math.isfinite(value) and whole
    return float(value) / float(whole) if sound else None
