"""The share of trainings that collapse: of each run whether it did, by the usual rule and its own curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from studies.checks.collapse import LEAST_EPISODES, collapse, training_curve
from studies.checks.run_facts import success
from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.records.design import Metric
from studies.records.design_parts import CollapseRule
from studies.records.run_data import Conditions

KEY: Final = "hidden/collapsed"


class Collapse(MetricKind):
    """1 for a training that collapsed, 0 for one that did not: its mean is the rate, which an exact test compares."""

    name: ClassVar[str] = "collapse"
    title: ClassVar[str] = "share of trainings that collapse, by their own curve (an exact test of two rates)"
    words: ClassVar[tuple[str, ...]] = (
        "collapse", "collapses", "less likely to collapse", "more stable", "stability", "steadier",
    )  # fmt: skip
    effect: ClassVar[float] = 0.4
    reads_collapses: ClassVar[bool] = True
    rates: ClassVar[bool] = True

    def define(self, asked: Asked) -> Metric:
        """Return the metric; Refused for trainings too short to rise and fall."""
        if asked.horizon < LEAST_EPISODES:
            raise Refused(
                f"expected trainings of {LEAST_EPISODES} episodes or more, in which a collapse can be seen; found "
                f"{asked.horizon:,}; train longer"
            )
        return Metric(
            key=KEY, kind=self.name, name="share of trainings that collapse",
            meaning=(
                "1 for a training that ended below where it began, lost again more than half of what it had gained, or "
                "broke down; 0 for any other"
            ),
            episodes=asked.episodes, higher_is_better=False, worst=1.0, best=0.0,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return whether it collapsed, and success before and after; Refused where its curve cannot tell."""
        plays = len(run.final["episodes"])
        course = training_curve(run.history, success(run.initial), success(run.final), plays)
        how = collapse(Conditions(course=course, stopped_by=run.stopped_by), CollapseRule())
        if how is None and course.peak is None:
            raise Refused(
                f"expected the success and number of {LEAST_EPISODES} training episodes or more, to see whether a "
                f"training collapsed; found {len(run.history)} steps that do not tell it"
            )
        return {**before_and_after(metric, run), metric.key: Value(float(how is not None), plays)}
