"""Functions of verl's that a job names: what is refused, and that the learner computes what they do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from swarm.backends.protocols import Batch, CallReward
from swarm.backends.verl.adapter import advantages
from swarm.backends.verl.learner import VerlLearner
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.verl_config import CORRECTIONS, ESTIMATORS, POLICY_LOSSES
from tests.lazily import lazy
from tests.swarm.backends.local.models import make_batch
from tests.swarm.backends.verl.learning import support
from tests.swarm.backends.verl.learning.support import Ranks

core_algos = lazy("verl.trainer.ppo.core_algos")
algorithm = lazy("verl.trainer.config.algorithm")
helper = lazy("verl.trainer.ppo.rollout_corr_helper")
actor = lazy("verl.workers.config.actor")

pytestmark = pytest.mark.timeout(240)
_THERE = [name for name, each in ESTIMATORS.items() if not each.refused]
_BY_EPISODES = [name for name in _THERE if not ESTIMATORS[name].critic]
_LOSSES = [name for name, each in POLICY_LOSSES.items() if not each.refused]
_BYPASS = [name for name, each in CORRECTIONS.items() if each.loss is not None]
_DECOUPLED = [name for name in CORRECTIONS if name not in _BYPASS]


def _job(verl: dict[str, Any], **fields: Any) -> Job:
    return Job(**{"backend": "verl", "learning_rate": 1e-3, "verl": verl, **fields})


def _refused(verl: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        _job(verl, **fields)
    (error,) = refused.value.errors()
    assert "\n" not in error["msg"]
    return str(error["msg"])


@pytest.mark.parametrize(
    ("verl", "needs"),
    [
        ({"advantage_estimator": "remax"}, "remax needs the reward of a greedy answer to each task; take rloo instead"),
        ({"advantage_estimator": "optimal_token_baseline"}, "needs the sum of squared probabilities .* take opo"),
        ({"advantage_estimator": "tir_optimal_token_baseline"}, "needs the sum of squared probabilities .* take opo"),
        ({"advantage_estimator": "gdpo"}, "gdpo needs several rewards of each episode; take grpo instead"),
        ({"policy_loss": "dro"}, "dro needs a dro_beta, for which a job has no field; take cispo instead"),
        ({"policy_loss": "bypass_mode"}, "bypass_mode needs a rollout correction; take .* bypass_ppo_clip"),
    ],
    ids=str,
)
def test_what_needs_something_that_is_not_here_says_what_and_which_to_take(verl: dict[str, Any], needs: str) -> None:
    assert re.search(f"verl.{next(iter(verl))}: .*{needs}", _refused(verl))


@pytest.mark.parametrize(
    ("kind", "there"),
    [("advantage_estimator", _THERE), ("policy_loss", _LOSSES), ("rollout_correction", list(CORRECTIONS))],
    ids=str,
)
def test_a_name_that_verl_has_not_is_refused_with_those_that_can_be_taken(kind: str, there: list[str]) -> None:
    assert f"verl.{kind}: expected one of {', '.join(there)}; found 'grop'" in _refused({kind: "grop"})
    for name in there:
        assert getattr(_job({kind: name}).verl, kind) == name


@pytest.mark.parametrize(
    ("verl", "fields"),
    [
        ({"advantage_estimator": "opo"}, {"algorithm": "rloo"}),
        ({"advantage_estimator": "grpo"}, {"algorithm": "dr_grpo"}),
        ({"advantage_estimator": "rloo"}, {"normalize_advantage": False}),
        ({"advantage_estimator": "gae"}, {"normalize_advantage": False}),
        ({"advantage_estimator": "gae"}, {"algorithm": "rloo"}), ({"policy_loss": "vanilla"}, {"algorithm": "gspo"}),
        ({"policy_loss": "geo_mean"}, {"algorithm": "dr_grpo"}),
        ({"policy_loss": "geo_mean"}, {"loss_weighting": "token"}),
        ({"policy_loss": "sapo"}, {"loss_weighting": "token"}), ({"policy_loss": "sapo"}, {"clip_ratio": 0.1}),
        ({"policy_loss": "gpg"}, {"clip_ratio_high": 0.3}), ({"policy_loss": "kl_cov"}, {"clip_ratio": 0.1}),
        ({"policy_loss": "cispo"}, {"dual_clip": 3.0}), ({"policy_loss": "dppo_tv"}, {"dual_clip": 3.0}),
        ({"rollout_correction": "decoupled_seq_is"}, {"rollout_correction": "mask"}),
        ({"rollout_correction": "disabled"}, {"rollout_correction": "off"}),
        ({"rollout_correction": "decoupled_seq_is"}, {"correction_cap": 3.0}),
        ({"rollout_correction": "bypass_pg_is"}, {"clip_ratio": 0.1}),
        ({"rollout_correction": "bypass_pg_is"}, {"dual_clip": 3.0}),
        ({"rollout_correction": "bypass_ppo_clip"}, {"algorithm": "gspo"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_field_that_would_mean_nothing_is_refused(verl: dict[str, Any], fields: dict[str, Any]) -> None:
    ((kind, name),), ((field, value),) = verl.items(), fields.items()
    said = f"{field} {value!r} means nothing with verl.{kind} {name}: leave one of the two out"
    assert said in _refused(verl, **fields)


def test_a_correction_that_is_a_loss_is_refused_with_another_loss() -> None:
    said = _refused({"policy_loss": "gspo", "rollout_correction": "bypass_pg_is"})
    assert [name for name in ("verl.policy_loss 'gspo'", "bypass_pg_is", "decoupled_") if name not in said] == []


@pytest.mark.parametrize("verl", [{}, {"advantage_estimator": "rloo"}, {"policy_loss": "gspo"}], ids=str)
def test_a_critic_is_gae_s_alone(verl: dict[str, Any]) -> None:
    found = verl.get("advantage_estimator", "none")
    said = f"verl.critic: expected verl.advantage_estimator gae, found {found}: leave the critic out"
    assert said in _refused({**verl, "critic": {"discount": 0.9}})
    assert _job({**verl, "critic": {}}) == _job(verl)  # to say defaults is to say nothing


@pytest.mark.parametrize("critic", [{"discount": 0}, {"gae_lambda": 1.1}, {"clip_range": 0}, {"learning_rate": -1}])
def test_a_critic_of_no_sense_is_refused(critic: dict[str, Any]) -> None:
    assert "should be" in _refused({"advantage_estimator": "gae", "critic": critic})


def test_what_a_critic_learns_by_is_a_part_of_what_a_training_learns() -> None:
    plain, own = _job({"advantage_estimator": "gae"}), {"advantage_estimator": "gae", "critic": {"discount": 0.9}}
    assert _job({"advantage_estimator": "gae", "critic": {"gae_lambda": 1.0}}).digest() == plain.digest()
    assert "critic" not in plain.value()["verl"]
    assert _job(own).value()["verl"]["critic"] == {"discount": 0.9}
    assert Job.from_record(_job(own).model_dump_json()) == Job.from_record(_job(own).canonical()) == _job(own)
    assert not _job(own).continues(plain)
    assert _job(own).continues(_job({**own, "trainers": 2}))


def test_what_names_still_leave_to_the_job_is_taken() -> None:
    assert _job({"advantage_estimator": "grpo_passk"}, normalize_advantage=False, clip_ratio=0.1, dual_clip=3.0)
    assert _job({"policy_loss": "vanilla"}, algorithm="dr_grpo", dual_clip=3.0, rollout_correction="off", kl_coef=0.1)
    assert _job({"policy_loss": "gspo", "rollout_correction": "decoupled_geo_rs"}, clip_ratio=3e-4, algorithm="rloo")


def test_jobs_keep_their_digests_are_read_from_records_and_go_on_only_under_the_same_names() -> None:
    assert _job({"trainers": 2}).value()["verl"] == Job(backend="verl", verl={"trainers": 2}).value()["verl"]
    assert not {"advantage_estimator", "policy_loss", "rollout_correction"} & set(_job({"trainers": 2}).value()["verl"])
    for verl in ({"advantage_estimator": "opo"}, {"policy_loss": "gspo"}, {"rollout_correction": "disabled"}):
        named = _job({**verl, "trainers": 2})
        assert Job.from_record(named.model_dump_json()) == Job.from_record(named.canonical()) == named
        assert named.continues(_job(verl))
        assert not named.continues(_job({}))
        assert not _job({}).continues(named)


@pytest.mark.parametrize("name", _BY_EPISODES)
def test_where_nothing_was_sampled_there_is_no_advantage(name: str) -> None:
    assert advantages(_job({"advantage_estimator": name}), [1.0, 0.0], ["g", "g"], [0, 0]) == [0.0, 0.0]


def test_the_names_are_verl_s() -> None:
    pytest.importorskip("verl")
    every: Iterable[Any] = core_algos.AdvantageEstimator
    assert set(ESTIMATORS) == set(core_algos.ADV_ESTIMATOR_REGISTRY) == {each.value for each in every}
    assert set(POLICY_LOSSES) == set(core_algos.POLICY_LOSS_REGISTRY)
    presets = {name for name, each in vars(algorithm.RolloutCorrectionConfig).items() if isinstance(each, classmethod)}
    assert set(CORRECTIONS) == presets
    assert {name for name in presets if getattr(algorithm.RolloutCorrectionConfig, name)().bypass_mode} == set(_BYPASS)


def _grpo(padded: support.Padded, *, normalize: bool = True) -> Tensor:
    found: Tensor = core_algos.compute_grpo_outcome_advantage(
        padded.rewards, padded.mask, padded.groups, norm_adv_by_std_in_grpo=normalize
    )[0]
    return found


def _config(job: Job, mode: str, episodes: int, tokens: int, **policy_loss: Any) -> Any:
    return actor.ActorConfig(
        strategy="fsdp2", rollout_n=job.group_size, use_dynamic_bsz=True, clip_ratio=job.clip_ratio,
        clip_ratio_low=job.clip_ratio,
        clip_ratio_high=job.clip_ratio if job.clip_ratio_high is None else job.clip_ratio_high,
        clip_ratio_c=1e6 if job.dual_clip is None else job.dual_clip, loss_agg_mode=mode,
        policy_loss=actor.PolicyLossConfig(**policy_loss),
        global_batch_info={
            "dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": episodes,
            "loss_scale_factor": job.max_context,
        },
    )  # fmt: skip


def _mode(job: Job) -> str:
    if job.algorithm == "dr_grpo":
        return "seq-mean-token-sum-norm"
    return "token-mean" if job.loss_weighting == "token" else "seq-mean-token-mean"


def _loss(job: Job, name: str, padded: support.Padded, *, old: Tensor, factors: Any = None, mask: Any = None) -> Tensor:
    mask = padded.mask if mask is None else mask
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        found: Tensor = core_algos.get_policy_loss_fn(name)(
            old_log_prob=old,
            log_prob=padded.present,
            advantages=_grpo(padded, normalize=job.algorithm == "grpo"),
            response_mask=mask,
            loss_agg_mode=_mode(job),
            config=_config(job, _mode(job), len(mask), int(padded.mask.sum()), loss_mode=name),
            rollout_is_weights=factors,
        )[0]
    return found


def _learned(ranks: Ranks, folder: Path, job: Job, world: int, batch: Batch) -> tuple[dict[str, Tensor], Any]:
    import ray

    learner = ranks.learner(folder, job, world)
    steps: list[dict[str, Tensor]] = []
    step = learner._step

    def stepped(size: float, *, last: bool) -> float:
        steps.append(ray.get([each.__ray_call__.remote(_gradient) for each in learner.group._actors])[0])
        return step(size, last=last)

    learner._step = stepped  # type: ignore[method-assign]
    metrics = learner.update(batch)
    return steps[0], metrics


def _gradient(rank: Any) -> dict[str, Tensor]:
    return {name: each.grad.full_tensor() for name, each in rank._engine.module.named_parameters()}


def _of_many_rewards(batch: Batch) -> Batch:
    return replace(batch, episodes=tuple(replace(e, reward=i * 7 % 5 + i / 8) for i, e in enumerate(batch.episodes)))


@pytest.mark.parametrize("name", _BY_EPISODES)
@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "plain"])
def test_advantages_are_those_of_verl_s_estimator(name: str, normalize: bool, ranks: Ranks, llama: Path) -> None:
    if not normalize and not ESTIMATORS[name].normalizes:
        assert "normalize_advantage" in _refused({"advantage_estimator": name}, normalize_advantage=False)
        return
    made = _job({"advantage_estimator": name}, normalize_advantage=normalize)
    policy, _ = support.local(made)
    batch = _of_many_rewards(make_batch(policy, episodes=12))
    padded = support.padded_batch(policy, batch)
    config = algorithm.AlgoConfig(norm_adv_by_std_in_grpo=normalize)
    arguments = {"norm_adv_by_std_in_grpo": normalize} if "grpo" in name and name != "grpo_passk" else {}
    expected, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=padded.rewards, response_mask=padded.mask, index=padded.groups, config=config, **arguments
    )
    learner = ranks.learner(llama, made, 1)
    found = torch.tensor(learner._begin(batch).advantages)
    assert expected.abs().max() > 0.1
    assert torch.allclose(found[:, None] * padded.mask, expected.float() * padded.mask, atol=1e-6)
    metrics = learner.update(batch)
    assert metrics["critic/advantages/max"] == pytest.approx(expected[padded.mask.bool()].max().item(), abs=1e-6)


def test_of_a_group_of_one_pass_at_k_has_no_second(ranks: Ranks, llama: Path) -> None:
    made = _job({"advantage_estimator": "grpo_passk"})
    policy, _ = support.local(made)
    learner, batch = ranks.learner(llama, made, 1), _of_many_rewards(make_batch(policy))
    alone = replace(batch, episodes=(*batch.episodes, replace(batch.episodes[0], group="alone", reward=5.0)))
    assert learner._begin(alone).advantages == [*learner._begin(batch).advantages, 0.0]


@pytest.mark.parametrize("name", ["rloo", "gae"])
def test_rewards_of_single_calls_are_refused_and_nothing_is_learned(name: str, ranks: Ranks, llama: Path) -> None:
    made = _job({"advantage_estimator": name})
    policy, _ = support.local(made)
    learner, batch = ranks.learner(llama, made, 1), make_batch(policy)
    calls = (CallReward(0, 1.0), CallReward(1, 0.0))
    with pytest.raises(BackendError, match=rf"episode e0: .*verl\.advantage_estimator {name}"):
        learner.update(replace(batch, episodes=(replace(batch.episodes[0], call_rewards=calls), *batch.episodes[1:])))
    assert learner.version == 0
    learner.update(batch)


_OTHER: dict[str, list[dict[str, Any]]] = {
    "vanilla": [
        {"loss_weighting": "token", "clip_ratio": 0.05, "clip_ratio_high": 0.1},
        {"dual_clip": 1.1},
        {"algorithm": "dr_grpo", "max_context": 128},
    ],
    "gspo": [{"loss_weighting": "token", "clip_ratio": 0.02}],
    "cispo": [{"loss_weighting": "token", "clip_ratio_high": 0.3}],
    "clip_cov": [{"loss_weighting": "token"}],
    "kl_cov": [{"loss_weighting": "token"}],
}
_CASES = [
    *[(name, {}, world, micro) for name in _LOSSES for world, micro in support.CUTS],
    *[(name, fields, 2, 40) for name, every in _OTHER.items() for fields in every],
]


@pytest.mark.parametrize(("name", "fields", "world", "micro"), _CASES, ids=str)
def test_the_gradient_is_that_of_verl_s_loss_however_it_is_cut(
    name: str, fields: dict[str, Any], world: int, micro: int, ranks: Ranks, llama: Path
) -> None:
    made = _job({"policy_loss": name}, rollout_correction="off", micro_batch_tokens=micro, **fields)
    policy, _ = support.local(made)
    batch = make_batch(policy, drift=0.5)
    padded = support.padded_batch(policy, batch)
    expected = _loss(made, name, padded, old=padded.rollout)
    found, metrics = _learned(ranks, llama, made, world, batch)
    assert metrics["actor/pg_loss"] == pytest.approx(expected.item(), rel=1e-4, abs=support.CLOSE)
    assert support.same(found, support.gradients(policy, expected))


@pytest.mark.parametrize("name", _LOSSES)
def test_verl_s_loss_is_told_the_job_s_correction_and_the_present_policy(name: str, ranks: Ranks, llama: Path) -> None:
    made = _job({"policy_loss": name}, micro_batch_tokens=48)
    policy, _ = support.local(made)
    batch = make_batch(policy, drift=1.5)
    padded = support.padded_batch(policy, batch)
    old = padded.present.detach()
    factors = (old - padded.rollout).exp().clamp(max=made.correction_cap)
    assert (factors == made.correction_cap).any()
    expected = _loss(made, name, padded, old=old, factors=factors)
    found, _ = _learned(ranks, llama, made, 1, batch)
    assert support.same(found, support.gradients(policy, expected))


@pytest.mark.parametrize("name", [name for name in _LOSSES if not name.endswith("_cov")])
def test_an_episode_s_loss_counts_by_its_weight(name: str, ranks: Ranks, llama: Path) -> None:
    made = _job({"policy_loss": name}, rollout_correction="off", micro_batch_tokens=32)
    policy, _ = support.local(made)
    batch = make_batch(policy, drift=0.5)
    batch = replace(batch, episodes=tuple(replace(e, weight=0.5 + i % 3) for i, e in enumerate(batch.episodes)))
    padded = support.padded_batch(policy, batch)
    valued, losses = _grpo(padded), []
    for number in range(len(batch.episodes)):
        own = slice(number, number + 1)
        losses.append(
            core_algos.get_policy_loss_fn(name)(
                old_log_prob=padded.rollout[own],
                log_prob=padded.present[own],
                advantages=valued[own],
                response_mask=padded.mask[own],
                loss_agg_mode="seq-mean-token-mean",
                config=_config(made, "seq-mean-token-mean", 1, 1, loss_mode=name),
            )[0]
        )
    weights = torch.tensor([episode.weight for episode in batch.episodes])
    expected = (torch.stack(losses) * weights).sum() / weights.sum()
    found, _ = _learned(ranks, llama, made, 2, batch)
    assert support.same(found, support.gradients(policy, expected))


def _partly_drifted(policy: Any) -> Batch:
    """A batch of which every other episode was sampled by quite another policy."""
    near, far = make_batch(policy, drift=1e-5), make_batch(policy, drift=0.6)
    pairs = zip(near.episodes, far.episodes, strict=True)
    return replace(near, episodes=tuple(pair[number % 2] for number, pair in enumerate(pairs)))


@pytest.mark.parametrize(
    ("preset", "loss"),
    [*[(name, None) for name in _DECOUPLED]]
    + [(name, loss) for name in ("decoupled_seq_is_rs", "decoupled_token_icepop") for loss in ("gspo", "clip_cov")],
)
def test_a_decoupled_preset_weighs_as_verl_s_does(preset: str, loss: str | None, ranks: Ranks, llama: Path) -> None:
    made = _job({"rollout_correction": preset, "policy_loss": loss}, micro_batch_tokens=48)
    policy, _ = support.local(made)
    batch = _partly_drifted(policy)
    padded, config = support.padded_batch(policy, batch), getattr(algorithm.RolloutCorrectionConfig, preset)()
    old = padded.present.detach()
    weights, mask, metrics = helper.compute_rollout_correction_and_rejection_mask(
        old, padded.rollout, padded.mask, rollout_is=config.rollout_is,
        rollout_is_threshold=config.rollout_is_threshold, rollout_rs=config.rollout_rs,
        rollout_rs_threshold=config.rollout_rs_threshold,
    )  # fmt: skip
    assert 0 < mask.sum() < padded.mask.sum() or config.rollout_rs is None
    factors = None if weights is None else weights.batch["rollout_is_weights"]
    expected = _loss(made, loss or "vanilla", padded, old=old, factors=factors, mask=mask)
    found, told = _learned(ranks, llama, made, 2, batch)
    assert support.same(found, support.gradients(policy, expected))
    assert {name: told[name] for name in metrics} == pytest.approx(metrics, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("world", "micro"), [support.CUTS[0], support.CUTS[2]], ids=str)
@pytest.mark.parametrize("preset", _BYPASS)
def test_a_bypassing_preset_is_verl_s_own_loss(preset: str, world: int, micro: int, ranks: Ranks, llama: Path) -> None:
    made = _job({"rollout_correction": preset}, micro_batch_tokens=micro)
    policy, _ = support.local(made)
    batch = _partly_drifted(policy)
    padded, config = support.padded_batch(policy, batch), getattr(algorithm.RolloutCorrectionConfig, preset)()
    mode = "seq-mean-token-mean"
    expected, _ = core_algos.get_policy_loss_fn("bypass_mode")(
        old_log_prob=padded.rollout,
        log_prob=padded.present,
        advantages=_grpo(padded),
        response_mask=padded.mask,
        loss_agg_mode=mode,
        config=_config(made, mode, len(padded.mask), 1, loss_mode="bypass_mode", rollout_correction=config),
    )
    found, metrics = _learned(ranks, llama, made, world, batch)
    assert metrics["actor/pg_loss"] == pytest.approx(expected.item(), rel=1e-4, abs=support.CLOSE)
    assert support.same(found, support.gradients(policy, expected))


def _updated(learner: VerlLearner, batch: Batch) -> list[tuple[dict[str, float], dict[str, Tensor]]]:
    return [(dict(learner.update(batch)), support.exported(learner)) for _ in range(2)]


@pytest.mark.parametrize(
    "verl",
    [
        {"policy_loss": "gspo"}, {"policy_loss": "geo_mean"}, {"policy_loss": "clip_cov"}, {"policy_loss": "kl_cov"},
        {"policy_loss": "cispo", "rollout_correction": "decoupled_seq_is_rs"},
        {"rollout_correction": "bypass_pg_geo_rs_seq_tis"}, {"rollout_correction": "bypass_ppo_clip_k3_rs"},
    ],
    ids=str,
)  # fmt: skip
def test_several_steps_learn_the_same_on_two_ranks_cut_small(verl: dict[str, Any], ranks: Ranks, llama: Path) -> None:
    fields = {"epochs": 2, "minibatches": 2}
    whole, cut = _job(verl, **fields), _job(verl, micro_batch_tokens=32, **fields)
    policy, _ = support.local(whole)
    batch = _partly_drifted(policy)
    expected, found = (_updated(ranks.learner(llama, made, w), batch) for made, w in ((whole, 1), (cut, 2)))
    for name in ("actor/pg_loss", "actor/grad_norm", "actor/ppo_kl", "actor/entropy"):
        assert found[0][0][name] == pytest.approx(expected[0][0][name], rel=1e-3, abs=10 * support.CLOSE), name
    gaps = torch.cat([(found[0][1][name] - value).abs().flatten() for name, value in expected[0][1].items()])
    assert (gaps > 10 * support.CLOSE).double().mean().item() < 1e-3
