"""Tests of objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swarm.algorithms import losses
from swarm.algorithms.losses import Surrogate
from swarm.algorithms.objective import Objective, UpdateSums, advantage_metrics
from swarm.algorithms.rows import Tokens
from swarm.job import Job
from swarm.rendering.messages import BackendError
from tests.swarm.algorithms.factories import loss_of

_JOBS: list[dict[str, Any]] = [
    {},
    {"rollout_correction": "off", "dual_clip": 1.5, "clip_ratio_high": 0.3},
    {"rollout_correction": "mask", "correction_cap": 1.3, "epochs": 2, "max_staleness": 1},
    {"epochs": 2, "max_staleness": 1, "clip_ratio": 0.1},
    {"algorithm": "gspo", "rollout_correction": "off", "clip_ratio": 0.05},
    {"algorithm": "gspo", "minibatches": 2, "max_staleness": 2, "clip_ratio": 0.05},
    {"kl_coef": 0.3, "kl_estimator": "k2", "entropy_coef": 0.2, "minibatches": 2},
]
_COUNTS = (3, 1, 6, 4)


def _parts(job: Job, logits: Tensor, tokens: Tokens, sums: UpdateSums | None = None) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    reference = tokens.rollout - 0.1 if job.kl_coef else None
    loss = loss_of(job, logits.log_softmax(-1), tokens, reference, sums or UpdateSums(5, job.correction_cap))
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), gradient


def _with_sequences(job: Job, logits: Tensor, parts: list[Tokens], places: list[Tensor]) -> list[Tokens]:
    objective = Objective(job)
    if not objective.needs_sequences:
        return parts
    present = [
        logits[place].log_softmax(-1).gather(-1, part.targets[:, None])[:, 0]
        for part, place in zip(parts, places, strict=True)
    ]
    found = objective.sequences(list(zip(present, parts, strict=True)))
    return [replace(part, sequence=own) for part, own in zip(parts, found, strict=True)]


@given(st.sampled_from(_JOBS), st.integers(0, 1000), st.permutations(range(sum(_COUNTS))), st.integers(1, 13))
def test_micro_batches_of_any_cut_add_up(fields: dict[str, Any], seed: int, order: list[int], cut: int) -> None:
    job = Job(**fields)
    logits, tokens = make_tokens(_COUNTS, seed)
    whole, gradient = _parts(job, logits, tokens)
    places = [torch.tensor(order[:cut]), torch.tensor(order[cut:])]
    parts = _with_sequences(job, logits, [select(tokens, place) for place in places], places)
    sums = UpdateSums(5, job.correction_cap)
    found = [_parts(job, logits[place], part, sums) for place, part in zip(places, parts, strict=True)]
    assert torch.allclose(sum((loss for loss, _ in found), torch.zeros(())), whole)
    for place, (_, own) in zip(places, found, strict=True):
        assert torch.allclose(own, gradient[place])
    sums.steps = 1
    straight = UpdateSums(5, job.correction_cap)
    _parts(job, logits, tokens, straight)
    straight.steps = 1
    assert dict(sums.metrics()) == pytest.approx(dict(straight.metrics()))


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
@pytest.mark.parametrize("correction", ["truncate", "mask"])
def test_a_single_step_on_stale_tokens_weighs_each_by_its_ratio_and_never_clips(
    algorithm: str, correction: str
) -> None:
    job = Job(algorithm=algorithm, rollout_correction=correction, clip_ratio=1e-6, correction_cap=1.2)
    logits, tokens = make_tokens(_COUNTS)
    sums = UpdateSums(5, job.correction_cap)
    _, gradient = _parts(job, logits, tokens, sums)
    present = logits.requires_grad_().log_softmax(-1).gather(-1, tokens.targets[:, None])[:, 0]
    ratio = (present.detach() - tokens.rollout).exp()
    assert ratio.max() > 1.2
    weights = ratio.clamp(max=1.2) if correction == "truncate" else ratio * ((ratio <= 1.2) & (ratio >= 1 / 1.2))
    (expected,) = torch.autograd.grad(-(weights * tokens.weights * tokens.advantages * present).sum(), logits)
    assert torch.allclose(gradient, expected)
    assert sums.metrics()["actor/pg_clipfrac"] == 0
    assert sums.metrics()["actor/ppo_kl"] == 0


_GENERATOR = torch.Generator().manual_seed(0)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_episode_means_are_each_episode_s_own(numbers: list[int]) -> None:
    episodes, values = torch.tensor(numbers, dtype=torch.long), _random(len(numbers))
    expected = [values[episodes == number].mean().item() for number in numbers]
    assert losses.episode_means(values, episodes).tolist() == pytest.approx(expected)


def test_ratios_far_apart_stay_finite_in_value_and_gradient() -> None:
    present = torch.tensor([0.0, -500.0]).requires_grad_()
    ratio = losses.token_log_ratio(present, torch.tensor([-500.0, 0.0]))
    loss = losses.ppo_surrogate(ratio, torch.tensor([-1.0, -1.0]), 0.2, 0.2).loss.sum()
    loss = loss + losses.sequence_log_ratio(present, torch.tensor([400.0, 400.0])).exp().sum()
    loss = loss + losses.divergence(present, torch.tensor([-500.0, 500.0]), "k3").sum()
    torch.autograd.backward(loss)
    assert loss.isfinite()
    assert present.grad is not None
    assert present.grad.isfinite().all()


VOCABULARY = 7


def make_tokens(counts: Sequence[int], seed: int = 0, *, drift: float = 0.3, age: int = 2) -> tuple[Tensor, Tokens]:
    """Logits (M, V), and tokens sampled up to `age` versions before 5, whose three policies are `drift` apart."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    total, sizes = sum(counts), torch.tensor(counts)
    logits, targets = noise(total, VOCABULARY), torch.randint(VOCABULARY, (total,), generator=generator)
    present = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    proximal = present + drift * noise(total)
    tokens = Tokens(
        targets=targets,
        rollout=proximal + drift * noise(total),
        versions=5 - torch.randint(age + 1, (total,), generator=generator),
        proximal=proximal,
        advantages=noise(len(counts)).repeat_interleave(sizes),
        weights=(noise(len(counts)).exp() / max(1, total)).repeat_interleave(sizes),
        episodes=torch.arange(len(counts)).repeat_interleave(sizes),
    )
    return logits, tokens


def select(tokens: Tokens, places: Tensor) -> Tokens:
    found = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    return replace(tokens, **{name: value[places] for name, value in found.items() if value is not None})


def _add(sums: UpdateSums, tokens: Tokens, present: torch.Tensor, weights: torch.Tensor | None = None) -> None:
    never = torch.zeros(len(present), dtype=torch.bool)
    weights = torch.ones_like(present) if weights is None else weights
    sums.add_tokens(tokens, present, tokens.rollout, Surrogate(present, never, never), weights)


def _made(*, drift: float = 0.3, age: int = 2) -> tuple[Tokens, torch.Tensor]:
    logits, tokens = make_tokens((3, 1, 6, 4), drift=drift, age=age)
    return tokens, logits.log_softmax(-1).gather(-1, tokens.targets[:, None])[:, 0]


def test_an_update_without_tokens_has_finite_metrics() -> None:
    empty = UpdateSums(3, 2.0).metrics()
    assert all(math.isfinite(value) for value in empty.values())
    assert empty["training/rollout_probs_diff_valid"] == 0
    tokens, present = _made()
    sums = UpdateSums(5, 2.0)
    _add(sums, select(tokens, torch.arange(0)), present[:0])
    assert sums.metrics() == UpdateSums(5, 2.0).metrics()
    assert set(advantage_metrics([]).values()) == {0.0}


def test_epochs_do_not_count_a_token_twice() -> None:
    tokens, present = _made()
    once, twice = UpdateSums(5, 2.0), UpdateSums(5, 2.0)
    _add(once, tokens, present)
    _add(twice, tokens, present)
    once.steps = twice.steps = 1
    _add(twice, tokens, present - 0.5)
    changed = {name for name, value in twice.metrics().items() if value != once.metrics()[name]}
    assert changed == {"actor/ppo_kl"}


def test_the_mismatch_is_over_tokens_of_the_update_s_own_version_in_its_first_step() -> None:
    tokens, present = _made()
    sums = UpdateSums(5, 2.0)
    _add(sums, tokens, present)
    fresh = tokens.versions == 5
    assert 0 < fresh.sum() < len(fresh)
    expected = (present - tokens.rollout)[fresh].abs().exp().mean().item()
    assert (sums.mismatch, sums.fresh) == (pytest.approx(expected), int(fresh.sum()))
    sums.steps = 1
    _add(sums, tokens, present - 1)
    assert sums.metrics()["training/token_mult_prob_error"] == pytest.approx(expected)


def test_the_batch_s_metrics_describe_its_advantages() -> None:
    assert advantage_metrics([0.0, 0.0, -1.0, 2.0]) == {
        "critic/advantages/mean": 0.25,
        "critic/advantages/max": 2.0,
        "critic/advantages/min": -1.0,
    }


@pytest.mark.parametrize(
    ("updates", "count"),
    [
        ([(error, 32) for error in (1.2, 1.2, 1.1, 1.2, 1.2, 1.0)], 0),
        ([(1.2, 32), (0.0, 0), (1.2, 32), (9.0, 31), (1.0, 31)], 2),
    ],
    ids=["within the limit", "not judged"],
)
def test_updates_above_the_limit_are_counted_and_the_count_goes_on_from_a_saved_one(
    updates: list[tuple[float, int]], count: int
) -> None:
    guard, other = losses.MismatchGuard(1.1), losses.MismatchGuard(1.1)
    for error, tokens in updates:
        guard.check(error, tokens)
    assert guard.above == count
    other.above = guard.above
    for each in (guard, other):
        for _ in range(2 - count):
            each.check(1.2, 32)
        with pytest.raises(BackendError, match="3 updates"):
            each.check(1.2, 32)
