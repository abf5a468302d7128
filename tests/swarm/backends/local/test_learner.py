"""The learner: its gradient is the definition's, also off policy; its failures change nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.algorithms.advantages import advantages, group_relative
from swarm.algorithms.objective import Objective
from swarm.algorithms.rows import Tokens
from swarm.backends.local import learner as learner_module
from swarm.backends.local.learner import LocalLearner, MicroBatch
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Batch, TrainEpisode
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.timelines.node import TrainRow
from tests.swarm.backends.local import models

pytestmark = pytest.mark.slow


def _job(**fields: Any) -> Job:
    return Job(**{"max_grad_norm": 1e9, **fields})


def _advantages(batch: Batch, job: Job) -> list[float]:
    rewards = [episode.reward for episode in batch.episodes]
    counts = [sum(sum(row.sampled) for row in episode.rows) for episode in batch.episodes]
    return advantages(job, rewards, [episode.group for episode in batch.episodes], counts)


def _updated(job: Job, batch: Batch, policy: Policy | None = None) -> tuple[torch.Tensor, Mapping[str, float]]:
    policy = policy or models.make_policy()
    metrics = LocalLearner(policy, job, {}).update(batch)
    return models.gradient_of(policy), metrics


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"temperature": 0.7, "micro_batch_tokens": 16}, {"kl_coef": 0.5, "entropy_coef": 0.1, "temperature": 1.3},
        {"loss_weighting": "token"},
        {"rollout_correction": "off", "clip_ratio": 0.05, "clip_ratio_high": 0.2, "dual_clip": 1.25},
        {"rollout_correction": "mask", "correction_cap": 1.2}, {"algorithm": "dr_grpo"},
        {"algorithm": "gspo", "rollout_correction": "off", "clip_ratio": 0.03, "micro_batch_tokens": 16},
    ],
)  # fmt: skip
def test_the_gradient_is_that_of_the_loss_s_definition(fields: dict[str, Any]) -> None:
    job, policy, other, reference = _job(**fields), models.make_policy(), models.make_policy(), models.make_policy()
    batch = models.make_batch(policy, temperature=job.temperature, drift=0.3)
    weighed = (replace(e, weight=1.0 + i % 3) for i, e in enumerate(batch.episodes))
    batch = replace(batch, episodes=tuple(weighed))
    loss = models.plain_loss(other, reference, batch, _advantages(batch, job), job)
    torch.autograd.backward(loss)
    gradient, metrics = _updated(job, batch, policy)
    assert torch.allclose(gradient, models.gradient_of(other), atol=1e-5)
    assert gradient.abs().max() > 1e-3
    assert metrics["actor/grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-4)


@pytest.mark.parametrize("fields", [{}, {"algorithm": "gspo"}, {"micro_batch_tokens": 16}, {"epochs": 2}])
def test_episodes_whose_gradient_is_zero_are_read_and_all_else_is_as_if_they_were_learned(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = [models.make_policy(), models.make_policy()]
    batch = models.make_batch(policies[0], drift=0.3)
    batch = replace(
        batch, episodes=tuple(replace(e, reward=1.0 if e.group == "g0" else e.reward) for e in batch.episodes)
    )
    plain, learned = Policy.features, [0, 0]

    def counted(self: Policy, ids: torch.Tensor, **others: Any) -> torch.Tensor:
        learned[policies.index(self)] += ids.numel() * torch.is_grad_enabled()
        return plain(self, ids, **others)

    monkeypatch.setattr(Policy, "features", counted)
    first, metrics = _updated(_job(**fields), batch, policies[0])
    monkeypatch.setattr(learner_module, "_PASSES", 0)  # nothing is saved then
    second, others = _updated(_job(**fields), batch, policies[1])
    assert learned[0] < learned[1]
    assert torch.allclose(first, second, atol=1e-6)
    assert _untimed(metrics) | {"tokens/forward": 0} == pytest.approx(
        _untimed(others) | {"tokens/forward": 0}, rel=1e-4, abs=1e-6
    )


def test_the_kl_s_gradient_is_right_away_from_the_reference() -> None:
    job, policy, other = _job(kl_coef=0.5), models.make_policy(), models.make_policy()
    learner = LocalLearner(policy, job, {})
    learner.update(models.make_batch(policy))
    other.model.load_state_dict(policy.model.state_dict())
    batch = models.make_batch(policy, seed=1, drift=0.2)
    metrics = learner.update(batch)
    loss = models.plain_loss(other, models.make_policy(), batch, _advantages(batch, job), job)
    torch.autograd.backward(loss)
    assert torch.allclose(models.gradient_of(policy), models.gradient_of(other), atol=1e-5)
    assert metrics["actor/kl_loss"] > 0


@pytest.mark.parametrize("weighting", ["episode", "token"])
@pytest.mark.parametrize("size", [8, 7, 5])
def test_episodes_of_weight_0_change_neither_gradient_nor_metrics_nor_what_follows(size: int, weighting: str) -> None:
    job = _job(kl_coef=0.1, entropy_coef=0.1, epochs=2, minibatches=3, loss_weighting=weighting)
    batch = models.make_batch(models.make_policy(), episodes=size, drift=0.3)
    plain, expected = _updated(job, batch)
    empty = TrainRow((1, 2), (0, 0), (0.0, 0.0), (-1, -1))
    fillers = [TrainEpisode(f"filler/{n}", f"filler/{n}", 0.0, (empty,), weight=0.0) for n in range(3)]
    sampled = replace(batch.episodes[0], episode_id="sampled", reward=9.0, weight=0.0)
    filled, metrics = _updated(job, replace(batch, episodes=(*batch.episodes, *fillers, sampled)))
    assert torch.equal(filled, plain)
    assert _untimed(metrics) == _untimed(expected)


def _untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.startswith("timing_s/") and "per_s" not in key}


@pytest.mark.parametrize("weighting", ["episode", "token"])
def test_each_step_is_normalised_over_its_own_minibatch(weighting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = models.make_batch(models.make_policy(), episodes=12)  # groups of four
    policy = models.make_policy()
    learner = LocalLearner(policy, _job(minibatches=2, learning_rate=1e-12, loss_weighting=weighting), {})
    halves = [list(range(4, 12)), list(range(4))]
    with monkeypatch.context() as patch:
        patch.setattr("swarm.algorithms.learner.minibatches", lambda *_: iter(halves))
        learner.update(batch)
    alone, _ = _updated(_job(loss_weighting=weighting), replace(batch, episodes=batch.episodes[:4]))
    assert torch.allclose(models.gradient_of(policy), alone, atol=1e-5)
    assert alone.abs().max() > 1e-3


@pytest.mark.parametrize("fields", [{}, {"epochs": 3, "minibatches": 2}])
@pytest.mark.parametrize("poison", [float("nan"), -float("inf"), None])
def test_what_is_not_finite_is_refused_and_changes_nothing(
    fields: dict[str, Any], poison: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, twin = models.make_policy(), models.make_policy()
    good = models.make_batch(policy)
    learner, untouched = LocalLearner(policy, _job(**fields), {}), LocalLearner(twin, _job(**fields), {})
    if fields:  # the first episode's step comes last
        spoiled_last = [[*range(1, len(good.episodes))], [0]]
        monkeypatch.setattr("swarm.algorithms.learner.minibatches", lambda *_: iter(spoiled_last))
    learner.update(good)
    untouched.update(good)
    before = models.weights_of(policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objective, "token_loss", _poisoned(poison))
        with pytest.raises(BackendError, match="refused"):
            learner.update(good)
    assert learner.version == 1
    assert models.same_weights(models.weights_of(policy), before)
    learner.update(good)
    untouched.update(good)
    assert models.same_weights(models.weights_of(policy), models.weights_of(twin))


def _poisoned(poison: float | None) -> Callable[..., torch.Tensor]:
    """The loss, times `poison` wherever the first episode is among the tokens; None is in the gradient alone."""
    plain = Objective.token_loss

    def loss(
        self: Objective, present: torch.Tensor, entropy: torch.Tensor, tokens: Tokens, *others: Any
    ) -> torch.Tensor:
        found = plain(self, present, entropy, tokens, *others)
        if not (tokens.episodes == 0).any():
            return found
        return found + (0 * present).sum().sqrt() if poison is None else found * poison

    return loss


def _aged(batch: Batch, shift: float) -> Batch:
    """The same tokens, sampled one version earlier by a policy that gave each a log-prob lower by `shift`."""

    def aged(row: TrainRow) -> TrainRow:
        logprobs = tuple(p - shift if flag else 0.0 for p, flag in zip(row.logprobs, row.sampled, strict=True))
        return replace(row, logprobs=logprobs, versions=tuple(v - 1 if v >= 0 else v for v in row.versions))

    return replace(batch, episodes=tuple(replace(e, rows=tuple(map(aged, e.rows))) for e in batch.episodes))


@pytest.mark.parametrize("staleness", [0, 1])  # under 0, too, an episode that its team commits late is learned late
@pytest.mark.parametrize("correction", ["truncate", "mask"])
def test_later_steps_clip_against_and_weigh_by_what_the_update_began_with(correction: str, staleness: int) -> None:
    fields = {"max_staleness": staleness, "clip_ratio": 0.05, "rollout_correction": correction}
    policy, once = models.make_policy(), models.make_policy()
    fresh = models.make_batch(policy)
    policy.version = once.version = 1
    metrics = LocalLearner(policy, _job(**fields, epochs=2), {}).update(_aged(fresh, 0.3))
    LocalLearner(once, _job(**fields), {}).update(_aged(fresh, 0.3))
    once.model.zero_grad()
    values = group_relative([e.reward for e in fresh.episodes], [e.group for e in fresh.episodes], normalize=True)
    plain = _job(clip_ratio=0.05, rollout_correction="off")
    torch.autograd.backward(models.plain_loss(once, models.make_policy(), fresh, values, plain))
    assert torch.allclose(models.gradient_of(policy), math.exp(0.3) * models.gradient_of(once), atol=1e-4)
    assert metrics["actor/pg_clipfrac"] > 0
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(math.exp(0.3), rel=1e-4)
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.3, abs=1e-4)
    assert metrics["offpolicy/token_weighted_policy_age"] == 2


def test_an_engine_that_disagrees_for_three_updates_is_found_out_and_the_weights_stay(tmp_path: Path) -> None:
    policy = models.make_policy()
    learner = LocalLearner(policy, _job(epochs=2), {})
    for _ in range(2):
        metrics = learner.update(models.make_batch(policy, drift=0.6))
        assert metrics["training/token_mult_prob_error"] > 1.1
    learner.save(tmp_path / "c")
    resumed = models.make_policy()
    again = LocalLearner(resumed, _job(epochs=2), {})
    again.load(tmp_path / "c")
    for each, own in ((learner, policy), (again, resumed)):
        before = models.weights_of(own)
        with pytest.raises(BackendError, match=r"mismatch_limit of 1\.1"):
            each.update(models.make_batch(own, drift=0.6))
        assert models.same_weights(models.weights_of(own), before)
        assert each.version == 2


def test_where_memory_runs_out_the_update_is_made_again_in_smaller_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, twin = models.make_policy(), models.make_policy()
    fields = {"merging": "linear", "minibatches": 2}
    learner = LocalLearner(policy, _job(**fields, micro_batch_tokens=128), {})
    smaller = LocalLearner(twin, _job(**fields, micro_batch_tokens=64), {})
    score, fed = learner_module.score_tokens, list[int]()

    def scarce(policy: Policy, micro: MicroBatch, *given: Any, **more: Any) -> Any:
        fed.append(micro.tokens)
        if policy is learner.policy and len(fed) > 1 and micro.tokens > 64:  # in the second step
            raise torch.OutOfMemoryError
        return score(policy, micro, *given, **more)

    monkeypatch.setattr(learner_module, "score_tokens", scarce)
    monkeypatch.setattr("swarm.backends.local.micro_batch._LEAST_TOKENS", 32)
    batch = models.make_batch(policy, episodes=24)
    learner.update(batch)
    assert max(fed) > 64 >= fed[-1]
    smaller.update(batch)
    assert learner.version == smaller.version == 1
    for name, weight in models.weights_of(policy).items():
        assert torch.allclose(weight, models.weights_of(twin)[name], atol=1e-6)


def test_a_memory_too_small_for_the_least_micro_batch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = models.make_policy()
    before = models.weights_of(policy)

    def never(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(learner_module, "score_tokens", never)
    with pytest.raises(torch.OutOfMemoryError):
        LocalLearner(policy, _job(), {}).update(models.make_batch(policy))
    assert models.same_weights(models.weights_of(policy), before)


def test_a_batch_without_episodes_is_refused() -> None:
    with pytest.raises(BackendError, match="step 4: expected a batch"):
        LocalLearner(models.make_policy(), _job(), {}).update(Batch(4, ()))


def test_every_metric_of_an_update_is_defined_in_the_docs() -> None:
    policy = models.make_policy()
    metrics = LocalLearner(policy, _job(kl_coef=0.1), {}).update(models.make_batch(policy))
    text = (Path(__file__).parents[4] / "docs" / "training-metrics.md").read_text()
    table = text[text.index("| metric | value |") :].split("\n\n")[0]
    first = " ".join(line.split(" | ")[0] for line in table.splitlines())
    defined = {name for quoted in re.findall(r"`([^`]+)`", first) for name in _spelled(quoted)}
    assert "timing_s/ref" in metrics
    emitted = {name for name in metrics if not name.startswith(("timing_s/", "tokens/", "merge/"))}
    assert emitted <= defined
    assert {name for name in defined if name.startswith(("actor/", "rollout_corr/"))} <= emitted


def _spelled(name: str) -> list[str]:
    found = re.fullmatch(r"(.*){(.*)}(.*)", name)
    return [f"{found[1]}{part}{found[3]}" for part in found[2].split(",")] if found else [name]
