"""The usual screen: how a budget is split between finding arms and confirming them, and how candidates are found.

The numbers were chosen by simulation on two families of worlds (`simlab.worlds.families.LEARNED_ON`) and are judged
on others; `benchmarks/simlab.py` and docs/calibration.md say how they fare. They are counts of whole runs, so that they
hold for any job. A screening run is half as long as a whole one: so about twice as many candidates are tried, and the
best go straight to fresh seeds, which are whole runs. Halves are no safe guess of the end, which differs from job to
job: what learns quickly and ends low is favoured. Where much shorter runs are known to tell (`telling`), they go first:
many candidates shortly, the best quarter of them whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from studies.records.design_parts import Knob, Rung, Screen

SCREEN_SHARE = 0.6
"""Share of a budget's runs that a screen takes; the rest confirms what it found."""
CONFIRMED = 2
"""Candidates that are confirmed."""
INITIAL_SHARE = 0.3
"""Share of the candidates that are spread over the space before the surface is asked."""
BOUND = 2.0
"""Standard deviations of the surface above its mean that candidates are chosen by (`Screen.bound`)."""
SCREEN_LENGTH = 0.5
"""Share of a whole run's steps that a screening run has."""
LEAST_INITIAL = 4
"""Of these at the least, or there is nothing to draw a surface through."""
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

    `steps` is the length of a whole run, `seeds` the seeds of each arm of the confirmation (default: `default_seeds`),
    `points` how many combinations are candidates (default: all of the knobs' but one). `telling` is a number of steps
    after which runs are known to rank as they do at the end; None where nobody measured it. A screen that can try all
    combinations does, and still ranks them by the surface.
    """
    possible = math.prod(len(knob.values) for knob in knobs) - 1 if points is None else points
    reserved = (1 + confirmed) * (seeds or default_seeds(runs_affordable, confirmed))
    left = runs_affordable - reserved + 1e-9
    if telling is None or telling >= steps:
        short = screening_steps(steps)
        candidates = min(possible, math.floor(left * steps / short))
        rungs: tuple[Rung, ...] = (Rung(steps=short, keep=confirmed),)
    else:
        candidates = _halved(possible, left, telling / steps, confirmed)
        rungs = (Rung(steps=telling, keep=_going_on(candidates, confirmed)), Rung(steps=steps, keep=confirmed))
    if candidates <= confirmed:
        return None
    return Screen(
        knobs=tuple(knobs), sampler="surface", bound=BOUND, candidates=candidates, initial=initial(candidates),
        rungs=rungs, seed=seed,
    )  # fmt: skip


def _halved(possible: int, left: float, share: float, confirmed: int) -> int:
    """Return how many candidates `left` whole runs carry, if each first runs a `share` of one."""
    fitting = (n for n in range(possible, 0, -1) if n * share + _going_on(n, confirmed) <= left)
    return next(fitting, 0)


def _going_on(candidates: int, confirmed: int) -> int:
    """Return how many candidates of a short rung run whole."""
    return max(1, min(candidates, max(confirmed, math.ceil(candidates / REDUCTION))))


def screening_steps(steps: int) -> int:
    """Return the steps of a screening run where whole runs have `steps`."""
    return math.ceil(SCREEN_LENGTH * steps)


def initial(candidates: int) -> int:
    """Return how many of the candidates are spread over the space before the surface is asked."""
    return min(candidates, max(LEAST_INITIAL, round(INITIAL_SHARE * candidates)))
