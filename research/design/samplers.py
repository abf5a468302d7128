"""The space of a screen, and who is tried next, by a response surface.

A point holds for each knob a position on its ladder; spaces too large to list are sampled. A choice is a stateless
function of the space, the free points in an order by chance and what is known.

The response surface is a Gaussian process over ladder positions: a smooth main effect of each knob plus pairwise
products (ANOVA kernels, Durrande, Ginsbourger & Roustant 2012). Its settings are averaged, not fitted: drawn from a
prior and weighted by evidence, the scale integrated out (Rasmussen & Williams 2006, eq. 2.30; Student-t), so few scores
give a flat surface. Scores enter as normal scores of their rank in their rung (Salinas, Shen & Perrone 2020), so that a
cliff does not bend it and no scale is assumed. The noise of normal scores is taken as equal everywhere.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING, Self

from studies.records.base import JsonValue
from studies.records.design import Arm
from studies.records.procedure import Knob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Point = tuple[int, ...]
"""A position on the ladder of each knob, in the order of the screen's knobs."""
Allowed = Callable[[Mapping[str, JsonValue]], bool]
"""Whether a combination of knob values is a job at all."""

MOST_LISTED = 2048
"""Points looked at in one ask; a larger space is sampled."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.=+-]{0,63}")


def allow_any(values: Mapping[str, JsonValue]) -> bool:
    return bool(values)


def make_generator(seed: int, index: int) -> np.random.Generator:
    """Return the source of chance of one ask: it follows from the screen's seed and how many were asked before."""
    import numpy as np

    return np.random.default_rng(int(hashlib.sha256(f"{seed}:{index}".encode()).hexdigest()[:16], 16))


@dataclass(frozen=True)
class Space:
    """The knobs of a screen, and what is no candidate among their combinations."""

    knobs: tuple[Knob, ...]
    control: Mapping[str, JsonValue]
    allowed: Allowed = allow_any

    @property
    def size(self) -> int:
        return math.prod(len(knob.values) for knob in self.knobs)

    def values(self, point: Point) -> dict[str, JsonValue]:
        return {knob.field: knob.values[at] for knob, at in zip(self.knobs, point, strict=True)}

    def arm(self, point: Point, index: int) -> Arm:
        """Return the candidate at a point, named by its values where that makes a name, else by its number from 0."""
        values = self.values(point)
        name = "+".join(f"{field}={str(value).lower()}" for field, value in values.items())
        return Arm(name=name if _NAME.fullmatch(name) else f"candidate-{index + 1}", overrides=values)

    def point(self, overrides: Mapping[str, JsonValue]) -> Point:
        """Return the point of an arm's overrides; raise ValueError where a value is on no ladder."""
        return tuple(knob.values.index(overrides[knob.field]) for knob in self.knobs)

    @cached_property
    def control_point(self) -> Point | None:
        """Return the control's point; None where one of its values is on no ladder."""
        inside = all(knob.field in self.control and self.control[knob.field] in knob.values for knob in self.knobs)
        return self.point(self.control) if inside else None

    def shuffle_free_points(self, random: np.random.Generator, without: Iterable[Point]) -> list[Point]:
        """Return the points to choose among, in an order by chance: all, or a sample of a large space."""
        taken, sizes = set(without), [len(knob.values) for knob in self.knobs]
        drawn: Iterable[Point] = product(*map(range, sizes))
        if self.size > MOST_LISTED:
            rows = random.integers(0, sizes, size=(MOST_LISTED, len(sizes))).tolist()
            drawn = dict.fromkeys(map(tuple, rows))
        taken |= {self.control_point} if self.control_point else set()
        free = [point for point in drawn if point not in taken and self.allowed(self.values(point))]
        return [free[at] for at in random.permutation(len(free))]


SETTINGS = 160
"""Settings of the surface that are weighed by their evidence."""
HEAVIEST = 20
"""Of these, those that predictions are averaged over."""
LENGTHS = (0.35, 0.7, 1.4)
"""Smoothness along a ladder, as a share of its length."""
UNKNOWN_LEVEL = 10.0
"""Prior variance of the mean score of each rung, the scores' own being 1: as good as unknown."""
SHAPE, RATE = 1.0, 0.5
"""Of the inverse gamma prior of the scale: worth two scores."""


@dataclass(frozen=True)
class Ladders:
    """The ladders of a space: the length of each, and whether its order means anything, as that of words does not."""

    lengths: tuple[int, ...]
    ordered: tuple[bool, ...]

    @classmethod
    def of(cls, knobs: Sequence[Knob]) -> Self:
        ordered = (not any(isinstance(value, str) for value in knob.values) for knob in knobs)
        return cls(tuple(len(knob.values) for knob in knobs), tuple(ordered))

    def to_coordinates(self, points: Sequence[tuple[int, ...]]) -> Floats:
        import numpy as np

        rows = np.asarray(points, dtype=np.float64).reshape(len(points), len(self.lengths))
        places: Floats = rows / (np.array(self.lengths) - 1)
        return places

    def kernels(self, left: Floats, right: Floats) -> Floats:
        """Return the likeness of places, for each length of `LENGTHS` and each knob: words are alike or not."""
        import numpy as np

        apart = np.abs(left.T[:, :, None] - right.T[:, None, :])
        apart = np.where(np.array(self.ordered)[:, None, None], apart, np.where(apart > 0, 1.0, 0.0))
        kernels: Floats = np.exp(-0.5 * (apart[None] / np.array(LENGTHS)[:, None, None, None]) ** 2)
        return kernels


@dataclass(frozen=True)
class Posterior:
    """What is believed of some points, in normal scores: mean and standard deviation, the noise of a run left out."""

    mean: Floats
    sd: Floats


@dataclass(frozen=True)
class Hyperparameters:
    """Draws from the prior of what the surface does not know about itself, one an entry."""

    weights: Floats
    """How much each knob matters."""
    pairs: Floats
    """How much products of two knobs matter beside them."""
    length: NDArray[np.int64]
    noise: Floats
    agreement: Floats
    """Correlation of the surfaces of two rungs that follow one another."""

    def covariance(self, kernels: Floats, apart: NDArray[np.int64]) -> Floats:
        """Return the covariance of the surface between places, rungs `apart`, under each setting."""
        import numpy as np

        lengths, knobs, rows, columns = kernels.shape
        by_length = kernels.reshape(lengths, knobs, rows * columns)
        main, squares = np.empty((2, len(self.noise), rows * columns))
        for at in range(lengths):
            of = self.length == at
            main[of] = self.weights[of] @ by_length[at]
            squares[of] = self.weights[of] ** 2 @ by_length[at] ** 2
        products = self.pairs[:, None] * (main**2 - squares) / 2
        signal: Floats = (main + products).reshape(len(self.noise), rows, columns) * self.agreement[
            :, None, None
        ] ** apart
        return signal

    def select(self, chosen: NDArray[np.int64]) -> Hyperparameters:
        return Hyperparameters(
            self.weights[chosen], self.pairs[chosen], self.length[chosen], self.noise[chosen], self.agreement[chosen]
        )


@cache
def sample_hyperparameters(knobs: int) -> Hyperparameters:
    import numpy as np

    random = np.random.default_rng(knobs)
    return Hyperparameters(
        weights=10 ** random.uniform(-2.5, 0.0, (SETTINGS, knobs)),
        pairs=10 ** random.uniform(-1.5, 1.0, SETTINGS),
        length=random.integers(0, len(LENGTHS), SETTINGS),
        noise=10 ** random.uniform(-2.5, 0.5, SETTINGS),
        agreement=random.uniform(0.3, 1.0, SETTINGS),
    )


class Surface:
    """What scores (higher is better) at points and rungs say about all points; without scores, nothing."""

    def __init__(
        self, ladders: Ladders, points: Sequence[tuple[int, ...]], rungs: Sequence[int], scores: Sequence[float]
    ) -> None:
        import numpy as np
        from scipy.special import ndtri
        from scipy.stats import rankdata

        self._ladders = ladders
        self._places, self._rungs = ladders.to_coordinates(points), np.asarray(rungs, dtype=np.int64)
        self._scores = np.asarray(scores, dtype=float)
        # The normal quantile of each score's rank within its rung (Blom 1958); equal scores share theirs.
        self._normal = np.zeros(len(self._scores))
        for rung in np.unique(self._rungs):
            of = self._rungs == rung
            self._normal[of] = ndtri((rankdata(self._scores[of]) - 0.375) / (of.sum() + 0.25))
        self._spread = (float(self._normal.std()) or 1.0) if len(self._normal) else 1.0
        self._y = self._normal / self._spread
        drawn = sample_hyperparameters(len(ladders.lengths))
        apart = self._rungs[:, None] - self._rungs
        whole = drawn.covariance(ladders.kernels(self._places, self._places), np.abs(apart))
        whole += UNKNOWN_LEVEL * (apart == 0) + drawn.noise[:, None, None] * np.eye(len(self._y))
        fits = np.linalg.solve(whole, np.broadcast_to(self._y[:, None], (SETTINGS, len(self._y), 1)))[..., 0]
        scale = RATE + fits @ self._y / 2
        freedom = SHAPE + len(self._y) / 2
        evidence = -np.linalg.slogdet(whole)[1] / 2 - freedom * np.log(scale)
        best = np.argsort(-evidence, kind="stable")[:HEAVIEST]
        self._settings, self._fits, self._scale = drawn.select(best), fits[best], scale[best] / freedom
        self._inverse = np.linalg.inv(whole[best])
        weights = np.exp(evidence[best] - evidence[best[0]])
        self._weights = weights / weights.sum()

    def predict(self, points: Sequence[tuple[int, ...]], rung: int) -> Posterior:
        import numpy as np

        places = self._ladders.to_coordinates(points)
        apart = np.broadcast_to(np.abs(rung - self._rungs), (len(points), len(self._rungs)))
        cross = self._settings.covariance(self._ladders.kernels(places, self._places), apart) + UNKNOWN_LEVEL * (
            apart == 0
        )
        means = np.einsum("spn,sn->sp", cross, self._fits)
        known = np.einsum("spn,spn->sp", cross @ self._inverse, cross)
        weights, total = self._settings.weights, self._settings.weights.sum(axis=1)
        prior = total + self._settings.pairs * (total**2 - (weights**2).sum(axis=1)) / 2 + UNKNOWN_LEVEL
        variances = np.maximum(prior[:, None] - known, 1e-9) * self._scale[:, None]
        mean = self._weights @ means
        variance = self._weights @ (variances + (means - mean) ** 2)
        return Posterior(self._spread * mean, self._spread * np.sqrt(variance))

    def to_scores(self, normal: Floats, rung: int) -> Floats:
        """Return normal scores of a rung on the metric's own scale: interpolated, and beyond its scores by their mean
        slope.
        """
        import numpy as np

        known, first = np.unique(self._normal[self._rungs == rung], return_index=True)
        scores = self._scores[self._rungs == rung][first]
        if len(known) < 2:
            return normal + (scores[0] - known[0] if len(known) else 0.0)
        slope = (scores[-1] - scores[0]) / (known[-1] - known[0])
        beyond = normal - np.clip(normal, known[0], known[-1])
        found: Floats = np.interp(normal, known, scores) + slope * beyond
        return found


@dataclass(frozen=True)
class SearchHistory:
    """What an ask may look at: candidates asked so far and their scores at the first rung, higher being better."""

    space: Space
    points: tuple[Point, ...]
    """All asked so far, in their order."""
    scores: tuple[float | None, ...]
    """Of each of them; None while it runs."""
    last: bool
    """Whether what is asked now is among the last, which shall be good rather than telling."""
    bound: float
    """`Screen.bound`."""

    @property
    def over(self) -> tuple[tuple[Point, float], ...]:
        pairs = zip(self.points, self.scores, strict=True)
        return tuple((point, score) for point, score in pairs if score is not None)


def choose_balanced(known: SearchHistory, free: Sequence[Point]) -> Point:
    """Return the free point whose values, alone and in pairs, were asked least: a balanced start, the control seen."""
    import numpy as np

    control = known.space.control_point
    seen = np.array([*known.points, *([control] if control else [])]).reshape(-1, len(known.space.knobs))
    alike = np.array(free)[:, None, :] == seen
    shared = alike.sum(axis=2)
    return free[int(np.argmin((shared + shared * (shared - 1) / 2).sum(axis=1)))]


def choose_by_surface(known: SearchHistory, free: Sequence[Point]) -> Point:
    """Return where the surface's upper bound is highest (GP-UCB of Srinivas, Krause, Kakade & Seeger 2010).

    Among the last asks by its mean. Running candidates count with what
    the surface expects of them (the "kriging believer" of Ginsbourger, Le Riche & Carraro 2010).
    """
    import numpy as np

    if not known.over:
        return choose_balanced(known, free)

    def fit(scores: Iterable[tuple[Point, float]]) -> Surface:
        points, values = zip(*scores, strict=True)
        return Surface(Ladders.of(known.space.knobs), points, [0] * len(points), values)

    surface = fit(known.over)
    running = [point for point, score in zip(known.points, known.scores, strict=True) if score is None]
    if running:
        expected = surface.to_scores(surface.predict(running, 0).mean, 0)
        believed = zip(running, expected.tolist(), strict=True)
        surface = fit((*known.over, *believed))
    belief = surface.predict(free, 0)
    if known.last:
        return free[int(np.argmax(belief.mean))]
    return free[int(np.argmax(belief.mean + known.bound * belief.sd))]
