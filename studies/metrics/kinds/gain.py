"""What a training added to hidden success: the metric of a study whose models differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from studies.checks.run_facts import INITIAL
from studies.metrics.kinds.base import Asked, MetricKind, Results, Value, before_and_after, success_key
from studies.records.design import GAIN, Metric


class Gain(MetricKind):
    """Success after training less success before it.

    Success after training would be told of two models mostly by where they begin.
    """

    name: ClassVar[str] = "gain"
    title: ClassVar[str] = "share of hidden tasks solved after the last step, less the share before the first"
    words: ClassVar[tuple[str, ...]] = ("success gained", "improvement over its own beginning")
    effect: ClassVar[float] = 0.05

    def define(self, asked: Asked) -> Metric:
        """Return the metric of an environment."""
        meaning = (
            f"share of {asked.episodes} hidden episodes, played after the last step, in which {asked.measures}, less "
            "the share of as many that were played before the first step of the same run"
        )
        return Metric(key=GAIN, meaning=meaning, episodes=asked.episodes, worst=-1.0)

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return success before, success after, and their difference."""
        both, key = before_and_after(metric, run), success_key(metric)
        return {**both, metric.key: Value(both[key].value - both[key + INITIAL].value, both[key].n)}
