"""The area under the hidden curve, whole or below a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.metrics.kinds.curve import by_episodes
from studies.metrics.kinds.schedules import required_threshold, schedule_of
from studies.records.design import Metric

KEY: Final = "hidden/area"


class Area(MetricKind):
    """The mean of hidden success over the whole training.

    The whole area confounds speed with the level that is reached; below a threshold it is mostly of speed, and its
    estimand is what lacks to the threshold on average, up to the horizon.
    """

    name: ClassVar[str] = "area"
    title: ClassVar[str] = "hidden success on average over the training; with a threshold, what lies below it alone"
    words: ClassVar[tuple[str, ...]] = ("area under the curve", "area under the learning curve", "auc")
    takes: ClassVar[frozenset[str]] = frozenset({"threshold"})
    effect: ClassVar[float] = 0.05

    def define(self, asked: Asked) -> Metric:
        """Return the metric of an environment."""
        below = "" if asked.threshold is None else f" below {required_threshold(asked):g}"
        top = asked.threshold or 1.0
        return Metric(
            key=KEY if asked.threshold is None else f"{KEY}_below_{asked.threshold:g}", kind=self.name,
            name=f"area under the hidden curve{below}",
            meaning=f"mean hidden success{below} over training: the share of hidden episodes in which {asked.measures}",
            episodes=asked.episodes, best=top, threshold=asked.threshold, horizon=float(asked.horizon),
            schedule=schedule_of(asked),
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return the area, and success before and after."""
        if metric.horizon is None:
            raise Refused(f"expected a horizon of {metric.key}; found none in the design")
        found = by_episodes(run).area(metric.horizon, metric.best)
        plays = sum(len(part["episodes"]) for part in (run.initial, *run.during, run.final))
        return {**before_and_after(metric, run), metric.key: Value(found, plays)}
