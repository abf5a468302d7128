"""GRPO's formulas against computations by hand and by finite differences."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local import grpo

_GENERATOR = torch.Generator().manual_seed(0)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


def test_advantages_are_rewards_less_the_group_s_mean_over_its_deviation() -> None:
    rewards, groups = [1.0, 0.0, 0.0, 4.0, 2.0], ["a", "a", "a", "b", "b"]
    plain = grpo.group_advantages(rewards, groups, normalize=False)
    assert plain == pytest.approx([2 / 3, -1 / 3, -1 / 3, 1.0, -1.0])
    a, b = math.sqrt(1 / 3), math.sqrt(2)
    scaled = grpo.group_advantages(rewards, groups, normalize=True)
    expected = [2 / 3 / (a + 1e-6), -1 / 3 / (a + 1e-6), -1 / 3 / (a + 1e-6), 1 / (b + 1e-6), -1 / (b + 1e-6)]
    assert scaled == pytest.approx(expected)


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.booleans())
def test_a_constant_group_has_exactly_no_advantage(reward: float, size: int, normalize: bool) -> None:
    assert grpo.group_advantages([reward] * size, ["g"] * size, normalize=normalize) == [0.0] * size


def test_constant_groups_are_counted_once_each() -> None:
    assert grpo.constant_groups([1.0, 1.0, 0.0, 1.0, 3.0], ["a", "a", "b", "b", "c"]) == 2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_an_episode_weighs_one_however_many_tokens_it_has(counts: list[int]) -> None:
    weights = grpo.token_weights(counts, [1.0] * len(counts), "episode")
    for count, weight in zip(counts, weights, strict=True):
        assert count * weight == pytest.approx(1 / len(counts) if count else 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.just(0.0) | st.floats(1e-3, 1e6)), min_size=1, max_size=20),
    st.sampled_from(["episode", "token"]),
    st.floats(1e-3, 1e3),
)
def test_weights_are_shares_and_nothing_else(
    episodes: list[tuple[int, float]], weighting: grpo.Weighting, unit: float
) -> None:
    counts, weights = [count for count, _ in episodes], [weight for _, weight in episodes]
    found = grpo.token_weights(counts, weights, weighting)
    assert all(value == 0 for value, weight in zip(found, weights, strict=True) if not weight)
    assert grpo.token_weights(counts, [unit * weight for weight in weights], weighting) == pytest.approx(found)
    assert grpo.token_weights([*counts, 7], [*weights, 0.0], weighting)[:-1] == found
    heavy = [(count, weight, value) for (count, weight), value in zip(episodes, found, strict=True) if count and weight]
    for (count, weight, value), (other_count, other_weight, other) in pairwise(heavy):
        scale = 1 if weighting == "token" else count / other_count
        assert value * scale / weight == pytest.approx(other / other_weight)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_by_token_every_sampled_token_weighs_the_same(counts: list[int]) -> None:
    weights = grpo.token_weights(counts, [1.0] * len(counts), "token")
    assert weights == pytest.approx([1 / sum(counts)] * len(counts))


def test_the_loss_is_the_negated_clipped_surrogate() -> None:
    old = torch.zeros(5)
    ratio = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5])
    advantages = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0])
    loss, clipped = grpo.policy_loss(ratio.log(), old, advantages, 0.2)
    assert loss.tolist() == pytest.approx([-2.0, -2.4, -1.0, 3.0, 1.6])
    assert clipped.tolist() == [False, True, False, False, True]


def test_a_clipped_token_has_no_gradient_and_a_free_one_has_advantage_times_ratio() -> None:
    logprobs = torch.tensor([1.5, 0.5, 1.1, 0.9]).log().requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss, _ = grpo.policy_loss(logprobs, torch.zeros(4), advantages, 0.2)
    loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.0, -1.1, 0.9])


def test_the_loss_s_gradient_agrees_with_finite_differences() -> None:
    old, advantages = _random(20) * 0.3, _random(20)
    logprobs = (old + _random(20) * 0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: grpo.policy_loss(x, old, advantages, 0.2)[0], (logprobs,))


def test_k3_is_zero_at_the_reference_never_negative_and_unbiased_for_the_divergence() -> None:
    p, q = _random(12).log_softmax(-1), _random(12).log_softmax(-1)
    assert grpo.k3(p, p).abs().max() == 0
    assert (grpo.k3(p, q) >= 0).all()
    assert (p.exp() * grpo.k3(p, q)).sum() == pytest.approx((p.exp() * (p - q)).sum().item())


def test_entropy_of_a_uniform_and_of_a_certain_distribution() -> None:
    logits = torch.stack([torch.zeros(8), torch.tensor([50.0] + [0.0] * 7)])
    entropy = grpo.entropy(grpo.all_logprobs(logits, 1.0))
    assert entropy.tolist() == pytest.approx([math.log(8), 0.0], abs=1e-6)


def test_logprobs_are_taken_at_the_temperature() -> None:
    logits = torch.tensor([[0.0, math.log(4.0)]])
    assert grpo.all_logprobs(logits, 2.0).exp()[0].tolist() == pytest.approx([1 / 3, 2 / 3])
