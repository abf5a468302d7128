"""The space of a screen, and who is tried next, by a response surface.

A Gaussian process over ladder positions: a smooth main effect of each knob plus pairwise products (ANOVA kernels,
Durrande, Ginsbourger & Roustant 2012). Its settings are averaged, not fitted: drawn from a prior and weighted by
evidence, the scale integrated out (Rasmussen & Williams 2006, eq. 2.30; Student-t). Scores enter as normal scores of
their rank (Salinas, Shen & Perrone 2020), so that a cliff does not bend it and no scale is assumed.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

from studies.records.procedure import Screen, ScreenField

Floats = NDArray[np.float64]
Point = tuple[int, ...]
"""A position on the ladder of each knob, in the order of the screen's knobs."""
MOST_LISTED = 2048
"""Points looked at in one ask; a larger space is sampled."""
SETTINGS = 160
"""Settings of the surface that are weighed by their evidence."""
HEAVIEST = 20
"""Of these, those that predictions are averaged over."""
LENGTHS = (0.35, 0.7, 1.4)
"""Smoothness along a ladder, as a share of its length."""
UNKNOWN_LEVEL = 10.0
"""Prior variance of the mean score, the scores' own being 1: as good as unknown."""
SHAPE, RATE = 1.0, 0.5
"""Of the inverse gamma prior of the scale: worth two scores."""


def list_free(screen: Screen, excluded: Sequence[Point], is_job: Callable[[Point], bool], asked: int) -> list[Point]:
    """Return the points to choose among, all or a sample, in an order by the screen's seed and `asked`."""
    random = np.random.default_rng(int(hashlib.sha256(f"{screen.seed}:{asked}".encode()).hexdigest()[:16], 16))
    sizes = [len(knob.values) for knob in screen.knobs]
    drawn: Iterable[Point] = product(*map(range, sizes))
    if math.prod(sizes) > MOST_LISTED:
        drawn = dict.fromkeys(map(tuple, random.integers(0, sizes, size=(MOST_LISTED, len(sizes))).tolist()))
    taken = set(excluded)
    free = [point for point in drawn if point not in taken and is_job(point)]
    return [free[at] for at in random.permutation(len(free))]


def choose_balanced(seen: Sequence[Point], free: Sequence[Point]) -> Point:
    """Return the free point whose values, alone and in pairs, were seen least: a balanced start."""
    alike = np.array(free)[:, None, :] == np.array(seen).reshape(-1, len(free[0]))
    shared = alike.sum(axis=2)
    return free[int(np.argmin((shared + shared * (shared - 1) / 2).sum(axis=1)))]


def choose_by_surface(
    screen: Screen, scores: Mapping[Point, float | None], free: Sequence[Point], *, last: bool
) -> Point:
    """Return where the surface's upper bound is highest (GP-UCB of Srinivas, Krause, Kakade & Seeger 2010), for the
    `last` asks its mean. Of `scores` higher is better, None while a candidate runs: it counts with what is expected of
    it (the "kriging believer" of Ginsbourger, Le Riche & Carraro 2010)."""
    known = {point: score for point, score in scores.items() if score is not None}
    surface = Surface(screen.knobs, [*known], [*known.values()])
    if running := [point for point, score in scores.items() if score is None]:
        known |= dict(zip(running, surface.predict_scores(running), strict=True))
        surface = Surface(screen.knobs, [*known], [*known.values()])
    mean, sd = surface.predict(free)
    return free[int(np.argmax(mean if last else mean + (screen.bound or 0.0) * sd))]


class Hyperparameters(NamedTuple):
    """Draws from the prior of what the surface does not know about itself, one an entry."""

    weights: Floats
    """How much each knob matters."""
    pairs: Floats
    """How much products of two knobs matter beside them."""
    length: NDArray[np.int64]
    noise: Floats

    def covariance(self, kernels: Floats) -> Floats:
        """Return the covariance of scores without noise between places, under each setting."""
        lengths, knobs, rows, columns = kernels.shape
        by_length = kernels.reshape(lengths, knobs, rows * columns)
        main, squares = np.empty((2, len(self.noise), rows * columns))
        for at in range(lengths):
            of = self.length == at
            main[of] = self.weights[of] @ by_length[at]
            squares[of] = self.weights[of] ** 2 @ by_length[at] ** 2
        products = self.pairs[:, None] * (main**2 - squares) / 2
        signal: Floats = (main + products).reshape(len(self.noise), rows, columns) + UNKNOWN_LEVEL
        return signal


@cache
def sample_hyperparameters(knobs: int) -> Hyperparameters:
    random = np.random.default_rng(knobs)
    return Hyperparameters(
        weights=10 ** random.uniform(-2.5, 0.0, (SETTINGS, knobs)),
        pairs=10 ** random.uniform(-1.5, 1.0, SETTINGS),
        length=random.integers(0, len(LENGTHS), SETTINGS),
        noise=10 ** random.uniform(-2.5, 0.5, SETTINGS),
    )


class Surface:
    """What scores (higher is better) at points say about all points; without scores, nothing."""

    def __init__(self, knobs: Sequence[ScreenField], points: Sequence[Point], scores: Sequence[float]) -> None:
        self._steps = np.array([len(knob.values) - 1 for knob in knobs])
        self._words = np.array([any(isinstance(value, str) for value in knob.values) for knob in knobs])
        self._places, self._scores = self._to_places(points), np.asarray(scores, dtype=float)
        # The normal quantile of each score's rank (Blom 1958); equal scores share theirs.
        self._normal = ndtri((rankdata(self._scores) - 0.375) / (len(self._scores) + 0.25))
        self._spread = (float(self._normal.std()) or 1.0) if len(self._normal) else 1.0
        y = self._normal / self._spread
        drawn = sample_hyperparameters(len(knobs))
        whole = drawn.covariance(self._kernels(self._places)) + drawn.noise[:, None, None] * np.eye(len(y))
        fits = np.linalg.solve(whole, np.broadcast_to(y[:, None], (SETTINGS, len(y), 1)))[..., 0]
        scale = RATE + fits @ y / 2
        freedom = SHAPE + len(y) / 2
        evidence = -np.linalg.slogdet(whole)[1] / 2 - freedom * np.log(scale)
        best = np.argsort(-evidence, kind="stable")[:HEAVIEST]
        self._settings = Hyperparameters._make(draws[best] for draws in drawn)
        self._fits, self._scale, self._inverse = fits[best], scale[best] / freedom, np.linalg.inv(whole[best])
        weights = np.exp(evidence[best] - evidence[best[0]])
        self._weights = weights / weights.sum()

    def _to_places(self, points: Sequence[Point]) -> Floats:
        rows = np.asarray(points, dtype=np.float64).reshape(len(points), len(self._steps))
        places: Floats = rows / self._steps
        return places

    def _kernels(self, places: Floats) -> Floats:
        """Return the likeness of places to those with scores, for each length and each knob: words are alike or not."""
        apart = np.abs(places.T[:, :, None] - self._places.T[:, None, :])
        apart = np.where(self._words[:, None, None], np.where(apart > 0, 1.0, 0.0), apart)
        kernels: Floats = np.exp(-0.5 * (apart[None] / np.array(LENGTHS)[:, None, None, None]) ** 2)
        return kernels

    def predict(self, points: Sequence[Point]) -> tuple[Floats, Floats]:
        """Return what is believed of points, in normal scores: mean and standard deviation, without a run's noise."""
        cross = self._settings.covariance(self._kernels(self._to_places(points)))
        means = np.einsum("spn,sn->sp", cross, self._fits)
        known = np.einsum("spn,spn->sp", cross @ self._inverse, cross)
        weights, total = self._settings.weights, self._settings.weights.sum(axis=1)
        prior = total + self._settings.pairs * (total**2 - (weights**2).sum(axis=1)) / 2 + UNKNOWN_LEVEL
        variances = np.maximum(prior[:, None] - known, 1e-9) * self._scale[:, None]
        mean = self._weights @ means
        variance = self._weights @ (variances + (means - mean) ** 2)
        return self._spread * mean, self._spread * np.sqrt(variance)

    def predict_scores(self, points: Sequence[Point]) -> list[float]:
        """Return the means on the metric's own scale: interpolated, and beyond its scores by their mean slope."""
        normal, _ = self.predict(points)
        known, first = np.unique(self._normal, return_index=True)
        scores = self._scores[first]
        if len(known) < 2:
            shifted: list[float] = (normal + (scores[0] - known[0] if len(known) else 0.0)).tolist()
            return shifted
        slope = (scores[-1] - scores[0]) / (known[-1] - known[0])
        beyond = normal - np.clip(normal, known[0], known[-1])
        scaled: list[float] = (np.interp(normal, known, scores) + slope * beyond).tolist()
        return scaled
