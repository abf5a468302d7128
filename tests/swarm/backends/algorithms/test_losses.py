"""The loss's terms against computations by hand and by finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.algorithms import losses
from swarm.backends.algorithms.losses import correction_weights, probability_ratio

_GENERATOR = torch.Generator().manual_seed(0)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


def test_the_loss_is_the_negated_clipped_surrogate() -> None:
    ratio = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5])
    advantages = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0])
    found = losses.clipped(ratio.log(), advantages, 0.2, 0.2)
    assert found.loss.tolist() == pytest.approx([-2.0, -2.4, -1.0, 3.0, 1.6])
    assert found.clipped.tolist() == [False, True, False, False, True]
    assert not found.dual_clipped.any()


def test_the_upper_width_may_be_another() -> None:
    ratio, advantages = torch.tensor([1.25, 1.4, 0.7]), torch.tensor([1.0, 1.0, -1.0])
    found = losses.clipped(ratio.log(), advantages, 0.2, 0.3)
    assert found.loss.tolist() == pytest.approx([-1.25, -1.3, 0.8])
    assert found.clipped.tolist() == [False, True, True]


def test_the_dual_clip_bounds_what_a_negative_advantage_may_cost() -> None:
    log_ratio = torch.tensor([9.0, 2.0, 9.0, 1.0]).log().requires_grad_()
    found = losses.clipped(log_ratio, torch.tensor([-2.0, -2.0, 2.0, 0.0]), 0.2, 0.2, 3.0)
    assert found.loss.tolist() == pytest.approx([6.0, 4.0, -2.4, 0.0])
    assert found.dual_clipped.tolist() == [True, False, False, False]
    torch.autograd.backward(found.loss.sum())
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([0.0, 4.0, 0.0, 0.0])


def test_a_clipped_token_has_no_gradient_and_a_free_one_has_advantage_times_ratio() -> None:
    log_ratio = torch.tensor([1.5, 0.5, 1.1, 0.9]).log().requires_grad_()
    found = losses.clipped(log_ratio, torch.tensor([1.0, -1.0, 1.0, -1.0]), 0.2, 0.2)
    torch.autograd.backward(found.loss.sum())
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([0.0, 0.0, -1.1, 0.9])


@pytest.mark.parametrize("dual", [None, 1.2])
def test_the_loss_s_gradient_agrees_with_finite_differences(dual: float | None) -> None:
    old, advantages = _random(20) * 0.3, _random(20)
    present = (old + _random(20) * 0.3).requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return losses.clipped(losses.token_log_ratio(x, old), advantages, 0.2, 0.3, dual).loss

    assert torch.autograd.gradcheck(loss, (present,))


def test_a_sequence_s_ratio_is_the_geometric_mean_of_its_tokens_and_each_has_its_own_gradient() -> None:
    old, episodes = _random(9) * 0.3, torch.tensor([4, 0, 4, 0, 4, 2, 4, 0, 0])
    present = (old + _random(9) * 0.3).requires_grad_()
    mean = losses.episode_means((present - old).detach(), episodes)
    ratio = losses.sequence_log_ratio(present, mean).exp()
    for episode in (0, 2, 4):
        own = episodes == episode
        expected = (present - old)[own].exp().prod() ** (1 / own.sum())
        assert torch.allclose(ratio[own], expected.expand(int(own.sum())))
        (gradient,) = torch.autograd.grad(ratio[own].mean(), present, retain_graph=True)
        (plain,) = torch.autograd.grad((present - old)[own].mean().exp(), present, retain_graph=True)
        assert torch.allclose(gradient, plain)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_episode_means_are_each_episode_s_own(numbers: list[int]) -> None:
    episodes, values = torch.tensor(numbers, dtype=torch.long), _random(len(numbers))
    expected = [values[episodes == number].mean().item() for number in numbers]
    assert losses.episode_means(values, episodes).tolist() == pytest.approx(expected)


def test_ratios_far_apart_stay_finite_in_value_and_gradient() -> None:
    present = torch.tensor([0.0, -500.0]).requires_grad_()
    ratio = losses.token_log_ratio(present, torch.tensor([-500.0, 0.0]))
    loss = losses.clipped(ratio, torch.tensor([-1.0, -1.0]), 0.2, 0.2).loss.sum()
    loss = loss + losses.sequence_log_ratio(present, torch.tensor([400.0, 400.0])).exp().sum()
    loss = loss + losses.divergence(present, torch.tensor([-500.0, 500.0]), "k3").sum()
    torch.autograd.backward(loss)
    assert loss.isfinite()
    assert present.grad is not None
    assert present.grad.isfinite().all()


def test_every_estimator_is_of_the_same_divergence() -> None:
    p = _random(12).log_softmax(-1)
    q = p + 1e-3 * _random(12)
    q = q.log_softmax(-1)
    exact = (p.exp() * (p - q)).sum().item()
    assert (p.exp() * losses.divergence(p, q, "k1")).sum().item() == pytest.approx(exact)
    assert (p.exp() * losses.divergence(p, q, "k3")).sum().item() == pytest.approx(exact)
    assert (p.exp() * losses.divergence(p, q, "k2")).sum().item() == pytest.approx(exact, rel=1e-2)


def test_k3_is_zero_at_the_reference_and_never_negative() -> None:
    p, q = _random(12), _random(12)
    assert losses.divergence(p, p, "k3").abs().max() == 0
    assert (losses.divergence(p, q, "k3") >= 0).all()


def test_k3_goes_on_pulling_a_token_back_that_the_policy_has_all_but_given_up() -> None:
    present = torch.tensor([-15.0], dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(losses.divergence(present, torch.zeros(1, dtype=torch.float64), "k3").sum())
    assert present.grad is not None
    assert present.grad.item() == pytest.approx(1 - math.exp(15))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_an_estimator_s_gradient_agrees_with_finite_differences(estimator: str) -> None:
    q, p = _random(12), _random(12).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: losses.divergence(x, q, estimator), (p,))  # type: ignore[arg-type]


def test_k1_s_gradient_is_zero_on_average_and_k2_s_is_the_divergence_s() -> None:
    logits, q = _random(6).requires_grad_(), _random(6).log_softmax(-1)
    p = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((p.exp() * (p - q)).sum(), logits, retain_graph=True)
    (k1,) = torch.autograd.grad((p.exp().detach() * losses.divergence(p, q, "k1")).sum(), logits, retain_graph=True)
    (k2,) = torch.autograd.grad((p.exp().detach() * losses.divergence(p, q, "k2")).sum(), logits)
    assert k1.abs().max() < 1e-12
    assert torch.allclose(k2, exact)


def test_entropy_of_a_uniform_and_of_a_certain_distribution() -> None:
    logits = torch.stack([torch.zeros(8), torch.tensor([50.0] + [0.0] * 7)])
    entropy = losses.entropy(losses.all_logprobs(logits, 1.0))
    assert entropy.tolist() == pytest.approx([math.log(8), 0.0], abs=1e-6)


def test_entropy_without_a_gradient_is_the_same() -> None:
    logprobs = _random(200, 5).log_softmax(-1)
    with torch.no_grad():
        assert torch.equal(losses.entropy(logprobs), -(logprobs.exp() * logprobs).sum(-1))
        assert losses.entropy(logprobs[:0]).shape == (0,)


def test_logprobs_are_taken_at_the_temperature() -> None:
    logits = torch.tensor([[0.0, math.log(4.0)]])
    assert losses.all_logprobs(logits, 2.0).exp()[0].tolist() == pytest.approx([1 / 3, 2 / 3])


_RATIO = torch.tensor([1.0, 1.9, 2.0, 2.1, 0.5, 0.49, 40.0])


def test_truncation_holds_large_ratios_at_the_cap_and_leaves_small_ones() -> None:
    assert correction_weights(_RATIO, "truncate", 2.0).tolist() == pytest.approx([1.0, 1.9, 2.0, 2.0, 0.5, 0.49, 2.0])


def test_the_mask_keeps_ratios_within_the_cap_on_both_sides_and_drops_the_others() -> None:
    assert correction_weights(_RATIO, "mask", 2.0).tolist() == pytest.approx([1.0, 1.9, 2.0, 0.0, 0.5, 0.0, 0.0])


def test_without_correction_every_token_weighs_one() -> None:
    assert correction_weights(_RATIO, "off", 2.0).tolist() == [1.0] * 7


def test_the_truncated_weight_makes_an_expectation_under_another_policy_right_up_to_what_is_cut() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    value = torch.tensor([1.0, -2.0, 5.0])
    weights = correction_weights(probability_ratio(p.log(), q.log()), "truncate", 2.0)
    assert (q * weights * value).sum().item() == pytest.approx((p * value).sum().item(), abs=1e-6)
    cut = correction_weights(probability_ratio(p.log(), q.log()), "truncate", 1.2)
    assert (q * cut).sum() < 1


def test_ratios_are_held_where_they_are_finite() -> None:
    far = probability_ratio(torch.tensor([0.0, -900.0]), torch.tensor([-900.0, 0.0]))
    assert far.tolist() == pytest.approx([math.exp(20), math.exp(-20)])
