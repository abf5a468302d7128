"""Any named number that an environment says of its plays, on average after the last step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import ClassVar, Final

from studies.checks.run_facts import INITIAL, Part
from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.records.design import Metric

KEY: Final = "hidden/fact/"


class MeanFact(MetricKind):
    """The mean of a fact over hidden episodes. Its range, from worst to best, is what the environment declares."""

    name: ClassVar[str] = "fact"
    title: ClassVar[str] = "mean of a number that the environment says of each play (fact:NAME), after the last step"
    takes: ClassVar[frozenset[str]] = frozenset({"of"})

    def define(self, asked: Asked) -> Metric:
        """Return the metric of an environment; Refused for a fact that it does not declare."""
        if asked.of not in asked.facts:
            known = ", ".join(sorted(asked.facts)) or "none"
            raise Refused(
                f"expected a fact that the environment declares with its range ({known}); found "
                f"{asked.of or 'no name'}; name it (--metric fact:NAME), or declare it in the environment: "
                "facts = {'NAME': (worst, best)}"
            )
        worst, best = asked.facts[asked.of]
        return Metric(
            key=KEY + asked.of, kind=self.name, name=f"hidden {asked.of}", unit=asked.of, of=asked.of,
            meaning=f"mean {asked.of} of {asked.episodes} hidden episodes, played after the last step",
            episodes=asked.episodes, worst=worst, best=best, higher_is_better=best > worst,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return the mean before and after; Refused where an episode does not say it."""
        parts = {metric.key + INITIAL: run.initial, metric.key: run.final}
        means = {key: Value(_mean(part, metric.of), len(part["episodes"])) for key, part in parts.items()}
        return {**before_and_after(metric, run), **means}


def _mean(part: Part, name: str) -> float:
    said = [episode.get("facts", {}).get(name) for episode in part["episodes"]]
    if missing := sum(value is None or not math.isfinite(value) for value in said):
        raise Refused(
            f"expected {name} of every hidden episode; found {missing} of {len(said)} without it: have the environment "
            "say it of every play"
        )
    return fmean(said)
