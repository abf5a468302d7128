"""Episodes, and seconds, of training until hidden success reaches a threshold.

A training that never reaches it counts with the horizon, so that what is compared is the mean time restricted to it
(Royston and Parmar 2013); the share that reached it is measured beside. Reaching and then collapsing is reaching.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.metrics.kinds.curve import Curve, by_episodes, by_seconds
from studies.metrics.kinds.schedules import required_threshold, schedule_of
from studies.records.design import Metric

REACHED: Final = "/reached"
"""What the key ends with under which it stands whether the threshold was reached: 1 or 0."""


class _TimeTo(MetricKind):
    """Time of training until the centred mean of three evaluations reaches a threshold."""

    takes: ClassVar[frozenset[str]] = frozenset({"threshold"})
    effect: ClassVar[float] = 0.1
    reads_collapses: ClassVar[bool] = True

    def define(self, asked: Asked) -> Metric:
        """Return the metric of an environment."""
        threshold, horizon = required_threshold(asked), self._horizon(asked)
        name = f"{self.unit} to {threshold:g} hidden success"
        return Metric(
            key=f"hidden/{self.unit}_to_{threshold:g}", kind=self.name, name=name, unit=self.unit,
            meaning=(
                f"{self.unit} of training until {threshold:g} of hidden episodes succeed, in which {asked.measures}; "
                f"{horizon:g} where that is never reached"
            ),
            episodes=asked.episodes, higher_is_better=False, worst=horizon, best=0.0, threshold=threshold,
            horizon=horizon, schedule=schedule_of(asked),
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return the time, whether the threshold was reached, and success before and after."""
        if metric.threshold is None or metric.horizon is None:
            raise Refused(f"expected threshold and horizon of {metric.key}; found none in the design")
        found = self._curve(run).crossing(metric.threshold)
        plays = sum(len(part["episodes"]) for part in (run.initial, *run.during, run.final))
        reached = found is not None and found < metric.horizon
        return {
            **before_and_after(metric, run),
            metric.key + REACHED: Value(float(reached), plays),
            metric.key: Value(found if found is not None and reached else metric.horizon, plays),
        }

    @abstractmethod
    def _horizon(self, asked: Asked) -> float: ...

    @abstractmethod
    def _curve(self, run: Results) -> Curve: ...


class EpisodesTo(_TimeTo):
    """Training episodes to a threshold."""

    name: ClassVar[str] = "episodes"
    title: ClassVar[str] = "training episodes until hidden success reaches a threshold"
    words: ClassVar[tuple[str, ...]] = ("faster", "sample-efficient", "fewest episodes", "fewer episodes")
    unit: ClassVar[str] = "episodes"

    def _horizon(self, asked: Asked) -> float:
        return float(asked.horizon)

    def _curve(self, run: Results) -> Curve:
        return by_episodes(run)


class SecondsTo(_TimeTo):
    """Seconds of training to a threshold, the harness's evaluations left out."""

    name: ClassVar[str] = "seconds"
    title: ClassVar[str] = "seconds of training until hidden success reaches a threshold"
    words: ClassVar[tuple[str, ...]] = ("wall-clock", "wall clock time", "seconds to")
    unit: ClassVar[str] = "seconds"

    def _horizon(self, asked: Asked) -> float:
        if asked.horizon_s is None:
            raise Refused("expected what a training takes, to cut its time; found no price of one")
        return asked.horizon_s

    def _curve(self, run: Results) -> Curve:
        return by_seconds(run)
