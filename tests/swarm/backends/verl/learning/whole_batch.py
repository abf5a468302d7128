"""The whole batch as verl has it, padded, and gradients of a loss that verl's function says of it in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swarm.backends.protocols import Batch

CLOSE = 1e-5
CUTS = [(1, 2048), (1, 32), (2, 40)]
"""Ranks, and tokens of a micro-batch: all in one, and cut."""


@dataclass(frozen=True)
class Padded:
    """A batch as verl has it, (E, R): a row for each episode, of the tokens sampled in it, row of ids by row of ids."""

    mask: Tensor
    present: Tensor
    rollout: Tensor
    rewards: Tensor
    groups: np.ndarray[Any, Any]


def padded_batch(policy: Any, batch: Batch) -> Padded:
    episodes = []
    for episode in batch.episodes:
        present, rollout = [], []
        for row in episode.rows:
            ids = torch.tensor([row.ids])
            every = policy.model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
            for place, flag in enumerate(row.sampled):
                if flag:
                    present.append(every[place - 1, row.ids[place]])
                    rollout.append(row.logprobs[place])
        episodes.append((torch.stack(present), torch.tensor(rollout)))
    present = torch.nn.utils.rnn.pad_sequence([own for own, _ in episodes], batch_first=True)
    rollout = torch.nn.utils.rnn.pad_sequence([own for _, own in episodes], batch_first=True)
    counts = torch.tensor([len(own) for own, _ in episodes])
    mask = (torch.arange(present.shape[1]) < counts[:, None]).long()
    rewards = torch.zeros(mask.shape)
    for number, episode in enumerate(batch.episodes):
        rewards[number, counts[number] - 1] = episode.reward
    groups = np.array([episode.group for episode in batch.episodes])
    return Padded(mask, present, rollout, rewards, groups)


def gradients(policy: Any, loss: Tensor) -> dict[str, Tensor]:
    parameters = dict(policy.model.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    assert set(found) == set(expected)
    assert max(value.abs().max().item() for value in expected.values()) > 1e-3
    return all(torch.allclose(found[name], value, rtol=1e-4, atol=CLOSE) for name, value in expected.items())
