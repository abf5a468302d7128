"""Who is tried next: every combination in turn, at random, by Optuna's TPE, or on the response surface.

A sampler is a function of the space, the free points in an order by chance, and what is known; it holds no state. TPE
is Optuna's own, built again at each ask and told all that is known (`optuna.trial.create_trial`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from research.screening.points import Point, Space, generator
from research.screening.surface import Ladders, Surface

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True)
class Known:
    """What an ask may look at: candidates asked so far and their scores at the first rung, higher being better."""

    space: Space
    seed: int
    points: tuple[Point, ...]
    """All asked so far, in their order."""
    scores: tuple[float | None, ...]
    """Of each of them; None while it runs."""
    last: bool
    """Whether what is asked now is among the last, which shall be good rather than telling."""
    bound: float | None = None
    """`Screen.bound`."""

    @property
    def index(self) -> int:
        """How many were asked before."""
        return len(self.points)

    @property
    def over(self) -> tuple[tuple[Point, float], ...]:
        """The points with a score."""
        pairs = zip(self.points, self.scores, strict=True)
        return tuple((point, score) for point, score in pairs if score is not None)


Sampler = Callable[[Known, Sequence[Point]], Point]
"""Chooses one of the free points."""


def spread_out(known: Known, free: Sequence[Point]) -> Point:
    """Return the free point whose values, alone and in pairs, were asked least: a balanced start, the control seen."""
    import numpy as np

    control = known.space.control_point
    seen = np.array([*known.points, *([control] if control else [])]).reshape(-1, len(known.space.knobs))
    alike = np.array(free)[:, None, :] == seen
    shared = alike.sum(axis=2)
    return free[int(np.argmin((shared + shared * (shared - 1) / 2).sum(axis=1)))]


def in_order(known: Known, free: Sequence[Point]) -> Point:
    """Return the first free point in the order of the ladders."""
    return min(free)


def by_chance(known: Known, free: Sequence[Point]) -> Point:
    """Return a free point at random: they come in an order by chance."""
    return free[0]


def by_tpe(known: Known, free: Sequence[Point]) -> Point:
    """Return what TPE proposes; where that was asked before, the free point nearest to it on the ladders."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # else each ask says that it made a study
    distributions = _distributions(known.space)
    seed = int(generator(known.seed, known.index).integers(2**32))
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(n_startup_trials=0, multivariate=True, seed=seed)
    )
    for point, score in known.over:
        params = dict(zip(distributions, point, strict=True))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))
    asked = study.ask(distributions).params
    wanted = tuple(asked[name] for name in distributions)
    return min(free, key=lambda point: sum(abs(a - b) for a, b in zip(point, wanted, strict=True)))


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        knob.field: IntDistribution(0, len(knob.values) - 1)
        if ordered
        else CategoricalDistribution(range(len(knob.values)))
        for knob, ordered in zip(space.knobs, ladders(space).ordered, strict=True)
    }


def by_surface(known: Known, free: Sequence[Point]) -> Point:
    """Return where the surface's upper bound is highest (GP-UCB of Srinivas, Krause, Kakade & Seeger 2010).

    In a screen that locks no bound, where it expects the largest improvement; among the last asks, where its mean is
    highest.

    Candidates that still run count with what the surface expects of them, so that two asks do not go to one place
    (the "kriging believer" of Ginsbourger, Le Riche & Carraro 2010).
    """
    import numpy as np

    if not known.over:
        return spread_out(known, free)
    surface = _surface(known, known.over)
    running = [point for point, score in zip(known.points, known.scores, strict=True) if score is None]
    if running:
        expected = surface.as_scores(surface.belief(running, 0).mean, 0)
        believed = zip(running, expected.tolist(), strict=True)
        surface = _surface(known, (*known.over, *believed))
    belief = surface.belief(free, 0)
    if known.last:
        return free[int(np.argmax(belief.mean))]
    if known.bound is not None:
        return free[int(np.argmax(belief.mean + known.bound * belief.sd))]
    best = float(surface.belief(known.points, 0).mean.max())
    return free[int(np.argmax(belief.expected_improvement(best)))]


def _surface(known: Known, scores: Sequence[tuple[Point, float]]) -> Surface:
    points, values = [point for point, _ in scores], [score for _, score in scores]
    return Surface(ladders(known.space), points, [0] * len(points), values)


def ladders(space: Space) -> Ladders:
    """Return the ladders of a space; ladders of numbers and switches have an order, words have none."""
    return Ladders(
        tuple(len(knob.values) for knob in space.knobs),
        tuple(not any(isinstance(value, str) for value in knob.values) for knob in space.knobs),
    )


SAMPLERS: Mapping[str, Sampler] = {
    "grid": in_order,
    "random": by_chance,
    "tpe": by_tpe,
    "surface": by_surface,
}
