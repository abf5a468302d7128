"""Tokens that the policy samples for each hidden task it solves, after the last step: what a solution costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Final

from studies.checks.run_facts import INITIAL, Part
from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.records.design import Metric

KEY: Final = "hidden/tokens_per_solved"


class TokensPerTask(MetricKind):
    """All tokens sampled in an evaluation, those of tasks that stay unsolved too, over the tasks that it solves.

    It is cut: a policy that solves nothing, or next to nothing, counts with the cut, which the design locks. Unless
    somebody says another one, it is what one play may take at most.
    """

    name: ClassVar[str] = "tokens"
    title: ClassVar[str] = "tokens sampled for each hidden task that is solved, after the last step"
    words: ClassVar[tuple[str, ...]] = ("cheaper", "fewer tokens", "token-efficient", "tokens per solved task")
    unit: ClassVar[str] = "tokens"
    takes: ClassVar[frozenset[str]] = frozenset({"threshold"})

    def define(self, asked: Asked) -> Metric:
        """Return the metric of an environment; its threshold is where it is cut."""
        cut = asked.tokens if asked.threshold is None else asked.threshold
        if cut is None or not 1 <= cut < math.inf:
            found = "none" if cut is None else f"{cut:g}"
            raise Refused(
                f"expected the most tokens that a solved task may cost, 1 or more, such as 200; found {found}; "
                "give it (--metric tokens:200)"
            )
        return Metric(
            key=KEY, kind=self.name, name="tokens per solved hidden task", unit=self.unit,
            meaning=(
                f"tokens sampled in {asked.episodes} hidden episodes, played after the last step, over those in which "
                f"{asked.measures}; at most {cut:g}"
            ),
            episodes=asked.episodes, higher_is_better=False, worst=float(cut), best=0.0, horizon=float(cut),
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        """Return what a solved task costs before and after; Refused where an episode does not say its tokens."""
        parts = {metric.key + INITIAL: run.initial, metric.key: run.final}
        costs = {key: Value(_cost(part, metric.worst), len(part["episodes"])) for key, part in parts.items()}
        return {**before_and_after(metric, run), **costs}


def _cost(part: Part, cut: float) -> float:
    said = [episode.get("tokens") for episode in part["episodes"]]
    if missing := said.count(None):
        raise Refused(
            f"expected the sampled tokens of every hidden episode; found {missing} of {len(said)} without them: "
            "evaluate with a server and a client of this version"
        )
    solved = sum(bool(episode["success"]) for episode in part["episodes"])
    return min(cut, sum(said) / solved) if solved else cut
