"""Functions of verl's that a job names: what is refused, and that losses and advantages are what they compute."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from swarm.algorithms.rows import flatten_tokens
from swarm.backends.protocols import CallReward
from swarm.backends.verl import adapter
from swarm.backends.verl.learner import RowPartition
from swarm.backends.verl.worker import ObjectiveLoss, VerlLoss
from swarm.job import Job, TinyModel
from swarm.rendering.messages import BackendError
from swarm.verl_config import CORRECTIONS, ESTIMATORS, POLICY_LOSSES
from tests.lazily import lazy
from tests.swarm.backends.conformance.cluster_kind import exported
from tests.swarm.backends.local.models import make_batch
from tests.swarm.backends.verl.learning import conftest as support
from tests.swarm.backends.verl.learning.conftest import Ranks
from tests.swarm.backends.verl.learning.test_contract import engine_output, make_rows, make_table

pytest.importorskip("tensordict", reason="tensordict comes with verl, which is not installed here")

core_algos = lazy("verl.trainer.ppo.core_algos")
algorithm = lazy("verl.trainer.config.algorithm")
helper = lazy("verl.trainer.ppo.rollout_corr_helper")
actor = lazy("verl.workers.config.actor")

pytestmark = pytest.mark.timeout(240)
_THERE = [name for name, each in ESTIMATORS.items() if not each.refused]
_LOSSES = [name for name, each in POLICY_LOSSES.items() if not each.refused]
_CORRECTIONS = [name for name, each in CORRECTIONS.items() if not each.refused]
_BYPASS = [name for name in _CORRECTIONS if CORRECTIONS[name].bypasses]
_DECOUPLED = [name for name in _CORRECTIONS if name not in _BYPASS]


def _job(verl: dict[str, Any], **fields: Any) -> Job:
    return Job(**{"backend": "verl", "learning_rate": 1e-3, "verl": verl, **fields})


def _refused(verl: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        _job(verl, **fields)
    (error,) = refused.value.errors()
    assert "\n" not in error["msg"]
    return str(error["msg"])


_CLEAR: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"advantage_estimator": "gae"}, {}, "verl.advantage_estimator: .*gae needs a critic, .* take a baseline"),
    ({"policy_loss": "dro"}, {}, "verl.policy_loss: .*dro needs a dro_beta, .* take cispo instead"),
    ({"rollout_correction": "bypass_pg_is"}, {}, "verl.rollout_correction: .*take bypass_pg_token_icepop"),
    *[({kind: "grop"}, {}, f"verl.{kind}: expected one of {', '.join(there)}; found 'grop'") for kind, there in (
        ("advantage_estimator", _THERE), ("policy_loss", _LOSSES), ("rollout_correction", _CORRECTIONS))],
    *[({kind: name}, fields, f"{next(iter(fields))} .* means nothing with verl.{kind} {name}: leave one of the two out")
      for kind, name, fields in (
        ("advantage_estimator", "opo", {"algorithm": "rloo"}),
        ("advantage_estimator", "rloo", {"normalize_advantage": False}),
        ("policy_loss", "vanilla", {"algorithm": "gspo"}), ("policy_loss", "sapo", {"algorithm": "dr_grpo"}),
        ("policy_loss", "sapo", {"loss_weighting": "token"}), ("policy_loss", "sapo", {"clip_ratio": 0.1}),
        ("policy_loss", "gpg", {"clip_ratio_high": 0.3}), ("policy_loss", "cispo", {"dual_clip": 3.0}),
        ("rollout_correction", "decoupled_seq_is", {"rollout_correction": "mask"}),
        ("rollout_correction", "decoupled_seq_is", {"correction_cap": 3.0}),
        ("rollout_correction", "bypass_pg_token_icepop", {"clip_ratio": 0.1}),
        ("rollout_correction", "bypass_pg_token_icepop", {"dual_clip": 3.0}),
        ("rollout_correction", "bypass_ppo_clip", {"algorithm": "gspo"}))],
    ({"policy_loss": "cispo", "rollout_correction": "bypass_ppo_clip"}, {}, "verl.policy_loss 'cispo'.*decoupled_"),
]  # fmt: skip


@pytest.mark.parametrize(("verl", "fields", "said"), _CLEAR, ids=str)
def test_what_is_not_here_or_would_mean_nothing_is_refused_with_what_to_take(
    verl: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    assert re.search(said, _refused(verl, **fields))


def test_jobs_keep_their_digests_are_read_from_records_and_go_on_only_under_the_same_names() -> None:
    plain = _job({"trainers": 2})
    assert Job.from_record({"backend": "verl"}).model == TinyModel(head_size=16)
    assert not {"advantage_estimator", "policy_loss", "rollout_correction"} & set(plain.value()["verl"])
    for verl in ({"advantage_estimator": "opo"}, {"policy_loss": "cispo"}, {"rollout_correction": "disabled"}):
        named = _job({**verl, "trainers": 2})
        assert Job.from_record(named.model_dump_json()) == Job.from_record(named.canonical()) == named
        assert named.continues(_job(verl))
        assert not named.continues(_job({}))
        assert not _job({}).continues(named)


def test_the_names_are_verl_s() -> None:
    pytest.importorskip("verl")
    every: Iterable[Any] = core_algos.AdvantageEstimator
    assert set(ESTIMATORS) == set(core_algos.ADV_ESTIMATOR_REGISTRY) == {each.value for each in every}
    assert set(POLICY_LOSSES) == set(core_algos.POLICY_LOSS_REGISTRY)
    presets = {name for name, each in vars(algorithm.RolloutCorrectionConfig).items() if isinstance(each, classmethod)}
    assert set(CORRECTIONS) == presets
    bypass = {name for name, each in CORRECTIONS.items() if each.bypasses}
    assert {name for name in presets if getattr(algorithm.RolloutCorrectionConfig, name)().bypass_mode} == bypass


class Padded:
    """Tokens as verl has them, (E, R): a row for each episode, of the tokens sampled in it."""

    def __init__(self, episodes: Tensor) -> None:
        self._places = [(episodes == number).nonzero()[:, 0] for number in episodes.unique().tolist()]
        self.mask = self(torch.ones_like(episodes))
        self.groups = np.array([f"g{number // 4}" for number in range(len(self._places))])

    def __call__(self, values: Tensor) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([values[places] for places in self._places], batch_first=True)


def _policy_loss(job: Job, name: str, padded: Padded, own: slice = slice(None), **tensors: Tensor | None) -> Tensor:
    """verl's loss of some rows (E, R), added up as the job says."""
    mode = "token-mean" if job.loss_weighting == "token" else "seq-mean-token-mean"
    mode = "seq-mean-token-sum-norm" if job.algorithm == "dr_grpo" else mode
    mask = padded.mask[own]
    preset = job.verl.rollout_correction or "disabled"
    config = actor.ActorConfig(
        strategy="fsdp2", rollout_n=job.group_size, use_dynamic_bsz=True, clip_ratio=job.clip_ratio,
        clip_ratio_low=job.clip_ratio,
        clip_ratio_high=job.clip_ratio if job.clip_ratio_high is None else job.clip_ratio_high,
        clip_ratio_c=1e6 if job.dual_clip is None else job.dual_clip, loss_agg_mode=mode,
        policy_loss=actor.PolicyLossConfig(
            loss_mode=name, rollout_correction=getattr(algorithm.RolloutCorrectionConfig, preset)()
        ),
        global_batch_info={
            "dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask),
            "loss_scale_factor": job.max_context,
        },
    )  # fmt: skip
    chosen = {key: None if value is None else value[own] for key, value in tensors.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        found: Tensor = core_algos.get_policy_loss_fn(name)(
            **{"response_mask": mask, "loss_agg_mode": mode, "config": config, **chosen}
        )[0]
    return found


class Case:
    """Rows under the policy that a table of logits is, and what verl makes of them."""

    def __init__(self, job: Job, *, drift: float = 0.5, weights: Sequence[float] = (1.0,) * 6) -> None:
        self.job = job
        self.rows, self.advantages, self.weights = make_rows(1, job, weights)
        self.table = make_table()
        given = torch.cat([row.ids[row.places] for row in self.rows])
        targets = torch.cat([row.targets for row in self.rows])
        self.present = self.table[given].log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        noise = torch.randn(len(targets), generator=torch.Generator().manual_seed(2))
        counts = [len(row.targets) for row in self.rows]
        rollout = (self.present.detach() + drift * noise).split(counts)
        for number, (row, own) in enumerate(zip(self.rows, rollout, strict=True)):
            row.rollout = own if number % 2 or drift < 1 else self.present.detach().split(counts)[number] - 1e-5
        self.tokens = flatten_tokens(self.rows, self.advantages, self.weights, torch.device("cpu"))
        self.padded = Padded(self.tokens.episodes)
        self.old, self.rollout = self.padded(self.present.detach()), self.padded(self.tokens.rollout)

    def expected(self, name: str, **tensors: Tensor | None) -> Tensor:
        common = {"log_prob": self.padded(self.present), "advantages": self.padded(self.tokens.advantages)}
        return _policy_loss(self.job, name, self.padded, **{**common, "rollout_is_weights": None, **tensors})

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, self.table, retain_graph=True)[0]

    def found(self, parts: int) -> tuple[Tensor, float]:
        """The gradient of our loss cut into so many micro-batches, and what it adds up to."""
        loss = (ObjectiveLoss if self.job.verl.loss is None else VerlLoss)(self.job, 2)
        found = torch.zeros_like(self.table)
        [own] = zip(*RowPartition(self.rows, parts, 4096).batches(self.advantages, self.weights), strict=True)
        for batch in own:
            batch.set_non_tensor("dp_size", 1)
            table = make_table()
            found += torch.autograd.grad(loss(engine_output(table, batch), batch)[0], table)[0]
        loss.sums.steps = 1
        return found, loss.sums.metrics()["actor/pg_loss"]

    def agrees(self, expected: Tensor, parts: int) -> None:
        gradient, value = self.found(parts)
        assert value == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
        assert torch.allclose(gradient, self.gradient(expected), rtol=1e-4, atol=1e-5)
        assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("name", _THERE)
@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "plain"])
def test_advantages_are_those_of_verl_s_estimator(name: str, normalize: bool) -> None:
    if not normalize and not ESTIMATORS[name].normalizes:
        assert "normalize_advantage" in _refused({"advantage_estimator": name}, normalize_advantage=False)
        return
    made = _job({"advantage_estimator": name}, normalize_advantage=normalize)
    counts, values = [1 + number % 5 for number in range(12)], [number * 7 % 5 + number / 8 for number in range(12)]
    groups = [f"g{number // 4}" for number in range(12)]
    mask = (torch.arange(5) < torch.tensor(counts)[:, None]).long()
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(12), torch.tensor(counts) - 1] = torch.tensor(values)
    arguments = {"norm_adv_by_std_in_grpo": normalize} if "grpo" in name and name != "grpo_passk" else {}
    expected, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=rewards, response_mask=mask, index=np.array(groups, dtype=object),
        config=algorithm.AlgoConfig(norm_adv_by_std_in_grpo=normalize), **arguments,
    )  # fmt: skip
    found = torch.tensor(adapter.advantages(made, values, groups, counts))
    assert expected.abs().max() > 0.1
    assert torch.allclose(found[:, None] * mask, expected.float() * mask, atol=1e-6)


def test_of_a_group_of_one_pass_at_k_has_no_second() -> None:
    made = _job({"advantage_estimator": "grpo_passk"})
    pair = adapter.advantages(made, [1.0, 0.5], ["g", "g"], [2, 3])
    assert adapter.advantages(made, [1.0, 0.5, 5.0], ["g", "g", "alone"], [2, 3, 1]) == [*pair, 0.0]


_OTHER: dict[str, list[dict[str, Any]]] = {
    "vanilla": [
        {"loss_weighting": "token", "clip_ratio": 0.05, "clip_ratio_high": 0.1},
        {"dual_clip": 1.1},
        {"algorithm": "dr_grpo", "max_context": 128},
    ],
    "cispo": [{"loss_weighting": "token", "clip_ratio_high": 0.3}],
}
_CASES = [
    *[(name, {}, parts) for name in _LOSSES for parts in (1, 3)],
    *[(name, fields, 3) for name, every in _OTHER.items() for fields in every],
]


@pytest.mark.parametrize(("name", "fields", "parts"), _CASES, ids=str)
def test_the_gradient_is_that_of_verl_s_loss_however_it_is_cut(name: str, fields: dict[str, Any], parts: int) -> None:
    case = Case(_job({"policy_loss": name}, rollout_correction="off", **fields))
    case.agrees(case.expected(name, old_log_prob=case.rollout), parts)


@pytest.mark.parametrize("name", _LOSSES)
def test_verl_s_loss_is_told_the_job_s_correction_and_the_present_policy(name: str) -> None:
    case = Case(_job({"policy_loss": name}))
    factors = (case.old - case.rollout).exp().clamp(max=case.job.correction_cap)
    assert (factors == case.job.correction_cap).any()
    case.agrees(case.expected(name, old_log_prob=case.old, rollout_is_weights=factors), 2)


@pytest.mark.parametrize("name", _LOSSES)
def test_an_episode_s_loss_counts_by_its_weight(name: str) -> None:
    own = [0.5 + number % 3 for number in range(6)]
    case = Case(_job({"policy_loss": name}, rollout_correction="off"), weights=own)
    tensors = {
        "log_prob": case.padded(case.present), "advantages": case.padded(case.tokens.advantages),
        "old_log_prob": case.rollout,
    }  # fmt: skip
    losses = [_policy_loss(case.job, name, case.padded, slice(n, n + 1), **tensors) for n in range(6)]
    case.agrees((torch.stack(losses) * torch.tensor(own)).sum() / sum(own), 2)


@pytest.mark.parametrize(
    ("preset", "loss"),
    [*[(name, None) for name in _DECOUPLED]]
    + [(name, loss) for name in ("decoupled_seq_is_rs", "decoupled_token_icepop") for loss in ("sapo", "cispo")],
)
def test_a_decoupled_preset_weighs_as_verl_s_does(preset: str, loss: str | None) -> None:
    case = Case(_job({"rollout_correction": preset, "policy_loss": loss}), drift=1.2)
    config = getattr(algorithm.RolloutCorrectionConfig, preset)()
    weights, mask, metrics = helper.compute_rollout_correction_and_rejection_mask(
        case.old, case.rollout, case.padded.mask, rollout_is=config.rollout_is,
        rollout_is_threshold=config.rollout_is_threshold, rollout_rs=config.rollout_rs,
        rollout_rs_threshold=config.rollout_rs_threshold,
    )  # fmt: skip
    assert mask.sum() < case.padded.mask.sum() or config.rollout_rs is None
    factors = None if weights is None else weights.batch["rollout_is_weights"]
    found = adapter.correct_rollout(case.job, case.present.detach(), case.tokens.rollout, case.tokens.episodes)
    assert found.metrics == pytest.approx({name: float(value) for name, value in metrics.items()}, rel=1e-4)
    counts = [len(row.targets) for row in case.rows]
    for row, own, kept in zip(case.rows, found.factors.split(counts), found.kept.split(counts), strict=True):
        row.correction, row.kept = own, kept
    case.tokens = flatten_tokens(case.rows, case.advantages, case.weights, torch.device("cpu"))
    case.agrees(
        case.expected(loss or "vanilla", old_log_prob=case.old, rollout_is_weights=factors, response_mask=mask), 2
    )


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("preset", _BYPASS)
def test_a_bypassing_preset_is_verl_s_own_loss(preset: str, parts: int) -> None:
    case = Case(_job({"rollout_correction": preset}), drift=1.2)
    case.agrees(case.expected("bypass_mode", old_log_prob=case.rollout), parts)


def test_rewards_of_single_calls_are_refused_and_nothing_is_learned(ranks: Ranks, llama: Path) -> None:
    made = _job({"advantage_estimator": "rloo"})
    policy, _ = support.local(made)
    learner, batch = ranks.learner(llama, made, 1), make_batch(policy)
    calls = (CallReward(0, 1.0), CallReward(1, 0.0))
    with pytest.raises(BackendError, match=r"episode e0: .*verl\.advantage_estimator rloo"):
        learner.update(replace(batch, episodes=(replace(batch.episodes[0], call_rewards=calls), *batch.episodes[1:])))
    assert learner.version == 0
    learner.update(batch)


@pytest.mark.parametrize(
    "verl",
    [{"policy_loss": "vanilla"}, {"policy_loss": "cispo", "rollout_correction": "decoupled_seq_is_rs"}],
    ids=str,
)
def test_several_steps_learn_the_same_on_two_ranks_cut_small(verl: dict[str, Any], ranks: Ranks, llama: Path) -> None:
    fields = {"epochs": 2, "minibatches": 2}
    whole, cut = _job(verl, **fields), _job(verl, micro_batch_tokens=32, **fields)
    policy, _ = support.local(whole)
    batch, told = make_batch(policy, drift=0.3), []
    for made, world in ((whole, 1), (cut, 2)):
        learner = ranks.learner(llama, made, world)
        told.append([(dict(learner.update(batch)), exported(learner)) for _ in range(2)])
    expected, found = told
    for name in ("actor/pg_loss", "actor/grad_norm", "actor/ppo_kl", "actor/entropy"):
        assert found[0][0][name] == pytest.approx(expected[0][0][name], rel=1e-3, abs=10 * support.CLOSE), name
    gaps = torch.cat([(found[0][1][name] - value).abs().flatten() for name, value in expected[0][1].items()])
    assert (gaps > 10 * support.CLOSE).double().mean().item() < 1e-3
