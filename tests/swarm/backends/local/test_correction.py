"""Off-policy weights: truncated, masked or none."""

from __future__ import annotations

import math

import pytest
import torch

from swarm.backends.local.correction import correction_weights, probability_ratio

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
