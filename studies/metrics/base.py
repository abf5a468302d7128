"""What a metric is: one number a run, computed from its stored files and nothing else; and those that training logs.

A kind of metric says its range, the evaluations it needs and what is told of it; a `Metric` is a kind with its
parameters, locked in a design. The hidden curve of a run is success by training episodes, with straight lines between
evaluations. Times are read off the centred mean of three evaluations (two at an end).

`Logged` is a metric that every training step logs (docs/training-metrics.md), made one number a run by a reduction.
Nothing of a hidden task is in it: it tells how a training went. Where a name has no range by itself one is given, as a
smallest difference that matters is a share of it. Facts of evaluations are reduced alike (`builtin.MeanFact`).
"""

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, ClassVar, Final, NamedTuple

from studies.checks.conditions import INITIAL, Part, Row, success_rate
from studies.records.design import Metric, Schedule

LEAST_POINTS = 4
"""Evaluations of a training that is to have a curve; one that a rule ended early may have fewer."""
BY_EPISODES: Final = "batch/episodes"
BY_TOKENS: Final = "tokens/trained"
BY_SECONDS: Final = "timing_s/step"
"""Metrics of a training step by which curves go; seconds leave the time of evaluations out."""
LOOKS: Final = 10
"""Parts that a training is cut into by its evaluations."""
SHARE: Final = 0.125
"""Size of one evaluation during training, of the one after it: ten cost as much as one before and one after. Of 512
episodes these are 64, with a standard error of 0.06 at a half (`benchmarks/evaluation_cost.py`)."""
LEAST_EPISODES: Final = 32


@dataclass(frozen=True, slots=True)
class Results:
    """What is stored of a run: its evaluations before, during and after training, and the steps of the training."""

    initial: Part
    final: Part
    during: Sequence[Part] = ()
    """In the order of their policy's versions."""
    history: Sequence[Row] = ()
    other: Part | None = None
    """Of the last policy on another environment, where the metric is of one, or at the run's own knobs."""
    stopped_by: str | None = None
    """Code of the watchdog's rule that ended the training; None for one that ran its course."""

    @classmethod
    def of(cls, snapshot: Mapping[str, Any], evaluation: Mapping[str, Any], stopped_by: str | None) -> "Results":
        """Return what a run's two files hold."""
        during, other = evaluation.get("during", ()), evaluation.get("other")
        return cls(evaluation["initial"], evaluation["final"], during, snapshot["history"], other, stopped_by)

    @property
    def plays(self) -> int:
        """Evaluation episodes before, during and after training."""
        return sum(len(part["episodes"]) for part in (self.initial, *self.during, self.final))


class Value(NamedTuple):
    """A measured number, and the evaluation episodes behind it."""

    value: float
    n: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a metric is asked for: of what, how finely, how far."""

    measures: str
    """What success in the environment means, as a clause."""
    episodes: int
    """Evaluation episodes before training, and as many after it."""
    horizon: int
    """Training episodes of the longest arm."""
    horizon_s: float | None = None
    """Seconds that no training of it should take; None where nobody priced one."""
    threshold: float | None = None
    rewards: tuple[float, float] = (0.0, 1.0)
    tokens: int | None = None
    """Tokens that a play may take at most (a job's `max_context`); None where nobody says."""
    sampled: int | None = None
    """Tokens that a play may sample at most, where fewer than that are known to be."""
    facts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The facts that the environment declares, each from its worst to its best value."""
    of: str = ""
    """The fact, or the other environment, where the kind needs one."""
    schedule: Schedule | None = None
    """Another than the kind's own."""


class Refused(ValueError):
    """A metric that cannot be: the message is one line of what was expected, what was found and what to do."""


class MetricKind(ABC):
    """One way to read a number off a run. Subclasses are stateless; one instance is registered under `name`."""

    name: ClassVar[str]
    """What `--metric` calls it."""
    title: ClassVar[str]
    """What it measures, in a clause for `ajet metric list`."""
    words: ClassVar[tuple[str, ...]] = ()
    """By what words a topic asks for it."""
    unit: ClassVar[str] = ""
    """Of values and differences; empty for a share."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """Which of `threshold` and `of` it has."""
    form: ClassVar[str] = "NAME"
    """How `of` is written."""
    effect: ClassVar[float] = 0.1
    """The smallest difference that matters unless somebody says another one: as a share of its range."""
    of_environment: ClassVar[bool] = False
    """Whether it is of another environment, `of`, whose hidden tasks are played after training."""
    reads_collapses: ClassVar[bool] = False
    """Whether a training that collapsed counts with its value, as what is asked is told by it."""
    reads_initial: ClassVar[bool] = False
    """Whether a run's value is what it added to its own beginning, which is then measured for each run anew; else runs
    that begin with one policy share one evaluation of it."""
    evaluates: ClassVar[bool] = True
    """Whether it is read off evaluations, so that their number says something of its noise."""
    rates: ClassVar[bool] = False
    """Whether every run has 1 or 0, so that two arms are two rates: a design then locks the test `boschloo`."""

    @abstractmethod
    def define(self, asked: Asked) -> Metric:
        """Return the metric with its parameters; raise Refused for parameters that it cannot have."""

    @abstractmethod
    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return all that is measured of a run, by key; Refused where the files do not hold it."""


def before_and_after(metric: Metric, run: Results) -> dict[str, Value]:
    key = f"{metric.split}/success"
    return {
        key + INITIAL: Value(success_rate(run.initial), len(run.initial["episodes"])),
        key: Value(success_rate(run.final), len(run.final["episodes"])),
    }


@dataclass(frozen=True, slots=True)
class Curve:
    """Success `ys` at `xs`, which grow from 0: training episodes, trained tokens, or seconds of training."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def area(self, horizon: float, most: float = 1.0) -> float:
        """Return the mean height from 0 to the horizon, cut at `most`, by trapezes."""
        points = [(x, min(y, most)) for x, y in zip(self.xs, self.ys, strict=True) if x <= horizon]
        if points[-1][0] < horizon:
            points.append((horizon, min(self.height(horizon), most)))
        return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points)) / horizon

    def height(self, x: float) -> float:
        """Return y at x on the straight line between two evaluations; the last value holds beyond the end."""
        after = bisect_right(self.xs, x)
        if after == len(self.xs):
            return self.ys[-1]
        (x0, x1), (y0, y1) = self.xs[after - 1 : after + 1], self.ys[after - 1 : after + 1]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)

    def crossing(self, threshold: float) -> float | None:
        """Return where the smoothed curve first reaches the threshold; None where it never does."""
        ys = (self.ys[0], *(fmean(self.ys[at - 1 : at + 2]) for at in range(1, len(self.ys))))
        if ys[0] >= threshold:
            return self.xs[0]
        for (x0, y0), (x1, y1) in pairwise(zip(self.xs, ys, strict=True)):
            if y1 >= threshold:
                return x0 + (x1 - x0) * (threshold - y0) / (y1 - y0)
        return None


def success_curve(run: Results, name: str = BY_EPISODES) -> Curve:
    """Return success by what a metric of the steps sums up to; Refused where any step lacks it."""
    values = [row["metrics"].get(name) for row in run.history]
    if any(value is None for value in values):
        raise Refused(f"expected {name} of every training step; found {values.count(None)} steps without it")
    at = [0.0, *accumulate(float(value) for value in values if value is not None)]
    parts = [run.initial, *run.during, run.final]
    versions = [int(part["policy_version"]) for part in parts]
    if versions != sorted(set(versions)) or versions[-1] >= len(at):
        raise Refused(
            "expected evaluations of policies, each later than the one before and of a step of this training; found "
            f"those of {', '.join(map(str, versions))}"
        )
    return Curve(tuple(at[version] for version in versions), tuple(success_rate(part) for part in parts))


def schedule_of(asked: Asked) -> Schedule:
    if asked.schedule is None:
        return Schedule(
            every=max(1, asked.horizon // LOOKS), episodes=max(LEAST_EPISODES, round(SHARE * asked.episodes))
        )
    if asked.schedule.every * (LEAST_POINTS - 1) > asked.horizon:
        raise Refused(
            f"expected at least {LEAST_POINTS - 2} evaluations between the first and the last step; found one every "
            f"{asked.schedule.every} of {asked.horizon} training episodes; evaluate more often"
        )
    return asked.schedule


def require_threshold(asked: Asked) -> float:
    """Return the threshold; Refused for none, and for one that is no share that can be reached and missed."""
    if asked.threshold is None:
        raise Refused("expected a threshold, such as 0.7 hidden success; found none; give one (--metric episodes:0.7)")
    if not 0 < float(f"{asked.threshold:g}") < 1:  # as names and keys say it
        raise Refused(
            f"expected a threshold between 0 and 1, a share of hidden tasks; found {asked.threshold:g}; give one inside"
        )
    return asked.threshold


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
    def parse(cls, of: str, kind: str) -> "Reduction":
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
