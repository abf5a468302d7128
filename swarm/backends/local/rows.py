"""From a batch of episodes to padded micro-batches of the tokens to train.

Promises: every sampled token of every episode that weighs something appears once, with its episode's advantage and
weight; nothing is dropped, whatever the sizes; a row is cut after its last sampled token, for nothing later is trained.
Knows nothing of models or losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from swarm.backends.local.grpo import Weighting, group_advantages, token_weights
from swarm.backends.protocols import BackendError, Batch, TrainEpisode, TrainRow


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One row to train: `ids` (T,) are fed to the model, which at `places` (K,) predicts the sampled `targets` (K,).

    `old` (K,) are the engine's log-probs of the targets; `advantage` and `weight` hold for each of them.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    old: Tensor
    advantage: float
    weight: float


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Rows padded right: ids (B, T); the M sampled tokens' `places` in ids flattened, and what goes with each (M,)."""

    ids: Tensor
    places: Tensor
    targets: Tensor
    old: Tensor
    advantages: Tensor
    weights: Tensor


def weighty(batch: Batch) -> Batch:
    """Return the batch without its episodes of weight 0: they are no members of their groups and train nothing."""
    return replace(batch, episodes=tuple(episode for episode in batch.episodes if episode.weight > 0))


def advantages(batch: Batch, *, normalize: bool) -> list[float]:
    """Return the advantage of each episode of a batch, in its order; members of a group are compared as equals."""
    rewards = [episode.reward for episode in batch.episodes]
    return group_advantages(rewards, [episode.group for episode in batch.episodes], normalize=normalize)


def train_rows(
    episodes: Sequence[TrainEpisode], advantages: Sequence[float], weighting: Weighting = "episode"
) -> list[Row]:
    """Return the rows of one minibatch, weighted over exactly these episodes; rows without sampled tokens vanish."""
    counts = [sum(sum(row.sampled) for row in episode.rows) for episode in episodes]
    weights = token_weights(counts, [episode.weight for episode in episodes], weighting)
    return [
        _row(episode, row, advantage, weight)
        for episode, advantage, weight in zip(episodes, advantages, weights, strict=True)
        for row in episode.rows
        if any(row.sampled)
    ]


def _row(episode: TrainEpisode, row: TrainRow, advantage: float, weight: float) -> Row:
    ids, sampled = torch.tensor(row.ids), torch.tensor(row.sampled)
    if len({len(row.ids), len(row.sampled), len(row.logprobs)}) != 1 or sampled[0]:
        raise BackendError(
            f"episode {episode.episode_id}: expected a row whose ids, sampled and logprobs are equally long and "
            f"whose first id is given, found lengths {len(row.ids)}, {len(row.sampled)}, {len(row.logprobs)}"
        )
    found = sampled.nonzero()[:, 0]
    return Row(
        ids=ids[: int(found[-1])],
        places=found - 1,
        targets=ids[found],
        old=torch.tensor(row.logprobs, dtype=torch.float32)[found],
        advantage=advantage,
        weight=weight,
    )


def micro_batches(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """Split rows, longest first, so that no micro-batch holds more than `tokens` padded ids (but always one row)."""
    taken: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
        if taken and (len(taken) + 1) * len(taken[0].ids) > tokens:
            yield taken
            taken = []
        taken.append(row)
    if taken:
        yield taken


def collate(rows: Sequence[Row], device: torch.device) -> MicroBatch:
    """Pad rows right with id 0; causal attention keeps the padding from every real token."""
    ids = torch.nn.utils.rnn.pad_sequence([row.ids for row in rows], batch_first=True)
    counts = torch.tensor([len(row.places) for row in rows])
    starts = torch.arange(len(rows)) * ids.shape[1]
    return MicroBatch(
        ids=ids.to(device),
        places=(torch.cat([row.places for row in rows]) + starts.repeat_interleave(counts)).to(device),
        targets=torch.cat([row.targets for row in rows]).to(device),
        old=torch.cat([row.old for row in rows]).to(device),
        advantages=torch.tensor([row.advantage for row in rows]).repeat_interleave(counts).to(device),
        weights=torch.tensor([row.weight for row in rows]).repeat_interleave(counts).to(device),
    )
