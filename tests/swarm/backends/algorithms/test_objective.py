"""The loss as a whole: a sum over tokens, of the right policies, with the definition's gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarm.backends.algorithms.metrics import UpdateSums
from swarm.backends.algorithms.objective import Objective
from swarm.backends.algorithms.rows import Tokens
from swarm.job import Job
from tests.swarm.backends.local.tokens import make_tokens, select

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
    """Return the loss and its gradient by the logits; the reference is a shifted rollout policy."""
    logits = logits.clone().requires_grad_()
    reference = tokens.rollout - 0.1 if job.kl_coef else None
    loss = Objective(job).loss(logits.log_softmax(-1), tokens, reference, sums or UpdateSums(5, job.correction_cap))
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


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(_JOBS), st.integers(0, 1000), st.permutations(range(sum(_COUNTS))), st.integers(1, 13))
def test_micro_batches_of_any_cut_and_order_add_up(
    fields: dict[str, Any], seed: int, order: list[int], cut: int
) -> None:
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


@pytest.mark.parametrize("fields", _JOBS)
def test_a_token_of_weight_0_adds_nothing(fields: dict[str, Any]) -> None:
    job = Job(**fields)
    logits, tokens = make_tokens(_COUNTS)
    loss, gradient = _parts(job, logits, replace(tokens, weights=tokens.weights * (tokens.episodes != 2)))
    others = tokens.episodes != 2
    expected, plain = _parts(job, logits[others], select(tokens, others.nonzero()[:, 0]))
    assert torch.allclose(loss, expected)
    assert torch.allclose(gradient[others], plain)
    assert gradient[~others].abs().max() == 0


@pytest.mark.parametrize("fields", [fields for fields in _JOBS if fields.get("algorithm") != "gspo" and fields])
def test_the_gradient_agrees_with_finite_differences(fields: dict[str, Any]) -> None:
    job = Job(**fields)
    logits, tokens = make_tokens(_COUNTS)
    reference = tokens.rollout - 0.1 if job.kl_coef else None

    def loss(x: Tensor) -> Tensor:
        return Objective(job).loss(x.log_softmax(-1), tokens, reference, UpdateSums(5, job.correction_cap))

    assert torch.autograd.gradcheck(loss, (logits.requires_grad_(),))


def _log_prob_gradient(tokens: Tokens, logits: Tensor, factors: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    present = logits.log_softmax(-1).gather(-1, tokens.targets[:, None])[:, 0]
    (gradient,) = torch.autograd.grad(-(factors * present).sum(), logits)
    return gradient


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
@pytest.mark.parametrize("correction", ["truncate", "mask", "off"])
def test_a_single_step_on_its_own_tokens_is_the_plain_policy_gradient(algorithm: str, correction: str) -> None:
    job = Job(algorithm=algorithm, rollout_correction=correction)
    logits, tokens = make_tokens(_COUNTS, drift=0)
    _, gradient = _parts(job, logits, tokens)
    assert torch.allclose(gradient, _log_prob_gradient(tokens, logits, tokens.weights * tokens.advantages))


def test_a_single_step_on_stale_tokens_weighs_each_by_its_truncated_ratio_and_never_clips() -> None:
    job = Job(clip_ratio=1e-6, correction_cap=1.2)
    logits, tokens = make_tokens(_COUNTS)
    sums = UpdateSums(5, job.correction_cap)
    _, gradient = _parts(job, logits, tokens, sums)
    present = logits.log_softmax(-1).gather(-1, tokens.targets[:, None])[:, 0]
    weights = (present - tokens.rollout).exp().clamp(max=1.2)
    assert weights.max() == 1.2
    expected = _log_prob_gradient(tokens, logits, weights * tokens.weights * tokens.advantages)
    assert torch.allclose(gradient, expected)
    assert sums.metrics()["actor/pg_clipfrac"] == 0
    assert sums.metrics()["actor/ppo_kl"] == 0


@pytest.mark.parametrize("correction", ["truncate", "mask", "off"])
def test_several_steps_at_staleness_0_clip_against_the_engine_s_own_log_probs_and_weigh_nothing(
    correction: str,
) -> None:
    logits, tokens = make_tokens(_COUNTS)
    tokens = replace(tokens, proximal=None)
    _, gradient = _parts(Job(epochs=2, rollout_correction=correction), logits, tokens)
    _, plain = _parts(Job(rollout_correction="off"), logits, tokens)
    assert torch.equal(gradient, plain)


def test_with_a_proximal_policy_the_clip_and_the_weight_are_about_different_ratios() -> None:
    job = Job(minibatches=2, max_staleness=1, clip_ratio=0.1, correction_cap=1.5)
    logits, tokens = make_tokens((1, 1))
    targets = tokens.targets[:, None]
    present = logits.log_softmax(-1).gather(-1, targets)[:, 0]
    tokens = replace(
        tokens,
        proximal=present - torch.tensor([0.05, 0.5]),
        rollout=present - torch.tensor([0.05, 0.5]) - 0.2,
        advantages=torch.ones(2, dtype=torch.float64),
    )
    _, gradient = _parts(job, logits, tokens)
    factors = torch.tensor([torch.tensor(0.05 + 0.2).exp().item(), 0.0])
    assert torch.allclose(gradient, _log_prob_gradient(tokens, logits, factors * tokens.weights))


@pytest.mark.parametrize(
    ("fields", "stale", "needed"),
    [
        ({}, True, False),
        ({"epochs": 2, "max_staleness": 1}, False, False),
        ({"epochs": 2}, True, True),
        ({"minibatches": 2, "rollout_correction": "mask"}, True, True),
        ({"minibatches": 2, "rollout_correction": "off"}, True, False),
    ],
)
def test_the_proximal_policy_is_computed_apart_only_where_nothing_else_knows_it(
    fields: dict[str, Any], stale: bool, needed: bool
) -> None:
    assert Objective(Job(**fields)).needs_proximal(stale=stale) is needed


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({"algorithm": "gspo"}, False),
        ({"algorithm": "gspo", "epochs": 2}, True),
        ({"algorithm": "gspo", "rollout_correction": "off"}, True),
        ({"algorithm": "grpo", "epochs": 2}, False),
    ],
)
def test_sequences_are_needed_only_where_a_ratio_can_differ_from_1(fields: dict[str, Any], needed: bool) -> None:
    assert Objective(Job(**fields)).needs_sequences is needed
