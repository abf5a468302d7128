"""The metrics of an update: finite, each token once, and of what the update began with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from swarm.backends.algorithms.losses import Surrogate
from swarm.backends.algorithms.metrics import UpdateSums, batch_metrics
from swarm.backends.algorithms.rows import Tokens
from swarm.backends.protocols import Batch, TrainEpisode
from tests.swarm.backends.local.tokens import make_tokens, select


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
    assert set(batch_metrics(Batch(0, ()), []).values()) == {0.0}


@pytest.mark.parametrize("value", [0.0, -1e-9, -60.0, -1e30])
def test_metrics_stay_finite_for_any_log_prob(value: float) -> None:
    tokens, present = _made()
    extreme = torch.full_like(present, value)
    for begun, rollout in ((extreme, tokens.rollout), (present, extreme), (extreme, extreme)):
        sums = UpdateSums(5, 2.0)
        _add(sums, replace(tokens, rollout=rollout), begun, torch.zeros_like(present))
        assert all(math.isfinite(found) for found in sums.metrics().values())


def test_epochs_do_not_count_a_token_twice() -> None:
    tokens, present = _made()
    once, twice = UpdateSums(5, 2.0), UpdateSums(5, 2.0)
    _add(once, tokens, present)
    _add(twice, tokens, present)
    once.steps = twice.steps = 1
    _add(twice, tokens, present - 0.5)
    changed = {name for name, value in twice.metrics().items() if value != once.metrics()[name]}
    assert changed == {"actor/ppo_kl"}


def test_later_minibatches_are_compared_only_where_the_beginning_is_known() -> None:
    tokens, present = _made()
    first, second = (tokens.episodes < 2).nonzero()[:, 0], (tokens.episodes >= 2).nonzero()[:, 0]

    def begun(proximal: bool) -> UpdateSums:
        sums = UpdateSums(5, 2.0)
        for places in (first, second):
            own = select(tokens, places)
            _add(sums, own if proximal else replace(own, proximal=None), present[places])
            sums.steps += 1
        return sums

    unknown, alone = begun(False).metrics(), UpdateSums(5, 2.0)
    _add(alone, select(tokens, first), present[first])
    assert unknown["rollout_corr/kl"] == alone.metrics()["rollout_corr/kl"]
    both = torch.cat([present[first], tokens.proximal[second]])  # type: ignore[index]
    expected = (torch.cat([tokens.rollout[first], tokens.rollout[second]]) - both).mean().item()
    assert begun(True).metrics()["rollout_corr/kl"] == pytest.approx(expected)
    assert (
        unknown["offpolicy/token_weighted_policy_age"] == begun(True).metrics()["offpolicy/token_weighted_policy_age"]
    )


def test_a_token_s_age_is_counted_from_the_version_the_update_began_with() -> None:
    tokens, present = _made()
    tokens = replace(tokens, versions=torch.tensor([5, 5, 4, 3, 5, 5, 5, 5, 5, 5, 1, 2, 2, 2]))
    sums = UpdateSums(5, 2.0)
    _add(sums, tokens, present)
    found = sums.metrics()
    assert found["offpolicy/token_weighted_policy_age"] == pytest.approx((1 + 2 + 4 + 3 * 3) / 14)


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


def test_without_a_token_of_its_version_an_update_s_mismatch_is_unknown() -> None:
    tokens, present = _made()
    sums = UpdateSums(6, 2.0)
    _add(sums, tokens, present)
    assert sums.fresh == 0
    assert sums.metrics()["training/token_mult_prob_error"] == 0


def test_weights_that_mask_everything_leave_no_sample() -> None:
    tokens, present = _made()
    sums = UpdateSums(5, 2.0)
    _add(sums, tokens, present, torch.zeros_like(present))
    found = sums.metrics()
    assert found["rollout_corr/rollout_is_eff_sample_size"] == 0
    assert found["rollout_corr/rollout_rs_masked_fraction"] == 1


def test_the_batch_s_metrics_describe_its_advantages_and_groups() -> None:
    episodes = tuple(
        TrainEpisode(str(i), group, reward, ())
        for i, (group, reward) in enumerate(zip("aabb", (1.0, 1.0, 0.0, 1.0), strict=True))
    )
    found = batch_metrics(Batch(0, episodes), [0.0, 0.0, -1.0, 2.0])
    assert found == {
        "critic/advantages/mean": 0.25,
        "critic/advantages/max": 2.0,
        "critic/advantages/min": -1.0,
        "batch/constant_groups": 1.0,
    }
