"""The usual screen on a budget of whole runs: how many candidates, how long, and how many seeds confirm the best.

Its numbers were chosen on `simlab.families.LEARNED_ON` and count whole runs, so they hold for any job; a study's design
takes its screen's length, bound and spread from the same (`research.design.comparison`). Where much shorter runs are
known to tell (`telling`) they go first, and the best quarter of them is run whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from research.design.comparison import BOUND, SCREEN_LENGTH, count_initial
from studies.records.procedure import Knob, Rung, Screen

SCREEN_SHARE = 0.6
"""Share of a budget's runs that a screen takes; the rest confirms what it found."""
CONFIRMED = 2
"""Candidates that are confirmed."""
REDUCTION = 4
"""One in so many candidates goes on from a short rung that tells."""
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
    telling: int | None = None,
) -> Screen | None:
    """Return the screen that `runs_affordable` whole runs carry beside its confirmation; None where it carries none.

    `steps` is the length of a whole run, `seeds` those of each confirmed arm, `points` the number of candidate
    combinations, `telling` a number of steps after which runs are known to rank as at the end (None: unknown).
    """
    possible = math.prod(len(knob.values) for knob in knobs) - 1 if points is None else points
    reserved = (1 + confirmed) * (seeds or default_seeds(runs_affordable, confirmed))
    left = runs_affordable - reserved + 1e-9

    def survivors(candidates: int) -> int:
        return max(1, min(candidates, max(confirmed, math.ceil(candidates / REDUCTION))))

    if telling is None or telling >= steps:
        short = math.ceil(SCREEN_LENGTH * steps)
        candidates = min(possible, math.floor(left * steps / short))
        rungs: tuple[Rung, ...] = (Rung(steps=short, keep=confirmed),)
    else:
        fitting = (n for n in range(possible, 0, -1) if n * telling / steps + survivors(n) <= left)
        candidates = next(fitting, 0)
        rungs = (Rung(steps=telling, keep=survivors(candidates)), Rung(steps=steps, keep=confirmed))
    if candidates <= confirmed:
        return None
    return Screen(
        knobs=tuple(knobs), sampler="surface", bound=BOUND, candidates=candidates, initial=count_initial(candidates),
        rungs=rungs, seed=seed,
    )  # fmt: skip
