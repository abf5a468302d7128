"""Unmerged rows, linear rows and packed trees are the same training step: one loss, one gradient."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor, nn

from swarm.backends.local.learning.trees import PackedRows
from swarm.backends.protocols import TrainRow
from swarm.timelines import linear_rows, unmerged_rows
from tests.swarm.timelines.agents import FAKE, FAKES, Agent
from tests.swarm.timelines.checks import packed_rows, parents

VOCABULARY, WIDTH, HEADS, LONGEST = 257, 32, 2, 4096


class TinyLM(nn.Module):
    """Two attention layers with learned positions; who sees whom is a dense mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.mixers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(5))

    def forward(self, ids_N: Tensor, places_N: Tensor, sees_NN: Tensor) -> Tensor:
        """Return the log-probs (N, V) of what follows each id."""
        x = self.words(ids_N) + self.places(places_N)
        for n, (mixer, feed) in enumerate(zip(self.mixers, self.feeds, strict=True)):
            q, k, v = mixer(self.norms[2 * n](x)).view(len(x), 3, HEADS, -1).permute(1, 2, 0, 3)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sees_NN)
            x = x + mixed.transpose(0, 1).reshape(len(x), WIDTH)
            x = x + feed(self.norms[2 * n + 1](x))
        logits: Tensor = self.norms[4](x) @ self.words.weight.T
        return logits.log_softmax(-1)


def token_losses(logp_MV: Tensor, targets_M: Tensor, old_M: Tensor, advantages_M: Tensor) -> Tensor:
    """Return clipped policy loss, KL to the sampling policy and entropy, of each trained token, summed."""
    chosen = logp_MV.gather(1, targets_M[:, None])[:, 0]
    log_ratio = chosen - old_M
    ratio = log_ratio.exp()
    policy = -torch.minimum(ratio * advantages_M, ratio.clamp(0.8, 1.2) * advantages_M)
    kl = (-log_ratio).exp() - 1 + log_ratio
    entropy = -(logp_MV.exp() * logp_MV).sum(-1)
    return (policy + 0.1 * kl - 0.01 * entropy).sum()


def old_logprobs(names: list[float]) -> Tensor:
    """Return a plausible log-prob for each token, by its name."""
    return torch.tensor([-5.0 - (name % 7) / 10 for name in names])


def rows_loss(model: TinyLM, episodes: list[tuple[TrainRow, ...]]) -> Tensor:
    total = torch.zeros(())
    for number, rows in enumerate(episodes):
        for row in rows:
            trained = torch.tensor(row.sampled).nonzero()[:, 0]
            if not len(trained):
                continue
            ids = torch.tensor(row.ids)
            sees = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
            logp = model(ids, torch.arange(len(ids)), sees)
            old = old_logprobs([row.logprobs[n] for n in trained.tolist()])
            advantages = torch.full((len(trained),), advantage(number))
            total = total + token_losses(logp[trained - 1], ids[trained], old, advantages)
    return total


def packed_loss(model: TinyLM, packed: PackedRows, position: Tensor | None = None) -> Tensor:
    sees = torch.zeros(packed.tokens, packed.tokens, dtype=torch.bool)
    for index, parent in enumerate(parents(packed)):
        if parent >= 0:
            sees[index] = sees[parent]
        sees[index, index] = True
    logp = model(packed.ids, packed.position if position is None else position, sees)
    advantages = torch.tensor([advantage(row.episode) for row in packed.rows for _ in row.targets])
    old = old_logprobs([name for row in packed.rows for name in row.rollout.tolist()])
    targets = torch.cat([row.targets for row in packed.rows])
    return token_losses(logp[packed.places], targets, old, advantages)


def advantage(episode: int) -> float:
    return (1.0, -0.7, 0.4)[episode]


def step(model: TinyLM, loss: Tensor, tokens: int) -> tuple[float, Tensor]:
    model.zero_grad()
    (loss / tokens).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return loss.item() / tokens, torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_do_not_depend_on_the_view(seed: int) -> None:
    torch.manual_seed(seed)
    draw, names = random.Random(seed), itertools.count(1)
    agents = [Agent(FAKE, FAKES[seed % len(FAKES)](), names) for _ in range(3)]
    for agent in agents:
        agent.play([draw.randrange(10**6) for _ in range(5)])
    episodes = [agent.desk.tree.nodes for agent in agents]
    tokens = sum(len(node.sampled) for nodes in episodes for node in nodes)
    packed = packed_rows(episodes)
    model = TinyLM()
    unmerged = step(model, rows_loss(model, [unmerged_rows(nodes) for nodes in episodes]), tokens)
    linear = step(model, rows_loss(model, [linear_rows(nodes) for nodes in episodes]), tokens)
    tree = step(model, packed_loss(model, packed), tokens)
    assert packed.tokens < sum(len(row.ids) for nodes in episodes for row in unmerged_rows(nodes))
    for view in (linear, tree):
        assert view[0] == pytest.approx(unmerged[0], rel=1e-5)
        assert torch.linalg.vector_norm(view[1] - unmerged[1]) <= 1e-5 * torch.linalg.vector_norm(unmerged[1])


def test_a_wrong_ancestor_would_be_seen() -> None:
    torch.manual_seed(0)
    agent = Agent(FAKE, FAKES[0](), itertools.count(1))
    agent.play([0, 7, 14, 21])
    packed = packed_rows([agent.desk.tree.nodes])
    model = TinyLM()
    right = packed_loss(model, packed).item()
    shifted = torch.cat([packed.position[:-1], packed.position[-1:] + 1]).flip(0)
    assert packed_loss(model, packed, shifted).item() != pytest.approx(right, rel=1e-5)
