"""The learner with tokens of older policies, with sequences over several micro-batches, and beside a wrong engine."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.algorithms.advantages import group_relative
from swarm.backends.local.learning.learner import LocalLearner
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError, Batch, TrainRow
from swarm.job import Job
from tests.swarm.backends.local.batches import make_batch, plain_loss, unmerge
from tests.swarm.backends.local.models import make_policy


def _job(**fields: Any) -> Job:
    return Job(**{"max_grad_norm": 1e9, **fields})


def _gradient(policy: Policy) -> torch.Tensor:
    return torch.cat([value.grad.flatten() for value in policy.model.parameters() if value.grad is not None])


def _weights(policy: Policy) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in policy.model.parameters()])


def _aged(batch: Batch, shift: float) -> Batch:
    """The same tokens, sampled one version earlier by a policy that gave each a log-prob lower by `shift`."""

    def aged(row: TrainRow) -> TrainRow:
        logprobs = tuple(p - shift if flag else 0.0 for p, flag in zip(row.logprobs, row.sampled, strict=True))
        return replace(row, logprobs=logprobs, versions=tuple(v - 1 if v >= 0 else v for v in row.versions))

    return replace(batch, episodes=tuple(replace(e, rows=tuple(map(aged, e.rows))) for e in batch.episodes))


@pytest.mark.parametrize("staleness", [0, 1])  # under 0, too, an episode that its team commits late is learned late
@pytest.mark.parametrize("correction", ["truncate", "mask"])
def test_later_steps_clip_against_the_weights_the_update_began_with_and_weigh_by_theirs(
    correction: str, staleness: int
) -> None:
    fields = {"max_staleness": staleness, "clip_ratio": 0.05, "rollout_correction": correction}
    policy, once = make_policy(), make_policy()
    fresh = make_batch(policy)
    policy.version = once.version = 1
    metrics = LocalLearner(policy, _job(**fields, epochs=2), {}).update(_aged(fresh, 0.3))
    LocalLearner(once, _job(**fields), {}).update(_aged(fresh, 0.3))
    once.model.zero_grad()
    values = group_relative([e.reward for e in fresh.episodes], [e.group for e in fresh.episodes], normalize=True)
    plain = _job(clip_ratio=0.05, rollout_correction="off")
    torch.autograd.backward(plain_loss(once, make_policy(), fresh, values, plain))
    assert torch.allclose(_gradient(policy), math.exp(0.3) * _gradient(once), atol=1e-4)
    assert metrics["actor/pg_clipfrac"] > 0
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(math.exp(0.3), rel=1e-4)
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.3, abs=1e-4)
    assert metrics["offpolicy/token_weighted_policy_age"] == 2


def test_a_single_step_on_stale_tokens_needs_no_pass_of_its_own() -> None:
    policy = make_policy()
    batch = make_batch(policy)
    policy.version = 1
    metrics = LocalLearner(policy, _job(max_staleness=1), {}).update(_aged(batch, 0.3))
    assert "timing_s/old_log_prob" not in metrics
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(math.exp(0.3), rel=1e-4)


@pytest.mark.parametrize("stale", [False, True])
def test_several_steps_begin_with_a_pass_of_their_own_where_one_token_is_older(stale: bool) -> None:
    policy = make_policy()
    policy.version = 1
    batch = make_batch(policy)
    first, row = batch.episodes[0], batch.episodes[0].rows[0]
    if stale:
        place = row.versions.index(1)
        row = replace(row, versions=(*row.versions[:place], 0, *row.versions[place + 1 :]))
    mixed = replace(batch, episodes=(replace(first, rows=(row, *first.rows[1:])), *batch.episodes[1:]))
    metrics = LocalLearner(policy, _job(max_staleness=1, epochs=2), {}).update(mixed)
    assert ("timing_s/old_log_prob" in metrics) is stale


@pytest.mark.parametrize(
    "fields",
    [{"minibatches": 2}, {"epochs": 2, "max_staleness": 1, "learning_rate": 5e-5}, {"rollout_correction": "off"}],
)
def test_a_sequence_is_its_whole_episode_however_it_is_cut_into_micro_batches(fields: dict[str, Any]) -> None:
    batch = make_batch(make_policy(), drift=0.05)
    found = []
    for budget in (16, 10_000):
        policy = make_policy()
        job = _job(algorithm="gspo", clip_ratio=0.01, micro_batch_tokens=budget, **fields)
        metrics = LocalLearner(policy, job, {}).update(batch)
        found.append((_gradient(policy), metrics))
    (cut, some), (whole, all_) = found
    assert torch.allclose(cut, whole, atol=1e-4)
    assert whole.abs().max() > 1e-2
    for name in ("actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac", "rollout_corr/chi2_seq"):
        assert some[name] == pytest.approx(all_[name], abs=1e-4)
    assert all_["actor/pg_clipfrac"] > 0


def test_an_engine_that_disagrees_for_three_updates_is_found_out_and_the_weights_stay(tmp_path: Path) -> None:
    policy = make_policy()
    learner = LocalLearner(policy, _job(epochs=2), {})
    for _ in range(2):
        metrics = learner.update(make_batch(policy, drift=0.6))
        assert metrics["training/token_mult_prob_error"] > 1.1
    learner.save(tmp_path / "c")
    resumed = make_policy()
    again = LocalLearner(resumed, _job(epochs=2), {})
    again.load(tmp_path / "c")
    for each, own in ((learner, policy), (again, resumed)):
        before = _weights(own)
        with pytest.raises(BackendError, match=r"above the job's mismatch_limit of 1\.1 for 3 updates"):
            each.update(make_batch(own, drift=0.6))
        assert torch.equal(_weights(own), before)
        assert each.version == 2


def test_an_engine_that_agrees_passes_and_stale_tokens_are_not_held_against_it() -> None:
    policy = make_policy()
    learner = LocalLearner(policy, _job(max_staleness=1), {})
    for seed in range(4):
        metrics = learner.update(_aged(make_batch(policy, seed=seed), 0.6))
        assert metrics["training/token_mult_prob_error"] == 0
    assert learner.update(make_batch(policy))["training/token_mult_prob_error"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": "gspo", "clip_ratio": 0.02, "rollout_correction": "off"},
        {"algorithm": "dr_grpo", "rollout_correction": "mask", "correction_cap": 1.2},
        {"algorithm": "reinforce_pp_baseline", "entropy_coef": 0.1, "loss_weighting": "token"},
    ],
)
def test_rows_trees_and_one_row_per_call_have_one_gradient_and_one_set_of_metrics(fields: dict[str, Any]) -> None:
    batch = make_batch(make_policy(), drift=0.3)
    unmerged = replace(
        batch, episodes=tuple(replace(e, rows=tuple(r for row in e.rows for r in unmerge(row))) for e in batch.episodes)
    )
    found = []
    for merging, rows in (("none", unmerged), ("linear", batch), ("tree", batch), ("tree", unmerged)):
        policy = make_policy()
        metrics = LocalLearner(policy, _job(merging=merging, **fields), {}).update(rows)
        kept = ("actor/", "training/", "rollout_corr/", "offpolicy/", "critic/")
        found.append((_gradient(policy), {k: v for k, v in metrics.items() if k.startswith(kept)}))
    for gradient, metrics in found[1:]:
        assert torch.allclose(gradient, found[0][0], atol=1e-5)
        assert metrics == pytest.approx(found[0][1], rel=1e-3, abs=1e-5)


def test_every_metric_of_an_update_is_defined_in_the_docs() -> None:
    policy = make_policy()
    metrics = LocalLearner(policy, _job(kl_coef=0.1), {}).update(make_batch(policy))
    text = (Path(__file__).parents[4] / "docs" / "algorithms.md").read_text()
    table = text[text.index("| metric | value |") :].split("\n\n")[0]
    first = " ".join(line.split(" | ")[0] for line in table.splitlines())
    defined = {name for quoted in re.findall(r"`([^`]+)`", first) for name in _spelled(quoted)}
    emitted = {name for name in metrics if not name.startswith(("timing_s/", "tokens/", "merge/"))}
    assert emitted <= defined
    assert {name for name in defined if name.startswith(("actor/", "rollout_corr/"))} <= emitted


def _spelled(name: str) -> list[str]:
    """`a_{b,c}` is a_b and a_c."""
    found = re.fullmatch(r"(.*){(.*)}(.*)", name)
    return [f"{found[1]}{part}{found[3]}" for part in found[2].split(",")] if found else [name]
