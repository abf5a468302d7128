"""Hidden success on another environment than the one that was trained on, after the last step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from studies.checks.run_facts import success
from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.records.design import Metric

KEY: Final = "hidden/success_on_"


class Transfer(MetricKind):
    """The share of another environment's hidden episodes that are solved after the last step."""

    name: ClassVar[str] = "transfer"
    title: ClassVar[str] = "share of another environment's hidden tasks solved after the last step (transfer:NAME)"
    words: ClassVar[tuple[str, ...]] = ("generalises", "generalizes", "transfers to", "success on another environment")
    takes: ClassVar[frozenset[str]] = frozenset({"of"})
    of_environment: ClassVar[bool] = True

    def define(self, asked: Asked) -> Metric:
        """Return the metric of an environment; Refused where no other one is named."""
        if not asked.of:
            raise Refused("expected another environment; found no name; name it (--metric transfer:NAME)")
        meaning = f"share of {asked.episodes} hidden episodes of {asked.of} that are solved, played after the last step"
        return Metric(
            key=KEY + asked.of, kind=self.name, name=f"hidden success on {asked.of}", meaning=meaning, of=asked.of,
            episodes=asked.episodes,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return success there after training, and success before and after where it was trained."""
        if run.other is None:
            raise Refused(f"expected an evaluation on {metric.of} after the last step; found none")
        there = Value(success(run.other), len(run.other["episodes"]))
        return {**before_and_after(metric, run), metric.key: there}
