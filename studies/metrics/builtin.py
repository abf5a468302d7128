"""Success, gain, reward, times, area, tokens, transfer, fact, collapse.

Episodes, and seconds, of training until hidden success reaches a threshold.

A training that never reaches it counts with the horizon, so that what is compared is the mean time restricted to it
(Royston and Parmar 2013); the share that reached it is measured beside. Reaching and then collapsing is reaching.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from statistics import fmean
from typing import ClassVar, Final

from studies.checks.conditions import INITIAL, Part, success_rate
from studies.checks.training import LEAST_EPISODES, detect_collapse, training_curve
from studies.metrics.base import (
    Asked,
    Curve,
    MetricKind,
    Refused,
    Results,
    Value,
    before_and_after,
    by_episodes,
    by_seconds,
    mean_of,
    require_threshold,
    schedule_of,
    success_key,
)
from studies.records.design import GAIN, Metric
from studies.records.procedure import CollapseRule
from studies.records.runs import Conditions

AREA_KEY: Final = "hidden/area"


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
        below = "" if asked.threshold is None else f" below {require_threshold(asked):g}"
        top = asked.threshold or 1.0
        return Metric(
            key=AREA_KEY if asked.threshold is None else f"{AREA_KEY}_below_{asked.threshold:g}", kind=self.name,
            name=f"area under the hidden curve{below}",
            meaning=f"mean hidden success{below} over training: the share of hidden episodes in which {asked.measures}",
            episodes=asked.episodes, best=top, threshold=asked.threshold, horizon=float(asked.horizon),
            schedule=schedule_of(asked),
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        if metric.horizon is None:
            raise Refused(f"expected a horizon of {metric.key}; found none in the design")
        found = by_episodes(run).area(metric.horizon, metric.best)
        plays = sum(len(part["episodes"]) for part in (run.initial, *run.during, run.final))
        return {**before_and_after(metric, run), metric.key: Value(found, plays)}


COLLAPSE_KEY: Final = "hidden/collapsed"


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
        if asked.horizon < LEAST_EPISODES:
            raise Refused(
                f"expected trainings of {LEAST_EPISODES} episodes or more, in which a collapse can be seen; found "
                f"{asked.horizon:,}; train longer"
            )
        return Metric(
            key=COLLAPSE_KEY, kind=self.name, name="share of trainings that collapse",
            meaning=(
                "1 for a training that ended below where it began, lost again more than half of what it had gained, or "
                "broke down; 0 for any other"
            ),
            episodes=asked.episodes, higher_is_better=False, worst=1.0, best=0.0,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        plays = len(run.final["episodes"])
        course = training_curve(run.history, success_rate(run.initial), success_rate(run.final), plays)
        how = detect_collapse(Conditions(course=course, stopped_by=run.stopped_by), CollapseRule())
        if how is None and course.peak is None:
            raise Refused(
                f"expected the success and number of {LEAST_EPISODES} training episodes or more, to see whether a "
                f"training collapsed; found {len(run.history)} steps that do not tell it"
            )
        return {**before_and_after(metric, run), metric.key: Value(float(how is not None), plays)}


FACT_KEY: Final = "hidden/fact/"


class MeanFact(MetricKind):
    """The mean of a fact over hidden episodes. Its range, from worst to best, is what the environment declares."""

    name: ClassVar[str] = "fact"
    title: ClassVar[str] = "mean of a number that the environment says of each play (fact:NAME), after the last step"
    takes: ClassVar[frozenset[str]] = frozenset({"of"})

    def define(self, asked: Asked) -> Metric:
        if asked.of not in asked.facts:
            known = ", ".join(sorted(asked.facts)) or "none"
            raise Refused(
                f"expected a fact that the environment declares with its range ({known}); found "
                f"{asked.of or 'no name'}; name it (--metric fact:NAME), or declare it in the environment: "
                "facts = {'NAME': (worst, best)}"
            )
        worst, best = asked.facts[asked.of]
        return Metric(
            key=FACT_KEY + asked.of, kind=self.name, name=f"hidden {asked.of}", unit=asked.of, of=asked.of,
            meaning=f"mean {asked.of} of {asked.episodes} hidden episodes, played after the last step",
            episodes=asked.episodes, worst=worst, best=best, higher_is_better=best > worst,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
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


class Gain(MetricKind):
    """Success after training less success before it.

    Success after training would be told of two models mostly by where they begin.
    """

    name: ClassVar[str] = "gain"
    title: ClassVar[str] = "share of hidden tasks solved after the last step, less the share before the first"
    words: ClassVar[tuple[str, ...]] = ("success gained", "improvement over its own beginning")
    effect: ClassVar[float] = 0.05

    def define(self, asked: Asked) -> Metric:
        meaning = (
            f"share of {asked.episodes} hidden episodes, played after the last step, in which {asked.measures}, less "
            "the share of as many that were played before the first step of the same run"
        )
        return Metric(key=GAIN, meaning=meaning, episodes=asked.episodes, worst=-1.0)

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        both, key = before_and_after(metric, run), success_key(metric)
        return {**both, metric.key: Value(both[key].value - both[key + INITIAL].value, both[key].n)}


REWARD_KEY: Final = "hidden/reward"


class MeanReward(MetricKind):
    """The mean of what the environment's own judge gives hidden episodes after the last step."""

    name: ClassVar[str] = "reward"
    title: ClassVar[str] = "mean reward of hidden tasks after the last step, by the environment's own judge"
    words: ClassVar[tuple[str, ...]] = ("mean reward", "average reward", "reward reached")
    unit: ClassVar[str] = "reward"

    def define(self, asked: Asked) -> Metric:
        low, high = asked.rewards
        if not low < high:
            raise Refused(f"expected rewards of a range; found {low:g} to {high:g}; give the environment its range")
        return Metric(
            key=REWARD_KEY, kind=self.name, name="mean hidden reward", unit=self.unit,
            meaning=f"mean reward of {asked.episodes} hidden episodes, played after the last step",
            episodes=asked.episodes, worst=low, best=high,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        parts = {metric.key + INITIAL: run.initial, metric.key: run.final}
        means = {key: Value(mean_of(part, "reward"), len(part["episodes"])) for key, part in parts.items()}
        return {**before_and_after(metric, run), **means}


class Success(MetricKind):
    """The share of hidden episodes that are solved after the last step."""

    name: ClassVar[str] = "success"
    title: ClassVar[str] = "share of hidden tasks solved after the last step"
    words: ClassVar[tuple[str, ...]] = ("final success", "success rate", "accuracy", "final score")

    def define(self, asked: Asked) -> Metric:
        meaning = f"share of {asked.episodes} hidden episodes, played after the last step, in which {asked.measures}"
        return Metric(meaning=meaning, episodes=asked.episodes)

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        return before_and_after(metric, run)


REACHED: Final = "/reached"
"""What the key ends with under which it stands whether the threshold was reached: 1 or 0."""


class _TimeTo(MetricKind):
    """Time of training until the centred mean of three evaluations reaches a threshold."""

    takes: ClassVar[frozenset[str]] = frozenset({"threshold"})
    effect: ClassVar[float] = 0.1
    reads_collapses: ClassVar[bool] = True

    def define(self, asked: Asked) -> Metric:
        threshold, horizon = require_threshold(asked), self._horizon(asked)
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


TOKENS_KEY: Final = "hidden/tokens_per_solved"


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
        cut = asked.tokens if asked.threshold is None else asked.threshold
        if cut is None or not 1 <= cut < math.inf:
            found = "none" if cut is None else f"{cut:g}"
            raise Refused(
                f"expected the most tokens that a solved task may cost, 1 or more, such as 200; found {found}; "
                "give it (--metric tokens:200)"
            )
        return Metric(
            key=TOKENS_KEY, kind=self.name, name="tokens per solved hidden task", unit=self.unit,
            meaning=(
                f"tokens sampled in {asked.episodes} hidden episodes, played after the last step, over those in which "
                f"{asked.measures}; at most {cut:g}"
            ),
            episodes=asked.episodes, higher_is_better=False, worst=float(cut), best=0.0, horizon=float(cut),
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
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


TRANSFER_KEY: Final = "hidden/success_on_"


class Transfer(MetricKind):
    """The share of another environment's hidden episodes that are solved after the last step."""

    name: ClassVar[str] = "transfer"
    title: ClassVar[str] = "share of another environment's hidden tasks solved after the last step (transfer:NAME)"
    words: ClassVar[tuple[str, ...]] = ("generalises", "generalizes", "transfers to", "success on another environment")
    takes: ClassVar[frozenset[str]] = frozenset({"of"})
    of_environment: ClassVar[bool] = True

    def define(self, asked: Asked) -> Metric:
        if not asked.of:
            raise Refused("expected another environment; found no name; name it (--metric transfer:NAME)")
        meaning = f"share of {asked.episodes} hidden episodes of {asked.of} that are solved, played after the last step"
        return Metric(
            key=TRANSFER_KEY + asked.of, kind=self.name, name=f"hidden success on {asked.of}", meaning=meaning,
            of=asked.of,
            episodes=asked.episodes,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        if run.other is None:
            raise Refused(f"expected an evaluation on {metric.of} after the last step; found none")
        there = Value(success_rate(run.other), len(run.other["episodes"]))
        return {**before_and_after(metric, run), metric.key: there}
