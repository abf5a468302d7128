"""What one training step measured, by verl's names where verl has one: pure functions of finished groups.

critic/rewards/{mean,min,max,std}, critic/success/mean   over the batch's episodes
response_length/mean, num_turns/mean                    sampled tokens and calls of an episode
batch/episodes, batch/groups, batch/constant_groups     a constant group's rewards are all equal
merge/rows, merge/tokens, merge/unmerged_tokens, merge/ratio
drift/start, drift/clean, drift/fork                     calls by how their prompt was made
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from swarm.backends.protocols import Batch, TrainEpisode
from swarm.server.batch import Group
from swarm.server.episodes import Episode
from swarm.timelines import Drift, linear_rows, token_counts


def make_batch(step: int, groups: Sequence[Group]) -> Batch:
    """Return the groups' episodes as the learner takes them, in the groups' order."""
    return Batch(step, tuple(_train_episode(group, episode) for group in groups for episode in group.ended))


def batch_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics of a batch (module docstring)."""
    episodes = [episode for group in groups for episode in group.ended]
    return {**_outcomes(groups, episodes), **_sizes(episodes), **_merge(episodes), **_drift(episodes)}


def counter_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    """Return the rollout's counters since the start of training, as `lease/<name>`."""
    return {f"lease/{name}": float(count) for name, count in sorted(counts.items())}


def _train_episode(group: Group, episode: Episode) -> TrainEpisode:
    return TrainEpisode(episode.id, group.name, reward_of(episode), linear_rows(episode.tree.nodes))


def reward_of(episode: Episode) -> float:
    """Return the reward of an ended episode."""
    if episode.reward is None:
        raise RuntimeError(f"episode {episode.id} is in a batch without a reward")
    return episode.reward


def _outcomes(groups: Sequence[Group], episodes: Sequence[Episode]) -> dict[str, float]:
    rewards = [reward_of(episode) for episode in episodes]
    told = [float(episode.success) for episode in episodes if episode.success is not None]
    constant = sum(len({reward_of(episode) for episode in group.ended}) == 1 for group in groups)
    metrics = {
        "critic/rewards/mean": fmean(rewards),
        "critic/rewards/min": min(rewards),
        "critic/rewards/max": max(rewards),
        "critic/rewards/std": pstdev(rewards),
        "batch/episodes": float(len(episodes)),
        "batch/groups": float(len(groups)),
        "batch/constant_groups": float(constant),
    }
    return {**metrics, "critic/success/mean": fmean(told)} if told else metrics


def _sizes(episodes: Sequence[Episode]) -> dict[str, float]:
    sampled = [sum(len(node.sampled) for node in episode.tree.nodes) for episode in episodes]
    return {
        "response_length/mean": fmean(sampled),
        "num_turns/mean": fmean(len(episode.tree.nodes) for episode in episodes),
    }


def _merge(episodes: Sequence[Episode]) -> dict[str, float]:
    counts = [token_counts(episode.tree.nodes) for episode in episodes]
    merged, unmerged = (sum(column) for column in zip(*counts, strict=True))
    leaves = sum(
        len(episode.tree.nodes) - len({node.parent.index for node in episode.tree.nodes if node.parent is not None})
        for episode in episodes
    )
    return {
        "merge/rows": float(leaves),
        "merge/tokens": float(merged),
        "merge/unmerged_tokens": float(unmerged),
        "merge/ratio": unmerged / merged,
    }


def _drift(episodes: Sequence[Episode]) -> dict[str, float]:
    return {f"drift/{kind}": float(sum(episode.tree.drift[kind] for episode in episodes)) for kind in Drift}
