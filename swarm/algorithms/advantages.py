"""Advantages: from rewards of episodes, or of single calls, to one number per token.

Pure functions of floats, by the formulas of docs/algorithms.md. Groups whose rewards are all equal, and groups of one,
have advantage exactly 0 wherever it is a comparison within the group; so has an agent in only one episode. Episodes of
weight 0 must be removed before; other weights change neither baselines nor deviations.

Where calls differ in reward, each agent is compared with itself in the group's other episodes; an episode counts once
however many calls it has, and with equal calls the result is exactly the episode's advantages.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from swarm.backends.protocols import TrainEpisode
from swarm.job import Job

_DEVIATION_EPSILON = 1e-6


def advantages(job: Job, rewards: Sequence[float], groups: Sequence[str], tokens: Sequence[int]) -> list[float]:
    match job.algorithm:
        case "grpo" | "gspo":
            return group_relative(rewards, groups, normalize=job.normalize_advantage)
        case "dr_grpo":
            return group_relative(rewards, groups, normalize=False)
        case "rloo":
            return leave_one_out(rewards, groups)
        case "reinforce_pp":
            return whiten(rewards, tokens)
        case "reinforce_pp_baseline":
            return whiten(group_relative(rewards, groups, normalize=False), tokens)


def group_relative(rewards: Sequence[float], groups: Sequence[str], *, normalize: bool) -> list[float]:
    """Return r_i less its group's mean, over the group's sample standard deviation plus 1e-6 if `normalize`. With:
    GRPO, arXiv 2402.03300, section 4.1.2. Without: Dr. GRPO, arXiv 2503.20783, figure 1."""

    def baseline(own: Sequence[float]) -> tuple[float, float]:
        mean = fmean(own)
        if not normalize:
            return mean, 1.0
        # `statistics.stdev` works in exact fractions, at fifty times the cost
        variance = math.fsum((reward - mean) ** 2 for reward in own) / (len(own) - 1)
        return mean, math.sqrt(variance) + _DEVIATION_EPSILON

    return _subtract_baseline(rewards, groups, baseline)


def leave_one_out(rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
    """Return r_i less the mean of its group's others (G / (G - 1) of r_i less the mean): RLOO, arXiv 2402.14740."""
    return _subtract_baseline(rewards, groups, lambda own: (fmean(own), (len(own) - 1) / len(own)))


def _subtract_baseline(
    rewards: Sequence[float], groups: Sequence[str], baseline: Callable[[Sequence[float]], tuple[float, float]]
) -> list[float]:
    members: defaultdict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    baselines = {group: (own[0], 1.0) if min(own) == max(own) else baseline(own) for group, own in members.items()}
    return [(reward - baselines[group][0]) / baselines[group][1] for reward, group in zip(rewards, groups, strict=True)]


def whiten(values: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Return values less their mean over their standard deviation, both over the *tokens* of the whole batch
    (REINFORCE++, arXiv 2501.03262); the variance is the sample's, with 1e-8 added. All 0 where all are the same."""
    if len({value for value, count in zip(values, tokens, strict=True) if count}) <= 1:
        return [0.0] * len(values)
    total = sum(tokens)
    mean = math.fsum(value * count for value, count in zip(values, tokens, strict=True)) / total
    squares = math.fsum(count * (value - mean) ** 2 for value, count in zip(values, tokens, strict=True))
    deviation = math.sqrt(squares / (total - 1) + 1e-8)
    return [(value - mean) / deviation for value in values]


_WHOLE = -1
"""Stands for all calls of an episode whose calls are worth the same."""
_ByCall = dict[int, float]
"""Values by call."""


def call_advantages(
    job: Job, episodes: Sequence[TrainEpisode], tokens: Sequence[Mapping[int, int]]
) -> tuple[list[float], dict[int, Mapping[int, float]]]:
    """Return each episode's advantage, and by the numbers of those whose calls differ in it: that of each call; theirs
    is the mean over their tokens, or over calls where there are none. `tokens`: each episode's, by call."""
    groups = [episode.group for episode in episodes]
    rewards = [episode_reward(episode) for episode in episodes]
    plain = advantages(job, rewards, groups, [sum(counts.values()) for counts in tokens])
    mixed = {episode.group for episode in episodes if _has_mixed_rewards(episode)}
    if not mixed:
        return plain, {}
    values = _raw_values(job, episodes, rewards, mixed)
    if job.algorithm in ("reinforce_pp", "reinforce_pp_baseline"):
        places = [(number, call) for number, own in enumerate(values) for call in own]
        counts = [_tokens(tokens[number], call) for number, call in places]
        flat = whiten([values[number][call] for number, call in places], counts)
        for (number, call), value in zip(places, flat, strict=True):
            values[number][call] = value
    else:
        compared = zip(values, groups, plain, strict=True)
        values = [value if group in mixed else {_WHOLE: own} for value, group, own in compared]
    whole = []
    for own, by_call in zip(values, tokens, strict=True):
        total = sum(_tokens(by_call, call) for call in own)
        if _WHOLE in own or not total:
            whole.append(fmean(own.values()))
        else:
            whole.append(math.fsum(value * _tokens(by_call, call) for call, value in own.items()) / total)
    return whole, {number: own for number, own in enumerate(values) if _WHOLE not in own}


def episode_reward(episode: TrainEpisode) -> float:
    own = {each.reward for each in episode.call_rewards}
    return own.pop() if len(own) == 1 else fmean(e.reward for e in episode.call_rewards) if own else episode.reward


def _has_mixed_rewards(episode: TrainEpisode) -> bool:
    return len({each.reward for each in episode.call_rewards}) > 1


def _raw_values(job: Job, episodes: Sequence[TrainEpisode], rewards: Sequence[float], mixed: set[str]) -> list[_ByCall]:
    values = [
        {each.call: each.reward for each in episode.call_rewards} if _has_mixed_rewards(episode) else {_WHOLE: reward}
        for episode, reward in zip(episodes, rewards, strict=True)
    ]
    if job.algorithm == "reinforce_pp":
        return values
    for group in sorted({episode.group for episode in episodes}):
        members = [number for number, episode in enumerate(episodes) if episode.group == group]
        if group in mixed:
            _compare(job, [episodes[number] for number in members], [values[number] for number in members])
        else:
            baseline = fmean(rewards[number] for number in members)
            for number in members:
                values[number] = {_WHOLE: rewards[number] - baseline}
    return values


def _compare(job: Job, episodes: Sequence[TrainEpisode], values: Sequence[_ByCall]) -> None:
    agents: defaultdict[str, list[tuple[_ByCall, list[tuple[int, float]]]]] = defaultdict(list)
    for episode, own in zip(episodes, values, strict=True):
        by_agent: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for call_reward in episode.call_rewards:
            by_agent[call_reward.agent].append((call_reward.call, call_reward.reward))
        own.clear()
        for agent, calls in (by_agent or {"": [(_WHOLE, episode.reward)]}).items():
            agents[agent].append((own, calls))
    for members in agents.values():
        means = [fmean(reward for _, reward in calls) for _, calls in members]
        centre, alone = fmean(means), len(members) < 2
        equal = len({reward for _, calls in members for _, reward in calls}) == 1
        scale = 1.0
        if job.algorithm in ("grpo", "gspo") and job.normalize_advantage and not alone:
            spread = math.fsum(fmean((reward - centre) ** 2 for _, reward in calls) for _, calls in members)
            scale = math.sqrt(spread / (len(members) - 1)) + _DEVIATION_EPSILON
        for (own, calls), mean in zip(members, means, strict=True):
            others = centre
            if job.algorithm == "rloo" and not alone:
                others = (centre * len(members) - mean) / (len(members) - 1)
            own.update({call: 0.0 if alone or equal else (reward - others) / scale for call, reward in calls})


def _tokens(counts: Mapping[int, int], call: int) -> int:
    return sum(counts.values()) if call == _WHOLE else counts.get(call, 0)
