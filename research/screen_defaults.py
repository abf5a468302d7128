"""The usual screen: how a budget is split between finding arms and confirming them, and how candidates are found.

The numbers were chosen by simulation on two families of worlds (`research.simlab.families.LEARNED_ON`) and are judged
on others; `benchmarks/simlab.py` and docs/calibration.md say how they fare. They are counts of whole runs, so that they
hold for any job. They know nothing of how far a short run tells the end of a long one, which differs from job to job:
so the usual screen has no short rung, and takes its savings from trying few candidates well chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from studies.procedure import Knob, Rung, Screen

SCREEN_SHARE = 0.6
"""Share of a budget's runs that a screen takes; the rest confirms what it found."""
CONFIRMED = 2
"""Candidates that are confirmed."""
INITIAL_SHARE = 0.3
"""Share of the candidates that are spread over the space before the surface is asked."""
LEAST_INITIAL = 4
"""Of these at the least, or there is nothing to draw a surface through."""
LEAST_SEEDS = 3
MOST_SEEDS = 12
"""Seeds an arm of a confirmation whose size no power calculation gives."""


def default_seeds(runs_affordable: float, confirmed: int = CONFIRMED) -> int:
    """Return the seeds of each arm where nothing is known of the noise: what the screen's share leaves."""
    left = (1 - SCREEN_SHARE) * runs_affordable / (1 + confirmed)
    return max(LEAST_SEEDS, min(MOST_SEEDS, math.floor(left + 1e-9)))


def default_screen(
    knobs: Sequence[Knob],
    runs_affordable: float,
    *,
    steps: int,
    seeds: int | None = None,
    confirmed: int = CONFIRMED,
    seed: int = 0,
    points: int | None = None,
) -> Screen | None:
    """Return the screen that `runs_affordable` whole runs carry beside its confirmation; None where it carries none.

    `steps` is the length of a whole run, `seeds` the seeds of each arm of the confirmation (default: `default_seeds`),
    `points` how many combinations are candidates (default: all of the knobs' but one). A screen that can try them all
    does, and still ranks them by the surface.
    """
    possible = math.prod(len(knob.values) for knob in knobs) - 1 if points is None else points
    reserved = (1 + confirmed) * (seeds or default_seeds(runs_affordable, confirmed))
    candidates = min(possible, math.floor(runs_affordable - reserved + 1e-9))
    if candidates <= confirmed:
        return None
    return Screen(
        knobs=tuple(knobs), sampler="surface", candidates=candidates, initial=initial(candidates),
        rungs=(Rung(steps=steps, keep=confirmed),), seed=seed,
    )  # fmt: skip


def initial(candidates: int) -> int:
    """Return how many of the candidates are spread over the space before the surface is asked."""
    return min(candidates, max(LEAST_INITIAL, round(INITIAL_SHARE * candidates)))
