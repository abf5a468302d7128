"""The learner: its gradient is the definition's, its failures change nothing, its checkpoints continue exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.backends.algorithms.advantages import advantages
from swarm.backends.algorithms.objective import Objective
from swarm.backends.algorithms.rows import Tokens
from swarm.backends.algorithms.weighting import minibatches
from swarm.backends.local.generating.batcher import Batcher
from swarm.backends.local.generating.generation import Generation
from swarm.backends.local.learning.checkpoint import read
from swarm.backends.local.learning.learner import LocalLearner
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError, Batch, Sampling, TrainEpisode, TrainRow
from swarm.job import Job
from tests.swarm.backends.local.batches import make_batch, make_row, plain_loss, unmerge
from tests.swarm.backends.local.models import VOCABULARY, forced_logprobs, make_policy

_UNCLIPPED = 1e9


def _job(**fields: Any) -> Job:
    return Job(**{"max_grad_norm": _UNCLIPPED, **fields})


def _advantages(batch: Batch, job: Job) -> list[float]:
    rewards = [episode.reward for episode in batch.episodes]
    counts = [sum(sum(row.sampled) for row in episode.rows) for episode in batch.episodes]
    return advantages(job, rewards, [episode.group for episode in batch.episodes], counts)


def _weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in policy.model.named_parameters()}


def _gradients(policy: Policy) -> torch.Tensor:
    return torch.cat([value.grad.flatten() for value in policy.model.parameters() if value.grad is not None])


def _updated(job: Job, batch: Batch, policy: Policy | None = None) -> tuple[torch.Tensor, Mapping[str, float]]:
    policy = policy or make_policy()
    metrics = LocalLearner(policy, job, {}).update(batch)
    return _gradients(policy), metrics


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.7},
        {"normalize_advantage": False},
        {"clip_ratio": 0.05},
        {"entropy_coef": 0.3},
        {"kl_coef": 0.5, "entropy_coef": 0.1, "temperature": 1.3},
        {"loss_weighting": "token"},
        {"kl_coef": 0.5, "kl_estimator": "k2"},
        {"rollout_correction": "off", "clip_ratio": 0.05, "clip_ratio_high": 0.2, "dual_clip": 1.25},
        {"rollout_correction": "mask", "correction_cap": 1.2},
        {"correction_cap": 1.1, "algorithm": "rloo"},
        {"algorithm": "dr_grpo"},
        {"algorithm": "reinforce_pp"},
        {"algorithm": "reinforce_pp_baseline"},
        {"algorithm": "gspo"},
        {"algorithm": "gspo", "rollout_correction": "off", "clip_ratio": 0.03, "micro_batch_tokens": 16},
    ],
)
def test_the_gradient_is_that_of_the_loss_s_definition(fields: dict[str, Any]) -> None:
    job, policy, other, reference = _job(**fields), make_policy(), make_policy(), make_policy()
    batch = make_batch(policy, temperature=job.temperature, drift=0.3)
    weighed = (replace(e, weight=1.0 + i % 3) for i, e in enumerate(batch.episodes))
    batch = replace(batch, episodes=tuple(weighed))
    loss = plain_loss(other, reference, batch, _advantages(batch, job), job)
    torch.autograd.backward(loss)
    gradient, metrics = _updated(job, batch, policy)
    assert torch.allclose(gradient, _gradients(other), atol=1e-5)
    assert gradient.abs().max() > 1e-3
    assert metrics["actor/grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-4)


def test_the_kl_s_gradient_is_right_away_from_the_reference() -> None:
    job, policy, other = _job(kl_coef=0.5), make_policy(), make_policy()
    learner = LocalLearner(policy, job, {})
    learner.update(make_batch(policy))
    other.model.load_state_dict(policy.model.state_dict())
    batch = make_batch(policy, seed=1, drift=0.2)
    metrics = learner.update(batch)
    loss = plain_loss(other, make_policy(), batch, _advantages(batch, job), job)
    torch.autograd.backward(loss)
    assert torch.allclose(_gradients(policy), _gradients(other), atol=1e-5)
    assert metrics["actor/kl_loss"] > 0


def test_merged_rows_train_like_one_row_per_call() -> None:
    batch = make_batch(make_policy(), drift=0.3)
    unmerged = Batch(
        0,
        tuple(replace(e, rows=tuple(part for row in e.rows for part in unmerge(row))) for e in batch.episodes),
    )
    assert sum(len(e.rows) for e in unmerged.episodes) > sum(len(e.rows) for e in batch.episodes)
    job = _job(kl_coef=0.1, entropy_coef=0.1)
    merged_gradient, merged = _updated(job, batch)
    unmerged_gradient, plain = _updated(job, unmerged)
    assert torch.allclose(merged_gradient, unmerged_gradient, atol=1e-5)
    for name in ("actor/pg_loss", "actor/entropy", "actor/kl_loss", "actor/ppo_kl", "actor/pg_clipfrac"):
        assert merged[name] == pytest.approx(plain[name], abs=1e-5)


def test_micro_batches_change_nothing() -> None:
    batch = make_batch(make_policy(), drift=0.3)
    whole, _ = _updated(_job(), batch)
    cut, _ = _updated(_job(micro_batch_tokens=16), batch)
    assert torch.allclose(whole, cut, atol=1e-6)


def test_a_constant_group_moves_nothing_but_counts_in_the_mean() -> None:
    policy = make_policy()
    batch = make_batch(policy, episodes=4)
    assert len({episode.reward for episode in batch.episodes}) > 1
    constant = tuple(replace(e, episode_id=f"c{e.episode_id}", group="constant", reward=1.0) for e in batch.episodes)
    alone, metrics_alone = _updated(_job(), batch)
    diluted, metrics = _updated(_job(), Batch(0, batch.episodes + constant))
    assert torch.allclose(diluted, alone / 2, atol=1e-6)
    assert (metrics_alone["batch/constant_groups"], metrics["batch/constant_groups"]) == (0.0, 1.0)


def test_the_gradient_is_scaled_down_to_the_job_s_norm() -> None:
    policy = make_policy()
    batch = make_batch(policy)
    free, _ = _updated(_job(), batch)
    held, metrics = _updated(_job(max_grad_norm=0.01), batch)
    assert held.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert metrics["actor/grad_norm"] == pytest.approx(free.norm().item(), rel=1e-4)


@pytest.mark.parametrize("weighting", ["episode", "token"])
@pytest.mark.parametrize("size", [8, 7, 5])
def test_episodes_of_weight_0_change_neither_gradient_nor_metrics_nor_what_follows(size: int, weighting: str) -> None:
    job = _job(kl_coef=0.1, entropy_coef=0.1, epochs=2, minibatches=3, loss_weighting=weighting)
    batch = make_batch(make_policy(), episodes=size, drift=0.3)
    plain, expected = _updated(job, batch)
    empty = TrainRow((1, 2), (0, 0), (0.0, 0.0), (-1, -1))
    fillers = [TrainEpisode(f"filler/{n}", f"filler/{n}", 0.0, (empty,), weight=0.0) for n in range(3)]
    sampled = replace(batch.episodes[0], episode_id="sampled", group="alone", reward=9.0, weight=0.0)
    filled, metrics = _updated(job, replace(batch, episodes=(*batch.episodes, *fillers, sampled)))
    assert torch.equal(filled, plain)
    assert _untimed(metrics) == _untimed(expected)


def _untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.startswith("timing_s/") and "per_s" not in key}


def test_an_episode_of_weight_0_is_no_member_of_its_group() -> None:
    batch = make_batch(make_policy(), episodes=4, drift=0.3)
    extra = replace(batch.episodes[0], episode_id="extra", reward=50.0, weight=0.0)
    plain, _ = _updated(_job(), batch)
    joined, _ = _updated(_job(), Batch(0, (*batch.episodes, extra)))
    assert torch.equal(joined, plain)


def test_a_batch_without_any_weight_is_a_version_of_the_same_weights() -> None:
    policy = make_policy()
    before = _weights(policy)
    batch = make_batch(policy)
    weightless = replace(batch, episodes=tuple(replace(e, weight=0.0) for e in batch.episodes))
    metrics = LocalLearner(policy, _job(), {}).update(weightless)
    assert policy.version == 1
    assert all(torch.equal(value, before[name]) for name, value in _weights(policy).items())
    assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values())


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 10), st.integers(0, 99))
def test_an_episode_weighs_the_same_with_one_timeline_and_with_many(timelines: int, seed: int) -> None:
    """The same conversation, told `timelines` times, pulls no harder than when told once."""
    policy, rng = make_policy(), random.Random(seed)
    row = make_row(policy, rng, 2, drift=0.2)
    others = make_batch(policy, episodes=3, seed=seed, drift=0.2).episodes
    once = TrainEpisode("e", "g0", 2.5, (row,))
    told, _ = _updated(_job(), Batch(0, (once, *others)))
    often, _ = _updated(_job(), Batch(0, (replace(once, rows=(row,) * timelines), *others)))
    assert torch.allclose(told, often, atol=1e-5)


def test_every_epoch_makes_every_minibatch_s_step_without_dropping_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    learner = LocalLearner(policy, _job(epochs=3, minibatches=3), {})
    seen: list[list[int]] = []

    def watching(*asked: Any) -> Any:
        for chosen in minibatches(*asked):
            seen.append(chosen)
            yield chosen

    monkeypatch.setattr("swarm.backends.local.learning.learner.minibatches", watching)
    learner.update(make_batch(policy, episodes=8))
    for epoch in range(3):
        assert sorted(i for part in seen[3 * epoch : 3 * epoch + 3] for i in part) == list(range(8))
    assert seen[:3] != seen[3:6]
    learner.save(tmp_path / "c")
    steps = {value.item() for key, value in read(tmp_path / "c").sets["optimizer"].items() if key.endswith("/step")}
    assert steps == {9.0}
    assert learner.version == 1


@pytest.mark.parametrize("weighting", ["episode", "token"])
def test_each_optimiser_step_is_normalised_over_its_own_minibatch(
    weighting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(make_policy(), episodes=12)  # groups of four
    policy = make_policy()
    learner = LocalLearner(policy, _job(minibatches=2, learning_rate=1e-12, loss_weighting=weighting), {})
    halves = [list(range(4, 12)), list(range(4))]
    with monkeypatch.context() as patch:
        patch.setattr("swarm.backends.local.learning.learner.minibatches", lambda *_: iter(halves))
        learner.update(batch)
    alone, _ = _updated(_job(loss_weighting=weighting), replace(batch, episodes=batch.episodes[:4]))
    assert torch.allclose(_gradients(policy), alone, atol=1e-5)
    assert alone.abs().max() > 1e-3


def test_the_learner_sees_the_engine_s_probabilities() -> None:
    policy = make_policy("qwen3")
    batcher = Batcher(policy, slots=4, positions=64, seed=0)
    generations = [Generation([i, 2, 3], Sampling(max_tokens=8, temperature=0.8)) for i in range(8)]
    for generation in generations:
        batcher.add(generation)
    while batcher.busy:
        batcher.step()
    episodes = tuple(
        TrainEpisode(str(i), "g", float(i % 2), (_row(generation),)) for i, generation in enumerate(generations)
    )
    metrics = LocalLearner(policy, _job(temperature=0.8), {}).update(Batch(0, episodes))
    assert metrics["training/rollout_probs_diff_max"] < 1e-5
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == 0


def _row(generation: Generation) -> TrainRow:
    given, fresh = generation.prompt_length, generation.fresh
    return TrainRow(
        tuple(generation.ids),
        (0,) * given + (1,) * len(fresh),
        (0.0,) * given + tuple(token.logprob for token in fresh),
        (-1,) * given + tuple(token.version for token in fresh),
    )


def test_training_makes_the_rewarded_token_likely() -> None:
    policy = make_policy()
    learner = LocalLearner(policy, Job(learning_rate=3e-3), {})
    batcher = Batcher(policy, slots=32, positions=16, seed=0)
    prompt, wanted = [1, 2, 3], 7

    def likely() -> float:
        found = (forced_logprobs(policy, prompt, [i])[0] for i in range(wanted, VOCABULARY, 8))
        return sum(torch.tensor(logprob).exp().item() for logprob in found)

    assert likely() < 0.5
    for step in range(25):
        generations = [Generation(prompt.copy(), Sampling(max_tokens=1)) for _ in range(32)]
        for generation in generations:
            batcher.add(generation)
        while batcher.busy:
            batcher.step()
        episodes = tuple(
            TrainEpisode(str(i), "g", float(g.ids[-1] % 8 == wanted), (_row(g),)) for i, g in enumerate(generations)
        )
        learner.update(Batch(step, episodes))
    assert likely() > 0.9
    assert learner.version == 25


@pytest.mark.parametrize("fields", [{}, {"epochs": 3, "minibatches": 2}])
@pytest.mark.parametrize("poison", [float("nan"), -float("inf"), None])
def test_a_loss_or_gradient_that_is_not_finite_is_refused_and_changes_nothing(
    fields: dict[str, Any], poison: float | None
) -> None:
    policy, twin = make_policy(), make_policy()
    good = make_batch(policy)
    learner, untouched = LocalLearner(policy, _job(**fields), {}), LocalLearner(twin, _job(**fields), {})
    if fields:
        for each in (learner, untouched):
            each._minibatches = _spoiled_last  # type: ignore[method-assign]
    learner.update(good)
    untouched.update(good)
    before = _weights(policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objective, "loss", _poisoned(poison))
        with pytest.raises(BackendError, match="refused"):
            learner.update(good)
    assert learner.version == 1
    assert all(torch.equal(value, before[name]) for name, value in _weights(policy).items())
    learner.update(good)
    untouched.update(good)
    assert all(torch.equal(value, _weights(twin)[name]) for name, value in _weights(policy).items())


def _poisoned(poison: float | None) -> Callable[..., torch.Tensor]:
    """Objective.loss, times `poison` wherever the first episode is among the tokens; None is in the gradient alone."""
    plain = Objective.loss

    def loss(self: Objective, every: torch.Tensor, tokens: Tokens, *others: Any) -> torch.Tensor:
        found = plain(self, every, tokens, *others)
        if not (tokens.episodes == 0).any():
            return found
        return found + (0 * every).sum().sqrt() if poison is None else found * poison

    return loss


def _spoiled_last(episodes: int) -> Iterator[list[int]]:
    return iter([list(range(1, episodes)), [0]])


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(BackendError, match="found none"):
        LocalLearner(make_policy(), _job(), {}).update(Batch(0, ()))


def _learn(policy: Policy, learner: LocalLearner, batcher: Batcher, steps: int) -> list[list[int]]:
    answers = []
    for _ in range(steps):
        generations = [Generation([i, 5], Sampling(max_tokens=4)) for i in range(8)]
        for generation in generations:
            batcher.add(generation)
        while batcher.busy:
            batcher.step()
        answers += [generation.ids for generation in generations]
        episodes = (
            TrainEpisode(str(i), str(i // 4), float(g.ids[-1] % 2), (_row(g),)) for i, g in enumerate(generations)
        )
        learner.update(Batch(0, tuple(episodes)))
    return answers


def _parts(job: Job) -> tuple[Policy, LocalLearner, Batcher]:
    policy = make_policy()
    batcher = Batcher(policy, slots=3, positions=32, seed=job.seed)
    return policy, LocalLearner(policy, job, {"sampling": batcher.generator}), batcher


@pytest.mark.parametrize("fields", [{}, {"epochs": 2, "minibatches": 2, "kl_coef": 0.1, "weight_decay": 0.1}])
def test_training_resumed_from_a_checkpoint_continues_bit_for_bit(fields: dict[str, Any], tmp_path: Path) -> None:
    job = _job(**fields)
    straight = _parts(job)
    _learn(*straight, 2)
    straight[1].save(tmp_path / "step-2")
    expected = _learn(*straight, 2)
    resumed = _parts(job)
    resumed[1].load(tmp_path / "step-2")
    assert resumed[1].version == 2
    assert _learn(*resumed, 2) == expected
    assert all(torch.equal(value, _weights(straight[0])[name]) for name, value in _weights(resumed[0]).items())


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    LocalLearner(make_policy("qwen3"), _job(), {}).save(tmp_path / "c")
    policy = make_policy()
    before = _weights(policy)
    with pytest.raises(BackendError, match="another model"):
        LocalLearner(policy, _job(), {}).load(tmp_path / "c")
    assert all(torch.equal(value, before[name]) for name, value in _weights(policy).items())


def test_metrics_bear_verl_s_names_and_are_finite() -> None:
    policy = make_policy()
    metrics = LocalLearner(policy, _job(kl_coef=0.1), {}).update(make_batch(policy))
    assert set(metrics) >= {
        "actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac", "actor/entropy", "actor/grad_norm", "actor/kl_loss",
        "actor/lr", "critic/advantages/mean", "critic/advantages/max", "critic/advantages/min",
        "training/rollout_probs_diff_mean", "training/rollout_probs_diff_max", "batch/constant_groups",
        "timing_s/update_actor", "timing_s/ref", "tokens/trained", "tokens/forward", "tokens/trained_per_s",
    }  # fmt: skip
    assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values())
