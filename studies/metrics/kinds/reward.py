"""Mean hidden reward after the last step, for environments that reward more than success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from studies.checks.run_facts import INITIAL
from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value, before_and_after, mean_of
from studies.records.design import Metric

KEY: Final = "hidden/reward"


class MeanReward(MetricKind):
    """The mean of what the environment's own judge gives hidden episodes after the last step."""

    name: ClassVar[str] = "reward"
    title: ClassVar[str] = "mean reward of hidden tasks after the last step, by the environment's own judge"
    words: ClassVar[tuple[str, ...]] = ("mean reward", "average reward", "reward reached")
    unit: ClassVar[str] = "reward"

    def define(self, asked: Asked) -> Metric:
        """Return the metric of an environment; Refused where its rewards have no range."""
        low, high = asked.rewards
        if not low < high:
            raise Refused(f"expected rewards of a range; found {low:g} to {high:g}; give the environment its range")
        return Metric(
            key=KEY, kind=self.name, name="mean hidden reward", unit=self.unit,
            meaning=f"mean reward of {asked.episodes} hidden episodes, played after the last step",
            episodes=asked.episodes, worst=low, best=high,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return the mean reward before and after, and success before and after."""
        parts = {metric.key + INITIAL: run.initial, metric.key: run.final}
        means = {key: Value(mean_of(part, "reward"), len(part["episodes"])) for key, part in parts.items()}
        return {**before_and_after(metric, run), **means}
