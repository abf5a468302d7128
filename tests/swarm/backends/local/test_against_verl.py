"""Every formula against verl's own function, in values and gradients; where we differ on purpose, a test says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from swarm.algorithms import losses
from swarm.algorithms.advantages import advantages
from swarm.algorithms.losses import token_weights
from swarm.algorithms.objective import UpdateSums
from swarm.algorithms.rows import Tokens
from swarm.job import Job
from tests.lazily import lazy
from tests.swarm.algorithms.factories import loss_of

protocol = lazy("verl.protocol")
algorithm_config = lazy("verl.trainer.config.algorithm")
core_algos = lazy("verl.trainer.ppo.core_algos")
rollout_corr_helper = lazy("verl.trainer.ppo.rollout_corr_helper")
debug = lazy("verl.utils.debug.metrics")
configs = lazy("verl.workers.config")
_SEEDS = range(2)
_VOCABULARY = 9
_MODES = {"seq-mean-token-mean": {}, "token-mean": {"loss_weighting": "token"}}
_ESTIMATORS = {
    "grpo": "compute_grpo_outcome_advantage",
    "dr_grpo": "compute_grpo_outcome_advantage",
    "gspo": "compute_grpo_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "reinforce_pp": "compute_reinforce_plus_plus_outcome_advantage",
    "reinforce_pp_baseline": "compute_reinforce_plus_plus_baseline_outcome_advantage",
}


@dataclass(frozen=True)
class _Padded:
    """A batch as verl has it: (B, R), and rewards, groups (B,). Right of each row's answer all is noise."""

    mask: Tensor
    logits: Tensor
    targets: Tensor
    rollout: Tensor
    proximal: Tensor
    rewards: Tensor
    groups: np.ndarray[Any, Any]

    @property
    def counts(self) -> list[int]:
        return [int(count) for count in self.mask.sum(1)]

    @property
    def present(self) -> Tensor:
        return self.logits.log_softmax(-1).gather(-1, self.targets[..., None])[..., 0]

    @property
    def token_rewards(self) -> Tensor:
        found = torch.zeros_like(self.mask)
        found[torch.arange(len(found)), self.mask.sum(1).long() - 1] = self.rewards
        return found

    def flat(self, values: Tensor) -> Tensor:
        return values[self.mask.bool()]

    def wide(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[:, None] * self.mask

    def tokens(self, advantages: list[float], weights: list[float], *, proximal: bool) -> Tokens:
        each = torch.arange(len(self.mask))[:, None].expand(self.mask.shape)
        return Tokens(
            targets=self.flat(self.targets),
            rollout=self.flat(self.rollout),
            versions=torch.zeros(sum(self.counts), dtype=torch.long),
            proximal=self.flat(self.proximal) if proximal else None,
            advantages=self.flat(self.wide(advantages)),
            weights=self.flat(self.wide(weights)),
            episodes=self.flat(each),
        )


def _made(seed: int, *, rows: int = 12, width: int = 11, drift: float = 0.4, group: int = 4) -> _Padded:
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    logits, targets = noise(rows, width, _VOCABULARY), torch.randint(_VOCABULARY, (rows, width), generator=generator)
    present = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    proximal = present + drift * noise(rows, width)
    return _Padded(
        mask=(torch.arange(width)[None] < lengths[:, None]).double(), logits=logits, targets=targets,
        rollout=proximal + drift * noise(rows, width), proximal=proximal, rewards=noise(rows),
        groups=np.array([f"g{i // group}" for i in range(rows)]),
    )  # fmt: skip


def _ours(batch: _Padded, job: Job) -> list[float]:
    return advantages(job, batch.rewards.tolist(), batch.groups.tolist(), batch.counts)


def _theirs(batch: _Padded, algorithm: str, *, normalize: bool = True) -> Tensor:
    known = {"index": batch.groups} if algorithm != "reinforce_pp" else {}
    if algorithm in {"grpo", "gspo", "dr_grpo"}:
        known["norm_adv_by_std_in_grpo"] = normalize and algorithm != "dr_grpo"
    found: Tensor = getattr(core_algos, _ESTIMATORS[algorithm])(
        token_level_rewards=batch.token_rewards,
        response_mask=batch.mask,
        config=algorithm_config.AlgoConfig(gamma=1.0),
        **known,
    )[0]
    return found


def _config(job: Job) -> Any:
    return configs.FSDPActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=4, clip_ratio=job.clip_ratio,
        clip_ratio_low=job.clip_ratio, clip_ratio_high=job.clip_ratio_high or job.clip_ratio,
        clip_ratio_c=job.dual_clip or 1e9,
        policy_loss=configs.PolicyLossConfig(loss_mode="gspo" if job.algorithm == "gspo" else "vanilla"),
    )  # fmt: skip


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("algorithm", list(_ESTIMATORS))
def test_advantages(algorithm: str, normalize: bool, seed: int) -> None:
    batch = _made(seed)
    found = batch.wide(_ours(batch, Job(algorithm=algorithm, normalize_advantage=normalize)))
    assert torch.allclose(found, _theirs(batch, algorithm, normalize=normalize), atol=1e-6)


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "rloo"])
def test_a_group_of_one_has_no_advantage_where_verl_s_is_its_reward(algorithm: str) -> None:
    batch = _made(0, rows=3, group=1)
    assert _ours(batch, Job(algorithm=algorithm)) == [0.0] * 3
    scale = 1 + 1e-6 if algorithm == "grpo" else 1.0
    assert torch.allclose(_theirs(batch, algorithm)[:, 0], batch.rewards / scale)


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"])
def test_token_weights_are_the_aggregation_modes(mode: str, seed: int) -> None:
    batch = _made(seed)
    fields = {"algorithm": "dr_grpo", "max_context": 77} if mode == "seq-mean-token-sum-norm" else _MODES[mode]
    weights = token_weights(Job(**fields), batch.counts, [1.0] * len(batch.counts))
    ours = (batch.wide(weights) * batch.proximal).sum()
    theirs = core_algos.agg_loss(batch.proximal, batch.mask, mode, loss_scale_factor=77)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_an_episode_without_tokens_counts_in_the_mean_where_verl_leaves_it_out(mode: str) -> None:
    batch = _made(0)
    batch.mask[3] = 0
    fields = {"algorithm": "dr_grpo", "max_context": 16} if mode == "seq-mean-token-sum-norm" else _MODES[mode]
    weights = token_weights(Job(**fields), batch.counts, [1.0] * 12)
    theirs = core_algos.agg_loss(batch.proximal, batch.mask, mode, loss_scale_factor=16).item()
    assert (batch.wide(weights) * batch.proximal).sum().item() == pytest.approx(theirs * 11 / 12, abs=1e-6)


_LOSSES: list[dict[str, Any]] = [
    {"clip_ratio": 0.2},
    {"clip_ratio": 0.1, "clip_ratio_high": 0.4},
    {"clip_ratio": 0.2, "dual_clip": 1.3},
    {"algorithm": "gspo", "clip_ratio": 0.05, "clip_ratio_high": 0.1},
]


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("mode", list(_MODES))
@pytest.mark.parametrize("correction", ["off", "truncate", "mask"])
@pytest.mark.parametrize("fields", _LOSSES)
def test_the_policy_loss_and_its_gradient(fields: Mapping[str, Any], correction: str, mode: str, seed: int) -> None:
    job = Job(
        **{**fields, **_MODES[mode]}, rollout_correction=correction, correction_cap=1.5, epochs=2, max_staleness=1
    )
    batch = _made(seed)
    values = _ours(batch, job)
    tokens = batch.tokens(values, token_weights(job, batch.counts, [1.0] * 12), proximal=True)
    ours, theirs = batch.logits.clone().requires_grad_(), batch.logits.clone().requires_grad_()
    sums = UpdateSums(0, job.correction_cap)
    loss = loss_of(job, batch.flat(ours.log_softmax(-1)), tokens, None, sums)
    sums.steps = 1
    weights = None
    if correction != "off":
        threshold = 1.5 if correction == "truncate" else f"{1 / 1.5}_1.5"
        weights, _ = rollout_corr_helper.compute_rollout_correction_weights(
            batch.proximal - batch.rollout, batch.mask, rollout_is_threshold=threshold
        )
    expected, metrics = core_algos.get_policy_loss_fn("gspo" if job.algorithm == "gspo" else "vanilla")(
        old_log_prob=batch.rollout if correction == "off" else batch.proximal,
        log_prob=theirs.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0], advantages=batch.wide(values),
        response_mask=batch.mask, loss_agg_mode=mode, config=_config(job), rollout_is_weights=weights,
    )  # fmt: skip
    torch.autograd.backward([loss, expected])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(_gradient(ours), _gradient(theirs), atol=1e-6)
    found = sums.metrics()
    assert found["actor/pg_loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert {name: found[name] for name in metrics} == pytest.approx(metrics, abs=1e-6)
    assert metrics["actor/pg_clipfrac"] > 0


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("bound", [50.0, -50.0])
@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_ratios_are_held_as_verl_holds_them(algorithm: str, bound: float) -> None:
    job = Job(algorithm=algorithm, rollout_correction="off")
    old, present = torch.zeros(1, 3, dtype=torch.float64), torch.full((1, 3), bound, dtype=torch.float64)
    advantage, mask = -torch.ones(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    expected, _ = core_algos.get_policy_loss_fn("gspo" if algorithm == "gspo" else "vanilla")(
        old, present, advantage, mask, "token-mean", _config(job)
    )
    ratio = losses.token_log_ratio(present[0], old[0])
    if algorithm == "gspo":
        ratio = losses.sequence_log_ratio(present[0], (present - old)[0])
    found = losses.ppo_surrogate(ratio, advantage[0], 0.2, 0.2).loss.mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_divergence_and_its_gradient(estimator: Any, seed: int) -> None:
    batch = _made(seed)
    ours, theirs = batch.proximal.clone().requires_grad_(), batch.proximal.clone().requires_grad_()
    found = losses.divergence(ours, batch.rollout, estimator)
    expected = core_algos.kl_penalty(theirs, batch.rollout, estimator)
    assert torch.allclose(found, expected, atol=1e-6)
    torch.autograd.backward([(found * batch.mask).sum(), (expected * batch.mask).sum()])
    assert torch.allclose(_gradient(ours), _gradient(theirs), atol=1e-6)


def test_k3_has_a_gradient_far_from_the_reference_where_verl_s_has_none() -> None:
    ours, theirs = (torch.tensor([-6.0], requires_grad=True) for _ in range(2))
    reference = torch.tensor([-2.0])
    found, expected = losses.divergence(ours, reference, "k3"), core_algos.kl_penalty(theirs, reference, "k3")
    torch.autograd.backward([found.sum(), expected.sum()])
    assert (expected.item(), found.item()) == (10.0, pytest.approx(math.exp(4) - 5))
    assert _gradient(theirs).item() == 0
    assert _gradient(ours).item() == pytest.approx(1 - math.exp(4))


def test_kl_and_entropy_add_to_the_loss_as_verl_adds_them() -> None:
    job = Job(kl_coef=0.3, entropy_coef=0.2, epochs=2, max_staleness=1, rollout_correction="mask", correction_cap=1.1)
    batch = _made(1)
    values = [0.0] * 12
    tokens = batch.tokens(values, token_weights(job, batch.counts, [1.0] * 12), proximal=True)
    sums, reference = UpdateSums(0, 1.1), batch.rollout - 0.2
    loss = loss_of(job, batch.flat(batch.logits.log_softmax(-1)), tokens, batch.flat(reference), sums)
    mode = "seq-mean-token-mean"
    divergence = core_algos.agg_loss(core_algos.kl_penalty(batch.present, reference, "k3"), batch.mask, mode)
    entropy = core_algos.compute_entropy_loss(batch.logits, batch.mask, mode)
    assert loss.item() == pytest.approx((0.3 * divergence - 0.2 * entropy).item(), abs=1e-6)
    sums.steps = 1
    assert sums.metrics()["actor/kl_loss"] == pytest.approx(divergence.item(), abs=1e-6)
    assert sums.metrics()["actor/entropy"] == pytest.approx(entropy.item(), abs=1e-6)


def _metrics(job: Job, batch: _Padded, *, proximal: bool) -> Mapping[str, float]:
    tokens, sums = batch.tokens([1.0] * 12, [0.1] * 12, proximal=proximal), UpdateSums(0, job.correction_cap)
    sums.steps = int(proximal)
    loss_of(job, batch.flat(batch.logits.log_softmax(-1)), tokens, None, sums)
    return sums.metrics()


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("correction", ["truncate", "mask"])
def test_the_metrics_of_the_mismatch(correction: Any, seed: int) -> None:
    cap, batch = 1.5, _made(seed)
    job = Job(epochs=2, max_staleness=1, rollout_correction=correction, correction_cap=cap)
    found = _metrics(job, batch, proximal=True)
    threshold = cap if correction == "truncate" else f"{1 / cap}_{cap}"
    _, _, expected = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
        batch.proximal, batch.rollout, batch.mask, rollout_is="token", rollout_is_threshold=threshold
    )
    ours = {name for name in found if name.startswith("rollout_corr/")}
    assert ours - set(expected) == {"rollout_corr/rollout_rs_masked_fraction"} | (
        {"rollout_corr/rollout_is_oob_ratio"} if correction == "truncate" else set()
    )
    assert {name: found[name] for name in ours & set(expected)} == pytest.approx(
        {name: expected[name] for name in ours & set(expected)}, abs=1e-6, rel=1e-6
    )
    outside = found["rollout_corr/rollout_is_oob_ratio"]
    assert outside > 0
    masked = outside if correction == "mask" else 0
    assert found["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(masked)


@pytest.mark.parametrize("seed", _SEEDS)
def test_the_metrics_of_the_probabilities(seed: int) -> None:
    batch = _made(seed)
    found = _metrics(Job(), batch, proximal=False)
    data = {"rollout_log_probs": batch.rollout, "old_log_probs": batch.present, "response_mask": batch.mask}
    expected = debug.calculate_debug_metrics(protocol.DataProto.from_dict(tensors={**data, "responses": batch.targets}))
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
