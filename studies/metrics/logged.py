"""Logged: a metric that every training step logs, made one number a run by a reduction.

`logged:NAME:REDUCTION[:WORST..BEST]` has a name as a training logs it (docs/training-metrics.md), a reduction of its
steps, and a range where `KNOWN` has none: the range says what the smallest difference that matters is a share of.
Nothing of a hidden task is in it, so it tells how a training went, and no more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from statistics import fmean
from types import MappingProxyType
from typing import Final, NamedTuple

from studies.checks.conditions import Row
from studies.metrics.base import BY_EPISODES, Asked, MetricKind, Refused, Results, Value, before_and_after
from studies.records.design import Metric

KNOWN: Final[Mapping[str, tuple[float, float, str]]] = MappingProxyType({
    "critic/success/mean": (0.0, 1.0, ""), "batch/constant_groups": (1.0, 0.0, ""),
    "response_length/clip_ratio": (1.0, 0.0, ""), "actor/pg_clipfrac": (1.0, 0.0, ""),
    "actor/pg_clipfrac_lower": (1.0, 0.0, ""), "trainer/idle_ratio": (1.0, 0.0, ""),
    "rollouter/idle_ratio": (1.0, 0.0, ""), "rollout_corr/rollout_is_eff_sample_size": (0.0, 1.0, ""),
    "training/rollout_actor_probs_pearson_corr": (-1.0, 1.0, ""),
})  # fmt: skip
"""Worst end, best end and unit of what has a range by itself. Rewards have the environment's, lengths what fits."""
_REWARDS: Final = ("critic/rewards/mean", "critic/rewards/min", "critic/rewards/max")
_LENGTH: Final = "response_length/mean"
_OTHERS: Final = (
    "actor/entropy", "actor/grad_norm", "actor/kl_loss", "actor/lr", "actor/pg_loss", "actor/ppo_kl",
    "critic/advantages/max", "critic/advantages/mean", "critic/advantages/min", "critic/rewards/std", "num_turns/mean",
    "offpolicy/token_weighted_policy_age", "rollout_corr/k3_kl", "rollout_corr/kl", "timing_s/step", "tokens/generated",
    "tokens/trained", "training/rollout_probs_diff_mean", "training/token_mult_prob_error",
)  # fmt: skip
"""What is logged and has no range that is known: a misspelt one of them is no name of a package's own."""
_PER: Final = {"batch/constant_groups": "batch/groups"}
"""What is read as a share of something else that the step logs."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./+-]{0,79}")
_RANGE: Final = re.compile(r"([+-]?[0-9.e+-]+?)\.\.([+-]?[0-9.e+-]+)")
_REDUCTION: Final = re.compile(r"first(?P<first>[1-9]\d{0,5})|mean:(?P<low>[1-9]\d{0,5})-(?P<high>[1-9]\d{0,5})"
                               r"|last|slope|max")  # fmt: skip
LAST: Final = 5
"""Steps that `last` is the mean of: one step is too few to tell a policy by."""
_FORM: Final = "NAME:REDUCTION[:WORST..BEST]"
_EXPECTED: Final = (
    f"logged:{_FORM}, with a reduction of first10, mean:3-8, last, slope or max, such as "
    "logged:actor/entropy:first10:0..3"
)


class _Steps(NamedTuple):
    """What `of` says: which metric, how it is reduced, in which range (None: that of `KNOWN`)."""

    name: str
    reduction: str
    ends: tuple[float, float] | None

    @classmethod
    def parse(cls, of: str) -> _Steps:
        name, *rest = of.replace(" ", "").split(":")
        ends = _RANGE.fullmatch(rest.pop()) if rest and ".." in rest[-1] else None
        reduction = ":".join(rest)
        try:
            numbers = None if ends is None else (float(ends[1]), float(ends[2]))
        except ValueError:
            numbers = (math.nan, math.nan)
        window = _REDUCTION.fullmatch(reduction)
        ordered = window is not None and (window["low"] is None or int(window["low"]) <= int(window["high"]))
        sound = numbers is None or (all(map(math.isfinite, numbers)) and numbers[0] != numbers[1])
        if not _NAME.fullmatch(name) or not ordered or not sound or (ends is None and ".." in of):
            raise Refused(f"expected {_EXPECTED}; found {of or 'no name'}; write it so")
        return cls(name, reduction, numbers)

    @property
    def key(self) -> str:
        return f"logged/{self.name}/{self.reduction.replace(':', '')}"

    @property
    def words(self) -> str:
        share = f" as a share of {_PER[self.name]}" if self.name in _PER else ""
        first, last = self.window
        how = {
            "last": f"mean over the last {LAST} steps", "slope": "rise of a straight line over all steps",
            "max": "largest value of any step",
        }  # fmt: skip
        return f"{self.name}{share}, {how.get(self.reduction, f'mean over steps {first} to {last}')}"

    @property
    def window(self) -> tuple[int, int]:
        found = _REDUCTION.fullmatch(self.reduction)
        if found is None or (found["first"] is None and found["low"] is None):
            return 1, 10**6
        return (1, int(found["first"])) if found["first"] else (int(found["low"]), int(found["high"]))

    def reduce(self, history: Sequence[Row]) -> float:
        """Return the number of a training; Refused where fewer than half of the steps it is of tell it."""
        first, last = self.window
        rows = [row for row in history if first <= row["step"] <= last]
        rows = rows[-LAST:] if self.reduction == "last" else rows
        points = [(int(row["step"]), value) for row in rows if (value := self._read(row)) is not None]
        if len(points) * 2 < max(len(rows), 1) or (self.reduction == "slope" and len(points) < 3):
            raise Refused(
                f"expected {self.name} of the steps that {self.reduction} is of; found it at {len(points)} of "
                f"{len(rows)}; name one that this training logs"
            )
        values = [value for _, value in points]
        if self.reduction != "slope":
            return max(values) if self.reduction == "max" else fmean(values)
        middle = fmean(step for step, _ in points)
        squares = math.fsum((step - middle) ** 2 for step, _ in points)
        rise = math.fsum((step - middle) * value for step, value in points) / squares
        return rise * (points[-1][0] - points[0][0])

    def _read(self, row: Row) -> float | None:
        value, whole = row["metrics"].get(self.name), row["metrics"].get(_PER.get(self.name, ""), 1.0)
        if not isinstance(value, int | float) or not math.isfinite(value) or not whole:
            return None
        return float(value) / float(whole)


class Logged(MetricKind):
    """A metric of the training steps, reduced to one number: the mean of some steps, the last ones, the rise of a
    straight line over all of them (from the first to the last, so that its unit is the metric's), or the maximum. A
    training that was stopped early has the steps that it made. Counts of constant groups are read as a share of the
    step's groups."""

    name = "logged"
    title = "a number that training steps log, by a reduction (of a training, not of hidden tasks)"
    takes = frozenset({"of"})
    form = _FORM
    evaluates = False

    def define(self, asked: Asked) -> Metric:
        steps = _Steps.parse(asked.of)
        worst, best, unit = self._range(steps, asked)
        if steps.reduction == "slope":  # it may fall as far as it may rise
            worst, best = worst - best, best - worst
        return Metric(
            key=steps.key, kind=self.name, name=steps.words, unit=unit, of=asked.of, episodes=asked.episodes,
            meaning=f"{steps.words}, as training steps log it; no hidden task is in it",
            worst=worst, best=best, higher_is_better=best > worst,
        )  # fmt: skip

    def measure(self, metric: Metric, run: Results) -> Mapping[str, Value]:
        played = sum(row["metrics"].get(BY_EPISODES) or 0 for row in run.history)
        value = _Steps.parse(metric.of).reduce(run.history)
        return {**before_and_after(metric, run), metric.key: Value(value, max(1, round(played)))}

    @staticmethod
    def _range(steps: _Steps, asked: Asked) -> tuple[float, float, str]:
        name = steps.name
        known = KNOWN.get(name)
        if name in _REWARDS:
            known = (*asked.rewards, "reward")
        elif name == _LENGTH and asked.tokens is not None:
            known = (float(asked.tokens), 0.0, "tokens")
        if steps.ends is not None:
            return (*steps.ends, name if known is None else known[2])
        if known is not None:
            return known
        near = get_close_matches(name, (*KNOWN, *_REWARDS, _LENGTH, *_OTHERS), n=1)
        hint = f", did you mean {near[0]}?" if near and near[0] != name else ""
        raise Refused(
            f"expected the range of {name}, from its worst to its best value, as nothing says what difference of it "
            f"matters; found none{hint}; give it (--metric logged:{name}:{steps.reduction}:0..1)"
        )
