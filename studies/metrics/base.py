"""What a metric is: one number a run, computed from its stored files and nothing else.

A kind of metric says its range, the evaluations it needs and what is told of it; a `Metric` is a kind with its
parameters, locked in a design. The hidden curve of a run is success by training episodes, with straight lines between
evaluations. Times are read off the centred mean of three evaluations (two at an end).
"""

from __future__ import annotations

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
    def of(cls, snapshot: Mapping[str, Any], evaluation: Mapping[str, Any], stopped_by: str | None) -> Results:
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
