"""Training batches as the engine would have made them, and the plain loss they are compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.backends.local.model.policy import Policy
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
    """The loss of a single optimiser step by its definition: one full forward per sampled token, one term at a time."""
    total = torch.zeros(())
    for episode, advantage, share in zip(batch.episodes, advantages, _shares(batch, job), strict=True):
        spots = [(row, t) for row in episode.rows for t, flag in enumerate(row.sampled) if flag]
        present = [_last(policy, row.ids[:t], job.temperature) for row, t in spots]
        logprobs = [every[row.ids[t]] for every, (row, t) in zip(present, spots, strict=True)]
        rollout = [row.logprobs[t] for row, t in spots]
        terms = _policy_terms(logprobs, rollout, advantage, job)
        for every, logprob, (row, t) in zip(present, logprobs, spots, strict=True):
            gap = _last(reference, row.ids[:t], job.temperature)[row.ids[t]].detach() - logprob
            divergence = {"k1": -gap, "k2": gap**2 / 2, "k3": torch.exp(gap) - 1 - gap}[job.kl_estimator]
            entropy = -torch.sum(torch.exp(every) * every)
            terms = terms + job.kl_coef * divergence - job.entropy_coef * entropy
        total = total + share * terms
    return total


def _shares(batch: Batch, job: Job) -> list[float]:
    """What one token of each episode weighs."""
    counts = [sum(sum(row.sampled) for row in episode.rows) for episode in batch.episodes]
    weights = [episode.weight for episode in batch.episodes]
    if job.algorithm == "dr_grpo":
        return [weight / sum(weights) / job.max_context for weight in weights]
    if job.loss_weighting == "token":
        everything = sum(weight * count for weight, count in zip(weights, counts, strict=True))
        return [weight / everything for weight in weights]
    return [weight / sum(weights) / count for weight, count in zip(weights, counts, strict=True)]


def _policy_terms(logprobs: Sequence[Tensor], rollout: Sequence[float], advantage: float, job: Job) -> Tensor:
    """The sum of an episode's policy terms; GSPO's in its sequence form, arXiv 2507.18071, equations 5 and 7."""
    if job.rollout_correction != "off":
        return sum((_corrected(a, b, advantage, job) for a, b in zip(logprobs, rollout, strict=True)), torch.zeros(()))
    ratios = [torch.exp(a - b) for a, b in zip(logprobs, rollout, strict=True)]
    if job.algorithm == "gspo":
        return len(ratios) * _surrogate(torch.stack(ratios).log().mean().exp(), advantage, job)
    return sum((_surrogate(ratio, advantage, job) for ratio in ratios), torch.zeros(()))


def _corrected(logprob: Tensor, rollout: float, advantage: float, job: Job) -> Tensor:
    """The plain policy gradient's term, weighed: in a single step the proximal policy is the present one."""
    weight = torch.exp(logprob.detach() - rollout).item()
    if job.rollout_correction == "truncate":
        weight = min(weight, job.correction_cap)
    elif not 1 / job.correction_cap <= weight <= job.correction_cap:
        weight = 0.0
    return -weight * advantage * logprob


def _surrogate(ratio: Tensor, advantage: float, job: Job) -> Tensor:
    low, high = 1 - job.clip_ratio, 1 + (job.clip_ratio_high or job.clip_ratio)
    if advantage > 0:
        return -advantage * (ratio if ratio.item() <= high else torch.tensor(high))
    if job.dual_clip is not None and ratio.item() > job.dual_clip:
        return -advantage * torch.tensor(job.dual_clip)
    return -advantage * (ratio if ratio.item() >= low else torch.tensor(low))


def _last(policy: Policy, ids: Sequence[int], temperature: float) -> Tensor:
    logits = policy.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
    result: Tensor = torch.log_softmax(logits / temperature, -1)
    return result
