"""From observations to figures: the spread within groups, the part of it that is evaluation, the pairs' correlation.

Sums of squares are pooled over groups, each around its own mean. The evaluation part is the spread of one untrained
policy's evaluations, and falls with the number of episodes; through it a figure is brought to another number. Where it
is unknown, a figure stands for its own number of episodes and, cautiously, for larger ones. It takes an evaluation of
the trained policy to be as noisy as one of the untrained. The correlation is that of residuals of runs with one seed.
Runs that collapsed are no noise: they are counted, with what they lack of the others.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from studies.checks.collapse import collapse
from studies.records.design_parts import CollapseRule, Noise
from studies.records.run_data import Conditions, TrainingCurve

LEAST_DF = 4
"""Fewest degrees of freedom that a figure is stated with: below, a spread is uncertain by a factor of 4 and more."""
LEAST_PAIRS = 10
"""Fewest pairs that a correlation is stated from: below, its 95 % interval is wider than 1.2."""
_NOTHING = 1e-9
"""A standard deviation that is none: far under one episode in any evaluation."""
_K = TypeVar("_K")


class Observation(BaseModel):
    """One run's value of a metric."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run: str
    study: str
    environment: str
    model: str
    """Digest of the job's model."""
    algorithm: str
    group: str
    """Digest of what it shares with its group: study, design, phase, arm, and the job without its seed."""
    pairing: str
    """Digest of study, design and phase: within it, runs with one seed are pairs."""
    decoding: str
    """How the evaluation samples."""
    seed: int
    steps: int
    metric: str
    episodes: int = Field(ge=1)
    value: float = Field(allow_inf_nan=False)
    initial: float | None = Field(default=None, allow_inf_nan=False)
    """The same metric of the untrained policy; None where it was not measured."""
    job: str | None = None
    """Digest of the whole job without its seed; None where nobody wrote it down."""
    collapsed: bool = False
    """Whether training is known to have collapsed, by its course."""

    @property
    def is_share(self) -> bool:
        """Whether the metric is a share of episodes that were solved."""
        return self.metric.endswith("/success")

    @property
    def lost(self) -> bool:
        """Whether it collapsed, as far as anybody can say: by its course, or by success below its beginning."""
        if self.collapsed or self.initial is None or not self.is_share:
            return self.collapsed
        known = TrainingCurve(start=self.initial, end=self.value, plays=self.episodes)
        return collapse(Conditions(course=known), CollapseRule()) is not None


@dataclass(frozen=True, slots=True)
class Figures:
    """The spread of a metric between seeds, at `episodes` evaluation episodes."""

    variance: float
    df: int
    episodes: int
    evaluation: float | None
    """The part of `variance` that is evaluation; None where it is unknown."""
    correlation: float | None
    pairs: int
    runs: int
    groups: int
    studies: int
    steps: tuple[int, ...]
    collapsed: int = 0
    """Runs beside them that collapsed."""
    alone: int = 0
    """Runs beside them that did not, and have no part in the spread: none of their group is left beside them, say."""
    drop: float | None = None
    """What those lack of the mean of their groups, on average; None where there are none to say it."""

    def says(self, episodes: int) -> bool:
        """Return whether it stands for so many evaluation episodes."""
        varies = self.variance > _NOTHING**2
        return varies and self.df >= LEAST_DF and (self.evaluation is not None or episodes >= self.episodes)

    def at(self, episodes: int, basis: str) -> Noise:
        """Return the noise at so many evaluation episodes."""
        if self.evaluation is None:
            variance, evaluation = self.variance, None
        else:
            evaluation = self.evaluation * self.episodes / episodes
            variance = self.variance - self.evaluation + evaluation
        return Noise(
            sd=math.sqrt(max(variance, _NOTHING**2)),
            df=self.df,
            evaluation_sd=math.sqrt(evaluation) if evaluation is not None else None,
            episodes=episodes,
            correlation=self.correlation,
            pairs=self.pairs,
            basis=basis,
            collapsed=self.collapsed,
            runs=self.runs + self.alone + self.collapsed,
            drop=self.drop,
        )


def figures(observations: Iterable[Observation]) -> Figures | None:
    """Return the figures of observations of one metric under one key; None when no group has two of them."""
    known = sorted(observations, key=lambda entry: (entry.study, entry.group, entry.seed, entry.run))
    entries = [entry for entry in known if not entry.lost]
    groups = [group for group in _by(entries, lambda entry: (entry.group, entry.episodes)).values() if len(group) > 1]
    if not groups:
        return None
    per_episode = _evaluation(entries)
    episodes = _usual(groups)
    used = [group for group in groups if per_episode is not None or group[0].episodes == episodes]
    df = sum(len(group) - 1 for group in used)
    variance = max(0.0, sum(_squares(group, episodes, per_episode) for group in used) / df)
    correlation, pairs = _correlation(used)
    return Figures(
        variance=variance,
        df=df,
        episodes=episodes,
        evaluation=None if per_episode is None else min(variance, per_episode / episodes),
        correlation=correlation,
        pairs=pairs,
        runs=sum(map(len, used)),
        groups=len(used),
        studies=len({entry.study for group in used for entry in group}),
        steps=tuple(sorted({entry.steps for group in used for entry in group})),
        collapsed=len(known) - len(entries),
        alone=len(entries) - sum(map(len, used)),
        drop=_drop(known),
    )


def _drop(known: Iterable[Observation]) -> float | None:
    """Return what collapsed runs lack of the mean of their group's others, on average; None where none has any."""
    lacking = []
    for group in _by(known, lambda entry: (entry.group, entry.episodes)).values():
        kept = [entry.value for entry in group if not entry.lost]
        lacking += [fmean(kept) - entry.value for entry in group if entry.lost] if kept else []
    return fmean(lacking) if lacking and fmean(lacking) > 0 else None


def _by(entries: Iterable[Observation], key: Callable[[Observation], _K]) -> dict[_K, list[Observation]]:
    found: defaultdict[_K, list[Observation]] = defaultdict(list)
    for entry in entries:
        found[key(entry)].append(entry)
    return dict(found)


def _usual(groups: Sequence[Sequence[Observation]]) -> int:
    """Return the number of episodes behind most degrees of freedom; of two, the smaller."""
    df = Counter[int]()
    for group in groups:
        df[group[0].episodes] += len(group) - 1
    return min(df, key=lambda episodes: (-df[episodes], episodes))


def _squares(group: Sequence[Observation], episodes: int, per_episode: float | None) -> float:
    """Return the group's sum of squares, as it would be at `episodes` episodes."""
    shift = 0.0 if per_episode is None else per_episode * (1 / episodes - 1 / group[0].episodes)
    return _around_mean([entry.value for entry in group]) + shift * (len(group) - 1)


def _evaluation(entries: Iterable[Observation]) -> float | None:
    """Return the variance of one policy's evaluations, times their episodes; None where too few are known.

    Only a share is known to be about as noisy untrained as trained: rewards and tokens may be far noisier.
    """
    shares = (entry for entry in entries if entry.initial is not None and entry.is_share)
    again = _by(shares, lambda entry: (entry.decoding, entry.episodes))
    squares, df = 0.0, 0
    for (_, episodes), group in again.items():
        squares += episodes * _around_mean([entry.initial for entry in group if entry.initial is not None])
        df += len(group) - 1
    return squares / df if df >= LEAST_DF else None


def _correlation(groups: Sequence[Sequence[Observation]]) -> tuple[float | None, int]:
    """Return the correlation of residuals of two groups' runs with one seed, and the number of pairs."""
    products, left, right, pairs = 0.0, 0.0, 0.0, 0
    for together in _by((entry for group in groups for entry in group), lambda entry: entry.pairing).values():
        values = [
            {entry.seed: entry.value for entry in group} for group in _by(together, lambda entry: entry.group).values()
        ]
        for first, second in combinations(values, 2):
            seeds = sorted(first.keys() & second.keys())
            if len(seeds) > 1:
                a, b = _residuals([first[seed] for seed in seeds]), _residuals([second[seed] for seed in seeds])
                products += sum(x * y for x, y in zip(a, b, strict=True))
                left, right, pairs = left + sum(x * x for x in a), right + sum(y * y for y in b), pairs + len(seeds)
    if pairs < LEAST_PAIRS or left <= _NOTHING**2 or right <= _NOTHING**2:
        return None, 0
    return max(-1.0, min(1.0, products / math.sqrt(left * right))), pairs


def _residuals(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    return [value - mean for value in values]


def _around_mean(values: Sequence[float]) -> float:
    return sum(residual**2 for residual in _residuals(values))
