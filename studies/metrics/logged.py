"""Logged: a metric that every training step logs (docs/training-metrics.md), made one number a run by a reduction.

Nothing of a hidden task is in it: it tells how a training went. Where a name has no range by itself one is given, as a
smallest difference that matters is a share of it. Facts of evaluations are reduced alike (`builtin.MeanFact`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from studies.checks.conditions import Row
from studies.metrics.base import BY_EPISODES, Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.records.design import Metric

_SHARES: Final = (
    "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "batch/constant_groups", "response_length/clip_ratio",
    "rollouter/idle_ratio", "trainer/idle_ratio",
)  # fmt: skip
"""What lies between 0 and 1, and is better the smaller it is."""
_PER: Final = {"batch/constant_groups": "batch/groups"}
FORMS: Final = {
    "logged": ("NAME:REDUCTION[:WORST..BEST]", "actor/entropy:first10:0..3"), "fact": ("NAME[:REDUCTION]", "calls:max"),
}  # fmt: skip
_OF: Final = re.compile(
    r"(?P<name>.{1,200}?):(?P<how>first(?P<first>[1-9]\d{0,5})|"
    r"mean:(?P<low>[1-9]\d{0,5})-(?P<high>[1-9]\d{0,5})|last|slope|max)(?::(?P<worst>[^:]+?)\.\.(?P<best>[^:]+))?",
    re.ASCII,
)
_NAME: Final = re.compile(r"[A-Za-z0-9][\w./+-]{0,79}", re.ASCII)
LAST: Final = 5
"""Steps that `last` is the mean of: one is too few to tell a policy by."""


class Reduction(NamedTuple):
    """How a number that some steps of a training tell becomes one."""

    name: str
    how: str
    steps: tuple[int, int]
    """The first and the last step that it is of."""
    ends: tuple[float, float] | None
    """Its range from worst to best, where one is given."""

    @classmethod
    def parse(cls, of: str, kind: str) -> Reduction:
        """Return what `NAME:REDUCTION[:WORST..BEST]` says; raise Refused, which tells what a `kind` of metric takes."""
        found = _OF.fullmatch(of)
        try:
            ends = None if found is None or not found["worst"] else (float(found["worst"]), float(found["best"]))
        except ValueError:
            ends = (math.nan, math.nan)
        steps = (1, 1) if found is None else (int(found["low"] or 1), int(found["high"] or found["first"] or 10**6))
        if (
            found is None
            or (kind == Logged.name and not _NAME.fullmatch(found["name"]))
            or steps[0] > steps[1]
            or (ends and not (math.isfinite(2 * (ends[0] - ends[1])) and ends[0] != ends[1]))
        ):
            raise Refused(
                f"expected {kind}:{FORMS[kind][0]}, with a reduction of first10, mean:3-8, last, slope or max, such as "
                f"{kind}:{FORMS[kind][1]}; found {of or 'no name'}; write it so"
            )
        return cls(found["name"], found["how"], steps, ends)

    def range(self, known: tuple[float, float]) -> tuple[float, float]:
        """Return its worst and best value, of a number whose own range is known unless one is given."""
        worst, best = self.ends or known
        return (worst - best, best - worst) if self.how == "slope" else (worst, best)  # it may fall as far as it rises

    def describe(self) -> str:
        how = {"last": f"mean of the last {LAST} steps", "slope": "rise over all steps", "max": "largest of all steps"}
        return how.get(self.how, f"mean of steps {self.steps[0]} to {self.steps[1]}")

    def reduce(self, metric: Metric, rows: Sequence[tuple[int, float | None]]) -> float:
        """Return the number of a training of what its steps tell, None for nothing; Refused where fewer than half of
        those that it is of tell any."""
        rows = [row for row in rows if self.steps[0] <= row[0] <= self.steps[1]][-LAST if self.how == "last" else 0 :]
        points = [(step, value) for step, value in rows if value is not None]
        if len(points) * 2 < max(1, len(rows)) or (self.how == "slope" and len(points) < 3):
            told = f"expected {self.name} of the steps that {self.how} is of"
            raise Refused(f"{told}; found {len(points)} of {len(rows)} with it")
        values = [value for _, value in points]
        if self.how != "slope":
            return max(values) if self.how == "max" else fmean(values)
        middle = fmean(step for step, _ in points)
        squares = math.fsum((step - middle) ** 2 for step, _ in points)
        rise = math.fsum((step - middle) * value for step, value in points) / squares
        rise *= points[-1][0] - points[0][0]
        within = max(values) - min(values) <= (most := abs(metric.best))
        return min(max(rise, -most), most) if within else rise  # a line rises by more than a sudden rise itself


class Logged(MetricKind):
    """A number of the training steps, reduced to one: the mean of some steps, the last ones, the largest, or what a
    straight line over all of them rises by. A training that was stopped early has the steps that it made."""

    name = "logged"
    title = "a number that training steps log, by a reduction (of a training, not of hidden tasks)"
    takes = frozenset({"of"})
    form = FORMS[name][0]
    evaluates = False

    def define(self, asked: Asked) -> Metric:
        reduction = Reduction.parse(asked.of, self.name)
        name, how = reduction.name, reduction.how
        known = dict.fromkeys(_SHARES, (1.0, 0.0)) | {"critic/success/mean": (0.0, 1.0)}
        known |= {f"critic/rewards/{which}": asked.rewards for which in ("mean", "min", "max")}
        known |= {} if asked.tokens is None else {"response_length/mean": (float(asked.sampled or asked.tokens), 0.0)}
        if reduction.ends is None and name not in known:
            told = f"expected the range of {name}, from its worst to its best value, by which a difference matters"
            raise Refused(f"{told}; found none; give it (--metric logged:{name}:{how}:0..1)")
        worst, best = reduction.range(known.get(name, (0.0, 1.0)))
        called = f"{name}{' as a share of the groups' if name in _PER else ''}, {reduction.describe()}"
        return Metric(
            key=f"logged/{name}/{how.replace(':', '')}", kind=self.name, name=called, of=asked.of,
            unit="" if name in known and name in (*_SHARES, "critic/success/mean") else name,
            meaning=f"{called}, as trainings log it; no hidden task is in it", episodes=asked.episodes,
            worst=worst, best=best, higher_is_better=best > worst,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        played = sum(row["metrics"].get(BY_EPISODES) or 0 for row in run.history)
        reduction = Reduction.parse(metric.of, self.name)
        number = reduction.reduce(metric, [(int(row["step"]), _read(row, reduction.name)) for row in run.history])
        return {**before_and_after(metric, run), metric.key: Value(number, max(1, round(played)))}


def _read(row: Row, name: str) -> float | None:
    value, whole = row["metrics"].get(name), row["metrics"].get(_PER.get(name, ""), 1.0)
    sound = isinstance(value, int | float) and math.isfinite(value) and whole
    return float(value) / float(whole) if sound else None
