"""When runs are looked at during training, by default, and what a threshold may be."""

from __future__ import annotations

from typing import Final

from studies.metrics.kinds.base import Asked, Refused
from studies.metrics.kinds.curve import LEAST_POINTS
from studies.records.design import Schedule

LOOKS: Final = 10
"""Parts that a training is cut into by its evaluations."""
SHARE: Final = 0.125
"""Size of one evaluation during training, of the one after it: ten cost as much as one before and one after.

Beside 512 episodes these are 64, with a standard error of 0.06 at a half: read off nine such, a time to a threshold has
one of 5 to 10 % of the horizon, and the area below it one of 0.01. `benchmarks/evaluation_cost.py` says what they cost.
"""
LEAST_EPISODES: Final = 32


def schedule_of(asked: Asked) -> Schedule:
    """Return the schedule that is asked for, or the usual one."""
    if asked.schedule is None:
        return Schedule(
            every=max(1, asked.horizon // LOOKS), episodes=max(LEAST_EPISODES, round(SHARE * asked.episodes))
        )
    if asked.schedule.every * (LEAST_POINTS - 1) > asked.horizon:
        raise Refused(
            f"expected at least {LEAST_POINTS - 2} evaluations between the first and the last step; found one every "
            f"{asked.schedule.every} of {asked.horizon} training episodes; evaluate more often"
        )
    return asked.schedule


def required_threshold(asked: Asked) -> float:
    """Return the threshold; Refused for none, and for one that is no share that can be reached and missed."""
    if asked.threshold is None:
        raise Refused("expected a threshold, such as 0.7 hidden success; found none; give one (--metric episodes:0.7)")
    if not 0 < float(f"{asked.threshold:g}") < 1:  # as names and keys say it
        raise Refused(
            f"expected a threshold between 0 and 1, a share of hidden tasks; found {asked.threshold:g}; give one inside"
        )
    return asked.threshold
