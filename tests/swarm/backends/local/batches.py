"""Training batches as the engine would have made them, and the plain loss they are compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Batch, TrainEpisode, TrainRow
from swarm.job import Job
from tests.swarm.backends.local.models import VOCABULARY, forced_logprobs


def make_row(policy: Policy, rng: random.Random, turns: int, temperature: float = 1.0, drift: float = 0.0) -> TrainRow:
    """One conversation as one row; `drift` moves its log-probs away from the policy's, as an older policy would."""
    ids: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    for _ in range(turns):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6))]
        answer = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 4))]
        ids += prompt
        found = forced_logprobs(policy, ids, answer, temperature)
        ids += answer
        sampled += [0] * len(prompt) + [1] * len(answer)
        logprobs += [0.0] * len(prompt) + [value + rng.uniform(-drift, drift) for value in found]
    versions = [policy.version if flag else -1 for flag in sampled]
    return TrainRow(tuple(ids), tuple(sampled), tuple(logprobs), tuple(versions))


def make_batch(policy: Policy, episodes: int = 8, seed: int = 0, temperature: float = 1.0, drift: float = 0.0) -> Batch:
    """Episodes of uneven length in groups of four, some with several rows."""
    rng = random.Random(seed)
    made = [
        TrainEpisode(
            f"e{i}",
            f"g{i // 4}",
            float(rng.randrange(3)),
            tuple(make_row(policy, rng, rng.randint(1, 3), temperature, drift) for _ in range(1 + i % 2)),
        )
        for i in range(episodes)
    ]
    return Batch(0, tuple(made))


def unmerge(row: TrainRow) -> tuple[TrainRow, ...]:
    """One row per call: its whole context and its own sampled span."""
    spans: list[tuple[int, int]] = []
    for t, flag in enumerate(row.sampled):
        if flag and t and row.sampled[t - 1]:
            spans[-1] = (spans[-1][0], t + 1)
        elif flag:
            spans.append((t, t + 1))
    return tuple(
        TrainRow(
            row.ids[:end],
            tuple(int(start <= t) for t in range(end)),
            tuple(row.logprobs[t] if start <= t else 0.0 for t in range(end)),
            tuple(row.versions[t] if start <= t else -1 for t in range(end)),
        )
        for start, end in spans
    )


def plain_loss(policy: Policy, reference: Policy, batch: Batch, advantages: Sequence[float], job: Job) -> Tensor:
    """The loss by its definition: one full forward per sampled token, one term at a time."""
    total = torch.zeros(())
    for episode, advantage in zip(batch.episodes, advantages, strict=True):
        terms = [
            _term(policy, reference, row, t, advantage, job)
            for row in episode.rows
            for t, flag in enumerate(row.sampled)
            if flag
        ]
        sized = [e.weight * (_tokens(e) if job.loss_weighting == "token" else 1) for e in batch.episodes]
        share = episode.weight * (1 if job.loss_weighting == "token" else 1 / len(terms)) / sum(sized)
        total = total + share * torch.stack(terms).sum()
    return total


def _tokens(episode: TrainEpisode) -> int:
    return sum(sum(row.sampled) for row in episode.rows)


def _term(policy: Policy, reference: Policy, row: TrainRow, t: int, advantage: float, job: Job) -> Tensor:
    distribution = _last(policy, row.ids[:t], job.temperature)
    logprob = distribution[row.ids[t]]
    ratio = torch.exp(logprob - row.logprobs[t])
    edge = 1 + job.clip_ratio if advantage > 0 else 1 - job.clip_ratio
    beyond = ratio.item() > edge if advantage > 0 else ratio.item() < edge
    surrogate = torch.tensor(edge * advantage) if beyond else ratio * advantage
    gap = _last(reference, row.ids[:t], job.temperature)[row.ids[t]].detach() - logprob
    divergence = torch.exp(gap) - 1 - gap
    entropy = -torch.sum(torch.exp(distribution) * distribution)
    return -surrogate + job.kl_coef * divergence - job.entropy_coef * entropy


def _last(policy: Policy, ids: Sequence[int], temperature: float) -> Tensor:
    logits = policy.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
    result: Tensor = torch.log_softmax(logits / temperature, -1)
    return result
