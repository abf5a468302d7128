"""From the rewards of a batch's episodes to their advantages: one number for all tokens of an episode.

r_i is episode i's reward, G its group's size, n_i its number of sampled tokens. Episodes of weight 0 belong to no group
and must be removed before (`rows.without_zero_weight`). Any other weight changes neither baselines nor deviations: all
episodes of a group count equally in them, for a weight says how much an episode is learned from, not how well its group
did.
Promises: pure functions of Python floats; a group whose rewards are all equal has advantage exactly 0 wherever an
advantage is a comparison within the group, and so has a group of one, which compares nothing.
Knows nothing of tensors, losses or models.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from swarm.job import Job

_DEVIATION_EPSILON = 1e-6
_VARIANCE_EPSILON = 1e-8


def advantages(job: Job, rewards: Sequence[float], groups: Sequence[str], tokens: Sequence[int]) -> list[float]:
    """Return each episode's advantage by the job's algorithm; `tokens` are their numbers of sampled tokens."""
    match job.algorithm:
        case "grpo" | "gspo":
            return group_relative(rewards, groups, normalize=job.normalize_advantage)
        case "dr_grpo":
            return group_relative(rewards, groups, normalize=False)
        case "rloo":
            return leave_one_out(rewards, groups)
        case "reinforce_pp":
            return whitened(rewards, tokens)
        case "reinforce_pp_baseline":
            return whitened(group_relative(rewards, groups, normalize=False), tokens)


def group_relative(rewards: Sequence[float], groups: Sequence[str], *, normalize: bool) -> list[float]:
    """Return r_i less its group's mean, over the group's sample standard deviation plus 1e-6 if `normalize`.

    With: GRPO, arXiv 2402.03300, section 4.1.2. Without: Dr. GRPO, arXiv 2503.20783, figure 1.
    """

    def relative(own: Sequence[float]) -> tuple[float, float]:
        return statistics.fmean(own), _deviation(own) + _DEVIATION_EPSILON if normalize else 1.0

    return _compared(rewards, groups, relative)


def _deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; `statistics.stdev` works in exact fractions, at fifty times the cost."""
    mean = statistics.fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def leave_one_out(rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
    """Return r_i less the mean of its group's others: RLOO, arXiv 2402.14740.

    That is G / (G - 1) times r_i less the mean of all.
    """
    return _compared(rewards, groups, lambda own: (statistics.fmean(own), (len(own) - 1) / len(own)))


def _compared(
    rewards: Sequence[float], groups: Sequence[str], baseline: Callable[[Sequence[float]], tuple[float, float]]
) -> list[float]:
    """Return (r_i - mean) / scale with each group's mean and scale; exactly 0 throughout a group of equal rewards."""
    baselines = {
        group: (own[0], 1.0) if min(own) == max(own) else baseline(own)
        for group, own in _members(rewards, groups).items()
    }
    return [(reward - baselines[group][0]) / baselines[group][1] for reward, group in zip(rewards, groups, strict=True)]


def whitened(values: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Return values less their mean over their standard deviation, both over the *tokens* of the whole batch.

    REINFORCE++, arXiv 2501.03262 (global advantage normalisation): an episode counts n_i times; the variance is the
    sample's, with 1e-8 added. All 0 where all tokens have the same value.
    """
    if len({value for value, count in zip(values, tokens, strict=True) if count}) <= 1:
        return [0.0] * len(values)
    total = sum(tokens)
    mean = math.fsum(value * count for value, count in zip(values, tokens, strict=True)) / total
    squares = math.fsum(count * (value - mean) ** 2 for value, count in zip(values, tokens, strict=True))
    deviation = math.sqrt(squares / (total - 1) + _VARIANCE_EPSILON)
    return [(value - mean) / deviation for value in values]


def constant_groups(rewards: Sequence[float], groups: Sequence[str]) -> int:
    """Return how many groups have equal rewards throughout: they compare nothing."""
    return sum(min(own) == max(own) for own in _members(rewards, groups).values())


def _members(rewards: Sequence[float], groups: Sequence[str]) -> dict[str, list[float]]:
    members: defaultdict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    return members
