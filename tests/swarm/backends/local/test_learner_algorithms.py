"""The learner under every algorithm and every way to train: it learns what is rewarded, and resumes exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.local.checkpoint import read
from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.policy import Policy, add_adapter
from swarm.backends.protocols import Batch, TrainEpisode
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.timelines.node import TrainRow
from tests.swarm.backends.local.models import VOCABULARY, make_batch, make_model, same_weights, weights_of

_PROMPT = (1, 2, 3)
_WAYS: tuple[Mapping[str, Any], ...] = (
    {"lora_rank": 4, "learning_rate": 2e-2},
    {"dtype": "bfloat16"},
    {"gradient_checkpointing": True, "lora_rank": 4, "dtype": "bfloat16", "learning_rate": 2e-2},
    {"epochs": 2, "minibatches": 3},
    {"epochs": 2, "minibatches": 2, "max_staleness": 1},
    {"max_staleness": 1, "rollout_correction": "mask", "kl_coef": 0.01, "lora_rank": 4, "learning_rate": 2e-2},
    {"lr_schedule": "cosine", "lr_warmup_steps": 3, "steps": 60, "entropy_coef": 0.01},
)


def _job(**fields: Any) -> Job:
    return Job(**{"learning_rate": 3e-3, **fields})


def _policy(job: Job) -> Policy:
    torch.set_num_threads(1)
    model = make_model().to(getattr(torch, job.dtype))
    if job.lora_rank:
        add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    return Policy(model)


@torch.no_grad()
def _distribution(policy: Policy) -> torch.Tensor:
    """Log-probs (V,) of the token after the prompt."""
    features = policy.features(torch.tensor([_PROMPT]), use_cache=False)
    return policy.head(features[0, -1:])[0].log_softmax(-1)


def _batch(policy: Policy, draws: torch.Generator) -> Batch:
    logprobs = _distribution(policy)
    answers = torch.multinomial(logprobs.exp(), 32, replacement=True, generator=draws).tolist()
    rows = (
        TrainRow((*_PROMPT, a), (0, 0, 0, 1), (0.0, 0.0, 0.0, logprobs[a].item()), (-1, -1, -1, policy.version))
        for a in answers
    )
    return Batch(0, tuple(TrainEpisode(str(i), str(i // 8), float(r.ids[-1] % 2), (r,)) for i, r in enumerate(rows)))


@pytest.mark.parametrize("fields", [{}, {"algorithm": "gspo"}, *_WAYS], ids=str)
def test_training_makes_the_rewarded_tokens_likely(fields: dict[str, Any]) -> None:
    job = _job(**fields)
    policy = _policy(job)
    learner, draws = LocalLearner(policy, job, {}), torch.Generator().manual_seed(0)

    def likely() -> float:
        return float(_distribution(policy).exp()[range(1, VOCABULARY, 2)].sum())

    assert likely() < 0.6
    while likely() < 0.9 and policy.version < 20:
        learner.update(_batch(policy, draws))
    assert likely() > 0.9


def _courses(policy: Policy, learner: LocalLearner, updates: int) -> list[dict[str, float]]:
    """Learn from batches that depend on nothing but the weights; return the metrics without the clock's."""
    found = [learner.update(make_batch(policy, seed=policy.version, drift=0.05)) for _ in range(updates)]
    return [{k: v for k, v in each.items() if not k.startswith("timing_s/") and "per_s" not in k} for each in found]


@pytest.mark.parametrize(
    "fields",
    [
        *_WAYS,  # no algorithm keeps anything from one update to the next
        {"algorithm": "reinforce_pp_baseline", "epochs": 2, "minibatches": 2},
        {"kl_coef": 0.1, "weight_decay": 0.1, "lr_schedule": "linear", "lr_warmup_steps": 2, "steps": 5},
    ],
    ids=str,
)
@pytest.mark.slow
def test_training_resumed_from_a_checkpoint_is_the_same_bit_for_bit(fields: dict[str, Any], tmp_path: Path) -> None:
    job = _job(**fields)
    straight, resumed = _policy(job), _policy(job)
    learner, again = LocalLearner(straight, job, {}), LocalLearner(resumed, job, {})
    _courses(straight, learner, 2)
    learner.save(tmp_path / "c")
    expected = _courses(straight, learner, 2)
    again.load(tmp_path / "c")
    assert resumed.version == 2
    assert _courses(resumed, again, 2) == expected
    assert same_weights(weights_of(straight), weights_of(resumed))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_checkpoint_of_another_rank_is_refused_in_one_line(rank: int, tmp_path: Path) -> None:
    job, other = _job(lora_rank=4), _job(lora_rank=rank)
    LocalLearner(_policy(job), job, {}).save(tmp_path / "c")
    policy = _policy(other)
    before = weights_of(policy)
    with pytest.raises(BackendError, match=rf"lora_rank 4, the job of {rank}") as refusal:
        LocalLearner(policy, other, {}).load(tmp_path / "c")
    assert "\n" not in str(refusal.value)
    assert same_weights(weights_of(policy), before)


def test_an_adapter_learns_what_its_base_keeps_still_for_and_a_checkpoint_holds_it_alone(tmp_path: Path) -> None:
    job = _job(lora_rank=4)
    policy = _policy(job)
    before, learner = weights_of(policy), LocalLearner(policy, job, {})
    learner.update(make_batch(policy))
    learner.save(tmp_path / "c")
    assert all(".lora_" in name for name in read(tmp_path / "c").sets["model"])
    moved = {name for name, weight in policy.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved
    assert all(".lora_B" in name for name in moved), "at B = 0 the gradient of A is zero"


def test_the_step_size_of_an_update_is_the_schedule_s_at_its_version() -> None:
    job = _job(lr_schedule="linear", lr_warmup_steps=2, steps=4, learning_rate=0.01)
    policy = _policy(job)
    learner = LocalLearner(policy, job, {})
    before = weights_of(policy)
    rates = [learner.update(make_batch(policy))["actor/lr"]]
    assert same_weights(weights_of(policy), before)
    rates += [learner.update(make_batch(policy))["actor/lr"] for _ in range(3)]
    assert rates == pytest.approx([0.0, 0.005, 0.01, 0.005])


@pytest.mark.parametrize("merging", ["linear", "tree"])
def test_recomputation_learns_the_same_weights(merging: str) -> None:
    weights = []
    for thrifty in (False, True):
        job = _job(gradient_checkpointing=thrifty, kl_coef=0.1, merging=merging)
        policy = _policy(job)
        LocalLearner(policy, job, {}).update(make_batch(policy, drift=0.2))
        weights.append(torch.cat([weight.flatten() for weight in policy.model.parameters()]))
    assert torch.equal(*weights)


def test_the_tokens_of_an_update_are_counted() -> None:
    for fields in ({}, {"epochs": 3}):
        job = _job(**fields, merging="linear", micro_batch_tokens=16)
        policy = _policy(job)
        batch = make_batch(policy)
        metrics = LocalLearner(policy, job, {}).update(batch)
        rows = [row for episode in batch.episodes for row in episode.rows]
        assert metrics["tokens/trained"] == sum(sum(row.sampled) for row in rows)
        fed = sum(max(t for t, flag in enumerate(row.sampled) if flag) for row in rows)
        assert metrics["tokens/forward"] >= job.epochs * fed
        assert metrics["tokens/forward"] < job.epochs * fed * 1.3


def test_learning_draws_from_no_generator_but_its_own() -> None:
    job = _job(epochs=2, minibatches=2)
    policy = _policy(job)
    before = torch.get_rng_state()
    LocalLearner(policy, job, {}).update(make_batch(policy))
    assert torch.equal(torch.get_rng_state(), before)
