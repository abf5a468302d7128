"""Success, gain, reward, times, area, tokens, transfer, fact, collapse, and the list of all kinds with `logged`.

A training that never reaches a threshold counts with the horizon, so that what is compared is the mean time restricted
to it (Royston and Parmar 2013); the share that reached it is measured beside. Reaching and then collapsing is reaching.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from itertools import accumulate
from statistics import fmean
from typing import ClassVar, Final

from studies.checks import conditions
from studies.checks.conditions import INITIAL, LEAST_EPISODES, WINDOW_EPISODES, Part, success_rate
from studies.metrics import base
from studies.metrics.base import FORMS, Logged, Reduction
from studies.records.design import GAIN, MATCHED, Metric
from studies.records.procedure import CollapseRule
from studies.records.runs import TRAINING_AREA, Conditions

REACHED: Final = "/reached"
"""What the key ends with under which it stands whether the threshold was reached: 1 or 0."""


class Success(base.MetricKind):
    """The share of hidden episodes that are solved after the last step."""

    name = "success"
    title = "share of hidden tasks solved after the last step"
    words = ("final success", "success rate", "accuracy", "final score")

    def define(self, asked: base.Asked) -> Metric:
        meaning = f"share of {asked.episodes} hidden episodes, played after the last step, in which {asked.measures}"
        return Metric(meaning=meaning, episodes=asked.episodes)

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        return base.before_and_after(metric, run)


class Gain(base.MetricKind):
    """Success after training less success before it: the former is told of two models mostly by where they begin."""

    name = "gain"
    title = "share of hidden tasks solved after the last step, less the share before the first"
    words = ("success gained", "improvement over its own beginning")
    effect = 0.05
    reads_initial = True

    def define(self, asked: base.Asked) -> Metric:
        meaning = (
            f"share of {asked.episodes} hidden episodes, played after the last step, in which {asked.measures}, less "
            "the share of as many that were played before the first step of the same run"
        )
        return Metric(key=GAIN, meaning=meaning, episodes=asked.episodes, worst=-1.0)

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        both = base.before_and_after(metric, run)
        before, after = both.values()
        return {**both, metric.key: base.Value(after.value - before.value, after.n)}


class OfPlays(base.MetricKind):
    """A number of an evaluation's plays, read off those before training and those after it."""

    @abstractmethod
    def read(self, metric: Metric, part: Part) -> float: ...

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        parts = {metric.key + INITIAL: run.initial, metric.key: run.final}
        values = {key: base.Value(self.read(metric, part), len(part["episodes"])) for key, part in parts.items()}
        return {**base.before_and_after(metric, run), **values}


class MeanReward(OfPlays):
    """The mean of what the environment's own judge gives hidden episodes after the last step."""

    name = "reward"
    title = "mean reward of hidden tasks after the last step, by the environment's own judge"
    words = ("mean reward", "average reward", "reward reached")
    unit = "reward"

    def define(self, asked: base.Asked) -> Metric:
        low, high = asked.rewards
        if not low < high:
            raise base.Refused(
                f"expected rewards of a range; found {low:g} to {high:g}; give the environment its range"
            )
        return Metric(
            key="hidden/reward", kind=self.name, name="mean hidden reward", unit=self.unit,
            meaning=f"mean reward of {asked.episodes} hidden episodes, played after the last step",
            episodes=asked.episodes, worst=low, best=high,
        )  # fmt: skip

    def read(self, metric: Metric, part: Part) -> float:
        return fmean(float(episode["reward"]) for episode in part["episodes"])


class Area(base.MetricKind):
    """The mean of hidden success over the whole training; below a threshold it is mostly of speed."""

    name = "area"
    title = "hidden success on average over the training; with a threshold, what lies below it alone"
    words = ("area under the curve", "area under the learning curve", "auc")
    takes = frozenset({"threshold"})
    effect = 0.05

    def define(self, asked: base.Asked) -> Metric:
        below = "" if asked.threshold is None else f" below {base.require_threshold(asked):g}"
        return Metric(
            key="hidden/area" if asked.threshold is None else f"hidden/area_below_{asked.threshold:g}", kind=self.name,
            name=f"area under the hidden curve{below}",
            meaning=f"mean hidden success{below} over training: the share of hidden episodes in which {asked.measures}",
            episodes=asked.episodes, best=asked.threshold or 1.0, threshold=asked.threshold,
            horizon=float(asked.horizon), schedule=base.schedule_of(asked),
        )  # fmt: skip

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        if metric.horizon is None:
            raise base.Refused(f"expected a horizon of {metric.key}; found none in the design")
        area = base.success_curve(run).area(metric.horizon, metric.best)
        return {**base.before_and_after(metric, run), metric.key: base.Value(area, run.plays)}


class TrainingArea(base.MetricKind):
    """The mean of training success over the whole training, off the curve that a training logs anyway. Beyond the last
    batch, up to the horizon, holds the mean of the last `WINDOW_EPISODES` episodes."""

    name = TRAINING_AREA
    title = "success on training tasks, as training plays them, on average over the training; no evaluation is in it"
    words = ("area under the training curve", "training success")
    effect = 0.05
    evaluates = False

    def define(self, asked: base.Asked) -> Metric:
        return Metric(
            key="training/area", kind=self.name, name="mean success on training tasks",
            meaning=(
                f"mean over training of the share of training episodes in which {asked.measures}, as training plays "
                "them, with its exploration; no hidden task is in it"
            ),
            episodes=asked.episodes, horizon=float(asked.horizon),
        )  # fmt: skip

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        rows = [
            (row["metrics"].get("critic/success/mean"), row["metrics"].get(base.BY_EPISODES)) for row in run.history
        ]
        known = [(float(share), float(count)) for share, count in rows if share is not None and count]
        if metric.horizon is None or not rows or len(known) < len(rows):
            raise base.Refused(
                f"expected a horizon, and the success of every training step; found {len(known)} of {len(rows)} steps "
                "that tell it: have the environment say of every play whether it succeeded"
            )
        shares, counts = zip(*known, strict=True)
        at = [0.0, *accumulate(counts)]
        last = fmean(share for share, begun in zip(shares, at, strict=False) if begun > at[-2] - WINDOW_EPISODES)
        area = base.Curve(tuple(at), (*shares, last)).area(metric.horizon)
        return {**base.before_and_after(metric, run), metric.key: base.Value(area, round(at[-1]))}


class EpisodesTo(base.MetricKind):
    """Training episodes until the centred mean of three evaluations reaches a threshold."""

    name = "episodes"
    title = "training episodes until hidden success reaches a threshold"
    words: ClassVar[tuple[str, ...]] = ("faster", "sample-efficient", "fewest episodes", "fewer episodes")
    unit = "episodes"
    takes = frozenset({"threshold"})
    reads_collapses = True
    by: ClassVar[str] = base.BY_EPISODES
    """Which metric of the steps its time is the sum of."""

    def horizon(self, asked: base.Asked) -> float:
        return float(asked.horizon)

    def define(self, asked: base.Asked) -> Metric:
        threshold, horizon = base.require_threshold(asked), self.horizon(asked)
        return Metric(
            key=f"hidden/{self.unit}_to_{threshold:g}", kind=self.name, unit=self.unit,
            name=f"{self.unit} to {threshold:g} hidden success",
            meaning=(
                f"{self.unit} of training until {threshold:g} of hidden episodes succeed, in which {asked.measures}; "
                f"{horizon:g} where that is never reached"
            ),
            episodes=asked.episodes, higher_is_better=False, worst=horizon, best=0.0, threshold=threshold,
            horizon=horizon, schedule=base.schedule_of(asked),
        )  # fmt: skip

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        if metric.threshold is None or metric.horizon is None:
            raise base.Refused(f"expected threshold and horizon of {metric.key}; found none in the design")
        crossing = base.success_curve(run, self.by).crossing(metric.threshold)
        time = metric.horizon if crossing is None else min(crossing, metric.horizon)
        reached = base.Value(float(time < metric.horizon), run.plays)
        return {
            **base.before_and_after(metric, run),
            metric.key + REACHED: reached,
            metric.key: base.Value(time, run.plays),
        }


class SecondsTo(EpisodesTo):
    """The same in seconds of training, the harness's evaluations left out."""

    name = "seconds"
    title = "seconds of training until hidden success reaches a threshold"
    words = ("wall-clock", "wall clock time", "seconds to")
    unit = "seconds"
    by = base.BY_SECONDS

    def horizon(self, asked: base.Asked) -> float:
        if asked.horizon_s is None:
            raise base.Refused("expected what a training takes, to cut its time; found no price of one")
        return asked.horizon_s


class SuccessAtTokens(base.MetricKind):
    """Hidden success where so many trained tokens are spent: arms are compared at equal amounts, not at equal steps. A
    training that ended before has no value; one that a rule of the watchdog ended stays as it was."""

    name = "success-at-tokens"
    title = "hidden success once training has spent so many tokens: arms at equal tokens, not steps"
    takes = frozenset({"of"})
    form = "TOKENS"
    by: ClassVar[str] = base.BY_TOKENS

    def define(self, asked: base.Asked) -> Metric:
        spent, most = MATCHED[self.name], asked.horizon_s or math.inf  # what no training spends more than
        if self.by == base.BY_TOKENS:
            most = asked.horizon * (asked.sampled or asked.tokens or math.inf)
        if not re.fullmatch(r"[1-9]\d{0,11}", asked.of, re.ASCII) or int(asked.of) > most:
            bound = f", at most {most:,.0f}" if most < math.inf else ""
            raise base.Refused(
                f"expected a whole number of {spent} that every training comes to{bound}; found {asked.of or 'none'}; "
                f"give one (--metric {self.name}:{self.form}), or train longer"
            )
        at = f"{int(asked.of):,} {spent}"
        return Metric(
            key=f"hidden/success_at_{asked.of}_{spent.split()[-1]}", kind=self.name, name=f"hidden success at {at}",
            meaning=(
                f"share of hidden episodes in which {asked.measures} once training has spent {at}, on a straight line "
                "between the evaluations before and after"
            ),
            episodes=asked.episodes, of=asked.of, schedule=base.schedule_of(asked),
        )  # fmt: skip

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        curve, at = base.success_curve(run, self.by), int(metric.of)
        if curve.xs[-1] < at and run.stopped_by is None:
            raise base.Refused(
                f"expected a training of {at:,} {MATCHED[self.name]}; found one that ended after {curve.xs[-1]:,.0f}, "
                "where nothing is known of it: train longer, or compare at fewer"
            )
        return {**base.before_and_after(metric, run), metric.key: base.Value(curve.height(at), run.plays)}


class SuccessAtSeconds(SuccessAtTokens):
    """The same after so many seconds of training, the harness's evaluations left out."""

    name = "success-at-seconds"
    title = "hidden success after so many seconds of training: arms at equal seconds, not steps"
    form = "SECONDS"
    by = base.BY_SECONDS


class TokensPerTask(OfPlays):
    """All tokens sampled in an evaluation over the tasks that it solves. It is cut: a policy that solves next to
    nothing counts with the cut, which the design locks; by default what one play may take at most."""

    name = "tokens"
    title = "tokens sampled for each hidden task that is solved, after the last step"
    words = ("cheaper", "fewer tokens", "token-efficient", "tokens per solved task")
    unit = "tokens"
    takes = frozenset({"threshold"})

    def define(self, asked: base.Asked) -> Metric:
        cut = asked.tokens if asked.threshold is None else asked.threshold
        if cut is None or not 1 <= cut < math.inf:
            raise base.Refused(
                "expected the most tokens that a solved task may cost, 1 or more, such as 200; found "
                f"{'none' if cut is None else f'{cut:g}'}; give it (--metric tokens:200)"
            )
        return Metric(
            key="hidden/tokens_per_solved", kind=self.name, name="tokens per solved hidden task", unit=self.unit,
            meaning=(
                f"tokens sampled in {asked.episodes} hidden episodes, played after the last step, over those in which "
                f"{asked.measures}; at most {cut:g}"
            ),
            episodes=asked.episodes, higher_is_better=False, worst=float(cut), best=0.0, horizon=float(cut),
        )  # fmt: skip

    def read(self, metric: Metric, part: Part) -> float:
        tokens = [episode.get("tokens") for episode in part["episodes"]]
        if missing := tokens.count(None):
            raise base.Refused(
                f"expected the sampled tokens of every hidden episode; found {missing} of {len(tokens)} without them: "
                "evaluate with a server and a client of this version"
            )
        solved = sum(bool(episode["success"]) for episode in part["episodes"])
        return min(metric.worst, sum(tokens) / solved) if solved else metric.worst


class Transfer(base.MetricKind):
    """The share of another environment's hidden episodes that are solved after the last step."""

    name = "transfer"
    title = "share of another environment's hidden tasks solved after the last step (transfer:NAME)"
    words = ("generalises", "generalizes", "transfers to", "success on another environment")
    takes = frozenset({"of"})
    of_environment = True

    def define(self, asked: base.Asked) -> Metric:
        if not asked.of:
            raise base.Refused("expected another environment; found no name; name it (--metric transfer:NAME)")
        meaning = f"share of {asked.episodes} hidden episodes of {asked.of} that are solved, played after the last step"
        return Metric(
            key=f"hidden/success_on_{asked.of}", kind=self.name, name=f"hidden success on {asked.of}", meaning=meaning,
            of=asked.of, episodes=asked.episodes,
        )  # fmt: skip

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        if run.other is None:
            raise base.Refused(f"expected an evaluation on {metric.of} after the last step; found none")
        there = base.Value(success_rate(run.other), len(run.other["episodes"]))
        return {**base.before_and_after(metric, run), metric.key: there}


class Collapse(base.MetricKind):
    """1 for a training that collapsed, 0 for one that did not: its mean is the rate, which an exact test compares."""

    name = "collapse"
    title = "share of trainings that collapse, by their own curve (an exact test of two rates)"
    words = ("collapse", "collapses", "less likely to collapse", "more stable", "stability", "steadier")
    effect = 0.4
    reads_collapses = True
    rates = True

    def define(self, asked: base.Asked) -> Metric:
        if asked.horizon < LEAST_EPISODES:
            raise base.Refused(
                f"expected trainings of {LEAST_EPISODES} episodes or more, in which a collapse can be seen; found "
                f"{asked.horizon:,}; train longer"
            )
        return Metric(
            key="hidden/collapsed", kind=self.name, name="share of trainings that collapse",
            meaning=(
                "1 for a training that ended below where it began, lost again more than half of what it had gained, or "
                "broke down; 0 for any other"
            ),
            episodes=asked.episodes, higher_is_better=False, worst=1.0, best=0.0,
        )  # fmt: skip

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        plays = conditions.plays_of_both(run.initial, run.final)
        course = conditions.training_curve(run.history, success_rate(run.initial), success_rate(run.final), plays)
        how = conditions.detect_collapse(Conditions(course=course, stopped_by=run.stopped_by), CollapseRule())
        if how is None and course.peak is None:
            raise base.Refused(
                f"expected the success and number of {LEAST_EPISODES} training episodes or more, to see whether a "
                f"training collapsed; found {len(run.history)} steps that do not tell it"
            )
        both = base.before_and_after(metric, run)
        return {**both, metric.key: base.Value(float(how is not None), len(run.final["episodes"]))}


class MeanFact(OfPlays):
    """The mean of a fact over hidden episodes after the last step, or by a reduction those of the policies evaluated
    after some steps, the untrained one left out. Its range, from worst to best, is what the environment declares."""

    name = "fact"
    title = "mean of a number that the environment says of each play (fact:NAME), after the last step or by a reduction"
    takes = frozenset({"of"})
    form = FORMS[name][0]

    def define(self, asked: base.Asked) -> Metric:
        reduced = None if asked.of in asked.facts or ":" not in asked.of else Reduction.parse(asked.of, self.name)
        name = asked.of if reduced is None else reduced.name
        if name not in asked.facts:
            raise base.Refused(
                "expected a fact that the environment declares with its range "
                f"({', '.join(sorted(asked.facts)) or 'none'}); found {name or 'no name'}; name it (--metric "
                "fact:NAME), or declare it in the environment: facts = {'NAME': (worst, best)}"
            )
        if reduced is not None and reduced.ends is not None:
            raise base.Refused(
                f"expected fact:{name}:{reduced.how}, as its environment says the range; found {asked.of}"
            )
        worst, best = asked.facts[name] if reduced is None else reduced.range(asked.facts[name])
        plain = Metric(
            key=f"hidden/fact/{name}", kind=self.name, name=f"hidden {name}", unit=name, of=name,
            meaning=f"mean {name} of {asked.episodes} hidden episodes, played after the last step",
            episodes=asked.episodes, worst=worst, best=best, higher_is_better=best > worst,
        )  # fmt: skip
        if reduced is None or reduced.how == "last":
            return plain
        called, how = f"hidden {name}, {reduced.describe()}", reduced.how.replace(":", "")
        return plain.model_copy(update={
            "key": f"{plain.key}/{how}", "name": called, "of": asked.of, "schedule": base.schedule_of(asked),
            "meaning": f"{called}, of the policies that are evaluated after these steps, by hidden episodes",
        })  # fmt: skip

    def measure(self, metric: Metric, run: base.Results) -> Mapping[str, base.Value]:
        if metric.schedule is None:
            return super().measure(metric, run)
        reduction, parts = Reduction.parse(metric.of, self.name), (*run.during, run.final)
        plain, plays = metric.model_copy(update={"of": reduction.name}), sum(len(part["episodes"]) for part in parts)
        number = reduction.reduce(metric, [(int(part["policy_version"]), self.read(plain, part)) for part in parts])
        return {**base.before_and_after(metric, run), metric.key: base.Value(number, plays)}

    def read(self, metric: Metric, part: Part) -> float:
        values = [episode.get("facts", {}).get(metric.of) for episode in part["episodes"]]
        if missing := sum(value is None or not math.isfinite(value) for value in values):
            raise base.Refused(
                f"expected {metric.of} of every hidden episode; found {missing} of {len(values)} without it: have the "
                "environment say it of every play"
            )
        return fmean(values)


KINDS: Final = (
    Success, Gain, MeanReward, Area, TrainingArea, EpisodesTo, SecondsTo, SuccessAtTokens, SuccessAtSeconds,
    TokensPerTask, Transfer, Collapse, MeanFact, Logged,
)  # fmt: skip
