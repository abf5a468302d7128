"""Hidden success after the last step: the metric of a study that asks for no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from studies.metrics.kinds.base import Asked, MetricKind, Results, Value, before_and_after
from studies.records.design import Metric


class Success(MetricKind):
    """The share of hidden episodes that are solved after the last step."""

    name: ClassVar[str] = "success"
    title: ClassVar[str] = "share of hidden tasks solved after the last step"
    words: ClassVar[tuple[str, ...]] = ("final success", "success rate", "accuracy", "final score")

    def define(self, asked: Asked) -> Metric:
        """Return the metric of an environment."""
        meaning = f"share of {asked.episodes} hidden episodes, played after the last step, in which {asked.measures}"
        return Metric(meaning=meaning, episodes=asked.episodes)

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return success before and after."""
        return before_and_after(metric, run)
