"""The response surface: what all scores so far say together about every point, so that one lucky run does not win.

A Gaussian process over ladder positions: a smooth main effect of each knob, plus pairwise products of them (the ANOVA
kernels of Durrande, Ginsbourger & Roustant 2012). How much each knob matters, how smooth it is, how strong pairs are,
how noisy runs are and how far rungs agree are averaged over rather than fitted: settings are drawn once from a prior
and weighted by their evidence, the scale integrated out (Rasmussen & Williams 2006, eq. 2.30; a normal-inverse-gamma
scale gives the Student-t form). So few scores give a flat surface and not a bold one.

Scores enter as normal scores: each is replaced by the quantile of its rank among those of its rung (the output warping
of Salinas, Shen & Perrone 2020). So a cliff, behind which trainings collapse, does not bend the surface on this side of
it, and no assumption is made on the metric's scale.

Does not know which knob should matter, and takes the noise of normal scores as equal everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

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
    """The ladders of a space: the length of each, and whether its order means anything."""

    lengths: tuple[int, ...]
    ordered: tuple[bool, ...]

    def places(self, points: Sequence[tuple[int, ...]]) -> Floats:
        """Return points as coordinates between 0 and 1."""
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
class Belief:
    """What is believed of some points, in normal scores: mean and standard deviation, the noise of a run left out."""

    mean: Floats
    sd: Floats

    def expected_improvement(self, best: float) -> Floats:
        """Return how far above `best` each point is expected to be, below counting as nothing (Jones et al. 1998)."""
        import numpy as np
        from scipy.special import ndtr

        gain = self.mean - best
        z = gain / self.sd
        return np.asarray(gain * ndtr(z) + self.sd * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))


@dataclass(frozen=True)
class Settings:
    """Draws from the prior of what the surface does not know about itself, one an entry."""

    weights: Floats
    """How much each knob matters."""
    pairs: Floats
    """How much products of two knobs matter beside them."""
    length: NDArray[np.int64]
    noise: Floats
    agreement: Floats
    """Correlation of the surfaces of two rungs that follow one another."""

    def signal(self, kernels: Floats, apart: NDArray[np.int64]) -> Floats:
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

    def only(self, chosen: NDArray[np.int64]) -> Settings:
        """Return some of the settings."""
        return Settings(
            self.weights[chosen], self.pairs[chosen], self.length[chosen], self.noise[chosen], self.agreement[chosen]
        )


@cache
def settings(knobs: int) -> Settings:
    """Return the draws for a number of knobs: always the same ones."""
    import numpy as np

    random = np.random.default_rng(knobs)
    return Settings(
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

        self._ladders = ladders
        self._places, self._rungs = ladders.places(points), np.asarray(rungs, dtype=np.int64)
        self._scores = np.asarray(scores, dtype=float)
        self._normal = _normal_scores(self._scores, self._rungs)
        self._spread = (float(self._normal.std()) or 1.0) if len(self._normal) else 1.0
        self._y = self._normal / self._spread
        self._fit()

    def _fit(self) -> None:
        import numpy as np

        drawn = settings(len(self._ladders.lengths))
        apart = self._rungs[:, None] - self._rungs
        whole = drawn.signal(self._ladders.kernels(self._places, self._places), np.abs(apart))
        whole += UNKNOWN_LEVEL * (apart == 0) + drawn.noise[:, None, None] * np.eye(len(self._y))
        fits = np.linalg.solve(whole, np.broadcast_to(self._y[:, None], (SETTINGS, len(self._y), 1)))[..., 0]
        scale = RATE + fits @ self._y / 2
        freedom = SHAPE + len(self._y) / 2
        evidence = -np.linalg.slogdet(whole)[1] / 2 - freedom * np.log(scale)
        best = np.argsort(-evidence, kind="stable")[:HEAVIEST]
        self._settings, self._fits, self._scale = drawn.only(best), fits[best], scale[best] / freedom
        self._inverse = np.linalg.inv(whole[best])
        weights = np.exp(evidence[best] - evidence[best[0]])
        self._weights = weights / weights.sum()

    def belief(self, points: Sequence[tuple[int, ...]], rung: int) -> Belief:
        """Return what is believed of points at a rung."""
        import numpy as np

        places = self._ladders.places(points)
        apart = np.broadcast_to(np.abs(rung - self._rungs), (len(points), len(self._rungs)))
        cross = self._settings.signal(self._ladders.kernels(places, self._places), apart) + UNKNOWN_LEVEL * (apart == 0)
        means = np.einsum("spn,sn->sp", cross, self._fits)
        known = np.einsum("spn,spn->sp", cross @ self._inverse, cross)
        variances = np.maximum(self._itself()[:, None] - known, 1e-9) * self._scale[:, None]
        mean = self._weights @ means
        variance = self._weights @ (variances + (means - mean) ** 2)
        return Belief(self._spread * mean, self._spread * np.sqrt(variance))

    def as_scores(self, normal: Floats, rung: int) -> Floats:
        """Return normal scores of a rung on the metric's own scale, in the same order.

        Between the rung's scores they are interpolated, beyond them they go on with the scores' mean slope.
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

    def _itself(self) -> Any:
        """Return the prior variance of a point under each setting."""
        weights = self._settings.weights
        total = weights.sum(axis=1)
        products = self._settings.pairs * (total**2 - (weights**2).sum(axis=1)) / 2
        return total + products + UNKNOWN_LEVEL


def _normal_scores(scores: Floats, rungs: NDArray[np.int64]) -> Floats:
    """Return the normal quantile of each score's rank within its rung (Blom 1958); equal scores share theirs."""
    import numpy as np
    from scipy.special import ndtri
    from scipy.stats import rankdata

    normal = np.zeros(len(scores))
    for rung in np.unique(rungs):
        of = rungs == rung
        normal[of] = ndtri((rankdata(scores[of]) - 0.375) / (of.sum() + 0.25))
    return normal
