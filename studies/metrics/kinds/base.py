"""What a metric is: one number a run, computed from the files that are stored of it and from nothing else.

Whoever collects a run computes it with these functions, and whoever verifies a study computes it again. A kind of
metric says all that depends on it: its range, what evaluations it needs, what is told of it. A `Metric` is a kind with
its parameters, locked in a design.

Does not know: statistics, prices, wording beyond its own name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar, NamedTuple

from studies.checks.run_facts import INITIAL, Part, Row, success
from studies.records.design import Metric, Schedule


@dataclass(frozen=True, slots=True)
class Results:
    """What is stored of a run: its evaluations before, during and after training, and the steps of the training."""

    initial: Part
    final: Part
    during: Sequence[Part] = ()
    """In the order of their policy's versions."""
    history: Sequence[Row] = ()
    other: Part | None = None
    """Of the last policy on another environment, where the metric is of one."""
    stopped_by: str | None = None
    """Code of the watchdog's rule that ended the training; None for one that ran its course."""


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
    """The range of the environment's rewards."""
    tokens: int | None = None
    """Tokens that a play may take at most (a job's `max_context`); None where nobody says."""
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
    effect: ClassVar[float] = 0.1
    """The smallest difference that matters unless somebody says another one: as a share of its range."""
    of_environment: ClassVar[bool] = False
    """Whether it is of another environment, `of`, whose hidden tasks are played after training."""
    reads_collapses: ClassVar[bool] = False
    """Whether a training that collapsed counts with its value, as what is asked is told by it."""
    rates: ClassVar[bool] = False
    """Whether every run has 1 or 0, so that two arms are two rates: a design then locks the test `boschloo`."""

    @abstractmethod
    def define(self, asked: Asked) -> Metric:
        """Return the metric with its parameters; raise Refused for parameters that it cannot have."""

    @abstractmethod
    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return all that is measured of a run, by key: the metric's own under `metric.key`.

        Raises Refused where the files do not hold what it is computed from.
        """

    def of_run(self, metric: Metric, run: Results) -> float:
        """Return the number by which a run is judged."""
        return self.measure(metric, run)[metric.key].value


def success_key(metric: Metric) -> str:
    """Return the key of success on the tasks that a metric is of: `hidden/success`."""
    return f"{metric.split}/success"


def before_and_after(metric: Metric, run: Results) -> dict[str, Value]:
    """Return success before and after training, by key."""
    key = success_key(metric)
    return {
        key + INITIAL: Value(success(run.initial), len(run.initial["episodes"])),
        key: Value(success(run.final), len(run.final["episodes"])),
    }


def mean_of(part: Part, name: str) -> float:
    """Return the mean of what every episode of an evaluation says by a name; ValueError where it has none."""
    return fmean(float(episode[name]) for episode in part["episodes"])
