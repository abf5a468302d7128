"""Collapse: whether a training lost again what it had gained, seen from its own curve alone.

Promises. `training_curve` reads a training's two curves: the evaluations before and after it, and the share of training
episodes that were solved step by step. `collapse` compares a run with itself by the locked rule, blind to its arm and
to all other runs, so that leaving collapsed runs out of a mean cannot favour an arm by its level. A training that stays
where it began is not collapsed: it counts with its value. `rate` gives exact limits of how often an arm collapses.

Two looks at a run, each on one scale, and either one is enough:

- it ended below where it began, by more than so many standard errors of the two evaluations;
- its training success ended more than `lost` of its own gain below its peak, and by more than as many errors: of one
  that never gained, its peak is its beginning.

Does not know. A fall within the last steps that stays above the beginning: training episodes are played before a step's
update, and are over when it comes.

The error of an evaluation is the largest that a share can have, sqrt(1/4 / n). That of a mean over steps is the larger
one of this and of what the steps themselves vary, by von Neumann's successive differences (1941, Ann. Math. Stat. 12),
which no trend disturbs: groups of one task vary more than as many tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from studies.records.design_parts import CollapseRule
from studies.records.run_data import Conditions, TrainingCurve
from studies.records.verdict import CollapseRate
from studies.statistics.exact_rates import one_sided_limits

WINDOW_EPISODES: Final = 256
"""Training episodes behind each mean of a training curve, at the least."""
_LEAST_WINDOWS: Final = 3
"""A curve of fewer windows has no peak that is neither its beginning nor its end."""
LEAST_EPISODES: Final = _LEAST_WINDOWS * WINDOW_EPISODES
"""Training episodes from which on a curve can show a collapse."""
_LEVEL: Final = 0.95
_BREAKDOWNS: Final = frozenset({"kl_blow_up", "gradient_blow_up"})
"""Rules of the watchdog that end a training because it breaks down."""


def steps_to_tell(episodes: float) -> int:
    """Return the training steps from which on a curve of so many episodes a step can show a collapse."""
    return _LEAST_WINDOWS * math.ceil(WINDOW_EPISODES / episodes)


def training_curve(history: Sequence[Mapping[str, Any]], start: float, end: float, plays: int) -> TrainingCurve:
    """Return the curve of a training from its snapshot's rows and its two evaluations of `plays` episodes each."""
    rows = [(row["metrics"].get("critic/success/mean"), row["metrics"].get("batch/episodes")) for row in history]
    if not rows or any(share is None or not count for share, count in rows):
        return TrainingCurve(start=start, end=end, plays=plays)
    shares = [float(share) for share, _ in rows]
    episodes = fmean(float(count) for _, count in rows)
    steps = math.ceil(WINDOW_EPISODES / episodes)
    if len(shares) < steps_to_tell(episodes):
        return TrainingCurve(start=start, end=end, plays=plays)
    means = [fmean(shares[at : at + steps]) for at in range(len(shares) - steps + 1)]
    error = math.sqrt(max(0.25 / episodes, _successive(shares)) / steps)
    return TrainingCurve(
        start=start, end=end, plays=plays, first=means[0], peak=max(means), last=means[-1], error=error
    )


def collapse(conditions: Conditions, rule: CollapseRule) -> str | None:
    """Return how a run that was measured collapsed, in a clause; None for one that did not, or that nobody can say."""
    if conditions.stopped_by in _BREAKDOWNS:
        return f"it was stopped as it broke down ({conditions.stopped_by})"
    found = conditions.course
    if found is None:
        return None
    if found.start - found.end > rule.errors * math.sqrt(0.5 / found.plays):
        return f"it ended at {found.end:.3f}, below its beginning of {found.start:.3f}"
    if found.first is None or found.peak is None or found.last is None or found.error is None:
        return None
    lost, gained = found.peak - found.last, found.peak - found.first
    if lost > rule.lost * gained and lost > rule.errors * math.sqrt(2) * found.error:
        begun = "where it began" if gained == 0 else f"having begun at {found.first:.3f}"
        return f"its training success fell from {found.peak:.3f} to {found.last:.3f}, {begun}"
    return None


def rate(arm: str, count: int, of: int) -> CollapseRate:
    """Return an arm's rate of collapse with its exact limits; without runs nothing is ruled out."""
    low, high = one_sided_limits(count, of, (1 + _LEVEL) / 2)
    return CollapseRate(arm=arm, count=count, of=of, low=low, high=high, upper=one_sided_limits(count, of, _LEVEL)[1])


def _successive(values: Sequence[float]) -> float:
    """Return the variance of one step's value around its trend."""
    return fmean((b - a) ** 2 for a, b in pairwise(values)) / 2
