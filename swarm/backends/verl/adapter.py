"""verl's names in one place, pinned to 0.9: engines, optimiser steps, and its functions by name.

verl promises nothing about these between versions; the platform is in `worker.py`. Run for real: verl 0.9.1 on a CPU
(gloo, FSDP2); the branches for CUDA (nccl) were never run. verl's *sequence* is an episode here: a row of a padded
(E, R) batch with all its sampled tokens and no others. The functions are called on a rank, whose platform verl was
told.
"""

import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from swarm.algorithms.rows import Tokens
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.verl_config import ESTIMATORS

PINNED = "0.9"
"""The verl that this file was written for: any 0.9.x."""
EXCHANGE_TIMEOUT_S = 1800
"""Seconds that a rank waits for the others in one exchange."""


def check() -> str:
    """Return a line that names the versions found; BackendError where one is missing or known not to work."""
    try:
        found = {name: metadata.version(name) for name in ("verl", "ray", "torch", "tensordict")}
    except metadata.PackageNotFoundError as error:
        raise BackendError(
            f"the backend `verl` needs the package {error.name}, which is not installed: install ajet[verl] as "
            "docs/cluster.md says"
        ) from error
    if found["verl"].rsplit(".", 1)[0] != PINNED:
        raise BackendError(f"expected verl {PINNED}.x, found {found['verl']}: install verl>=0.9,<0.10")
    return ", ".join(f"{name} {version}" for name, version in found.items())


def environment(device: str) -> dict[str, str]:
    """Return environment variables of a process that computes with verl; verl reads them when it is imported."""
    if device != "cpu":
        return {}
    return {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "swarm.backends.verl.worker"}


def rendezvous(address: str, port: int = 0, *, begin: bool) -> TCPStore:
    """Return where ranks meet: begun here, at a port that is free and from then on taken, or joined."""
    return TCPStore(
        address, port, is_master=begin, wait_for_workers=False, timeout=timedelta(seconds=EXCHANGE_TIMEOUT_S)
    )


def join(device: str, rank: int, world: int, address: str, port: int, store: TCPStore | None) -> None:
    """Join the process group, at `store` where it is begun here, unless this process has joined it."""
    # verl reads from the environment which rank this process is
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    if torch.distributed.is_initialized():
        return
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"  # verl's "cpu:gloo,cpu:gloo" torch refuses
    store, patience = store or rendezvous(address, port, begin=False), timedelta(seconds=EXCHANGE_TIMEOUT_S)
    torch.distributed.init_process_group(backend, timeout=patience, store=store, rank=rank, world_size=world)


def make_engine(folder: Path, job: Job, device: str) -> Any:
    """Return verl's engine for a model, made and sharded over the ranks of the group; all of them must call it."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.engine_workers import TrainingWorker

    if device == "cpu":
        _register_cpu()
    model, engine, optimizer = _configurations(folder, job, device)
    worker: Any = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=optimizer,
            checkpoint_config=CheckpointConfig(),
        )
    )
    build = worker.engine._build_lora_module

    def build_seeded(module: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)  # an adapter is drawn from it alone, as the local backend's is
            return build(module)

    worker.engine._build_lora_module = build_seeded
    if worker.engine.is_param_offload_enabled:
        _wait_for_moves()
    # log-probs of many tokens at once, in fp32: where flash attention is missing verl goes token by token, and in the
    # logits' own type; what is one micro-batch it would take apart and put together, row by row
    transformer_impl.logprobs_from_logits = logprobs_of
    transformer_impl.prepare_micro_batches = lambda data, **_: ([data], None)
    with enter_mode(worker.engine, nullcontext()):
        worker.reset()
    return worker.engine


@cache
def _register_cpu() -> None:
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")(FSDPEngineWithLMHead)


def _wait_for_moves() -> None:
    """Have verl move weights and moments to the host in plain memory, and wait: FSDP2 pads small shards at once, with
    what has come by then, and pinned memory is rounded up to powers of two."""
    from verl.utils import fsdp_utils
    from verl.workers.engine.fsdp import transformer_impl

    @torch.no_grad()
    def move_weights(model: torch.nn.Module, empty_cache: bool = True) -> None:
        model.to("cpu")

    def move_moments(optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            state.update({key: value.cpu() for key, value in state.items() if isinstance(value, Tensor)})

    fsdp_utils.offload_fsdp2_model_to_cpu = move_weights
    transformer_impl.offload_fsdp_optimizer = move_moments


_TOGETHER: Final = 512


def logprobs_of(logits: Tensor, labels: Tensor, inplace_backward: bool = True) -> Tensor:
    """Return fp32 log-probs (N,) of `labels` (N,) by logits (N, V), whose fp32 copies are kept for no backward pass."""

    def one(part: Tensor, own: Tensor) -> Tensor:
        return -cross_entropy(part.float(), own, reduction="none")

    parts = zip(logits.split(_TOGETHER), labels.split(_TOGETHER), strict=True)
    return torch.cat([checkpoint(one, *each, use_reentrant=False) for each in parts])


def _configurations(folder: Path, job: Job, device: str) -> tuple[Any, Any, Any]:
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    # padded rows with torch's attention: packed ones need flash attention to pay
    model = HFModelConfig(
        path=str(folder), use_remove_padding=False,
        enable_gradient_checkpointing=job.gradient_checkpointing or device != "cpu",
        lora_rank=job.lora_rank, lora_alpha=job.lora_alpha, target_modules="all-linear",
        override_config={"attn_implementation": "sdpa"},
    )  # fmt: skip
    shares = device != "cpu" and job.verl_fields.colocated  # its device is another's between its turns
    computed = "bf16" if job.dtype == "bfloat16" else "fp32"
    engine = FSDPEngineConfig(
        strategy="fsdp2", model_dtype="fp32",
        mixed_precision={"param_dtype": computed, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False, param_offload=shares, optimizer_offload=shares, use_dynamic_bsz=False,
        entropy_checkpointing=True, seed=job.seed, **job.verl_fields.engine,
    )  # fmt: skip
    optimizer = FSDPOptimizerConfig(
        lr=job.learning_rate, weight_decay=job.weight_decay, betas=(0.9, 0.999), clip_grad=job.max_grad_norm,
        total_training_steps=job.steps, lr_warmup_steps=0,
    )  # fmt: skip
    return model, engine, optimizer


def prepare_batch(batch: TensorDict, job: Job, *, entropy: bool) -> TensorDict:
    """Return a micro-batch with what verl's engine wants to know beside it: it is one, whatever its size."""
    from verl.utils import tensordict_utils

    tensordict_utils.assign_non_tensor(
        batch, temperature=job.temperature, calculate_entropy=entropy, use_remove_padding=False,
        use_fused_kernels=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=len(batch),
    )  # fmt: skip
    return batch


def infer(engine: Any, batches: Sequence[TensorDict]) -> list[Tensor]:
    """Return, of each micro-batch, jagged over its ids, the log-prob of each one's next id under the present
    weights."""
    with enter_mode(engine, engine.eval_mode()):  # on the host, else Ray brings the GPU along
        return [engine.infer_batch(batch)["model_output"]["log_probs"].cpu() for batch in batches]


@contextmanager
def enter_mode(engine: Any, mode: AbstractContextManager[Any]) -> Iterator[None]:
    """Be in a mode of an engine's within; afterwards its device is free, too where something fails."""
    try:
        with mode:
            yield
    except BaseException:
        if engine.is_param_offload_enabled:
            engine.to("cpu", model=True, optimizer=True, grad=True)
        raise
    finally:
        _empty_cache(engine)


def release(engine: Any) -> None:
    """Give the device's memory back, where an engine shares it, that what failed and was told held on to."""
    if engine.is_param_offload_enabled:
        gc.collect()
        _empty_cache(engine)


def _empty_cache(engine: Any) -> None:
    from verl.utils.device import get_torch_device

    if engine.is_param_offload_enabled:
        get_torch_device().empty_cache()


def gradient(engine: Any, batches: Sequence[TensorDict], loss: Callable[..., Any]) -> float:
    """Leave the gradient of micro-batches, exchanged after each one, so that nobody holds one that is not sharded;
    return this rank's loss, of which the minibatch's is the mean."""
    with enter_mode(engine, engine.train_mode(zero_grad_on_exit=False)):
        engine.optimizer_zero_grad()
        losses = [sum(engine.forward_backward_batch(batch, loss)["loss"]) for batch in batches]
    return float(sum(losses))


def usage(engine: Any, batches: Sequence[TensorDict], begun: float) -> dict[str, float]:
    """Return, by verl's names, the most memory that this rank's device has held (on a CPU: its process), and the part
    of a GPU's arithmetic that the gradient of micro-batches, `begun` then, used, where verl knows GPU and model."""
    from verl.utils.device import get_torch_device
    from verl.utils.flops_counter import ESTIMATE_FUNC, FlopsCounter

    device, config = get_torch_device(), engine.model_config.hf_config
    device.synchronize()
    seconds = time.perf_counter() - begun
    metrics = {"perf/max_memory_allocated_gb": device.max_memory_allocated() / 2**30}
    if config.model_type in ESTIMATE_FUNC:
        lengths = [length for batch in batches for length in batch["input_ids"].offsets().diff().tolist()]
        used, most = FlopsCounter(config).estimate_flops(lengths, seconds)
        metrics |= {"perf/mfu/actor": used / most} if math.isfinite(most) else {}
    return metrics


def step(engine: Any, size: float) -> float:
    """Clip the gradient and change the weights; return the norm it had. Where that is not finite, nothing changes."""
    for group in engine.optimizer.param_groups:
        group["lr"] = size
    with enter_mode(engine, engine.train_mode(zero_grad_on_exit=True)):
        return float(engine.optimizer_step())


_UNBOUND: Final = 1e9
"""A bound on ratios that holds none: verl clamps them to e^20."""
_DPPO_TRUNCATION: Final = 20.0
"""Largest ratio in the dppo losses: what verl's functions take where they are told none."""


def advantages(job: Job, rewards: Sequence[float], groups: Sequence[str], tokens: Sequence[int]) -> list[float]:
    """Return each episode's advantage by verl's estimator; `tokens` are their numbers of sampled tokens. The reward is
    at the last one, and nothing is discounted. An episode without tokens counts in its group's baseline. 0 for a group
    of one by `grpo_passk`, which has no second, and for all where nothing was sampled: verl takes no mean of it."""
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    name = job.verl_fields.advantage_estimator
    assert name is not None
    alone = [name == "grpo_passk" and list(groups).count(group) < 2 for group in groups]
    compared = [number for number, single in enumerate(alone) if not single]
    found = [0.0] * len(rewards)
    if not compared or not any(tokens):
        return found
    counts = torch.tensor([tokens[number] for number in compared])
    mask = (torch.arange(max(1, int(counts.max()))) < counts[:, None]).long()
    scores = torch.zeros(mask.shape)
    scores[torch.arange(len(counts)), (counts - 1).clamp(min=0)] = torch.tensor([rewards[n] for n in compared])
    arguments: dict[str, Any] = {
        "token_level_rewards": scores,
        "response_mask": mask,
        "index": np.array([groups[number] for number in compared], dtype=object),
        "config": AlgoConfig(gamma=1.0, norm_adv_by_std_in_grpo=job.normalize_advantage),
    }
    if ESTIMATORS[name].normalizes and name != "grpo_passk":  # which reads it in the configuration
        arguments["norm_adv_by_std_in_grpo"] = job.normalize_advantage
    try:
        values: Tensor = get_adv_estimator_fn(name)(**arguments)[0]
    except ValueError as error:  # what verl raises for a batch that it cannot compare
        raise BackendError(f"verl.advantage_estimator {name}: verl refused the batch: {error}") from error
    for number, value in zip(compared, values[:, 0].tolist(), strict=True):
        found[number] = value
    return found


@dataclass(frozen=True, slots=True, eq=False)
class RolloutCorrection:
    """Off-policy factors (M,) of tokens, which of them are kept (M,), bool, and verl's metrics of both."""

    factors: Tensor
    kept: Tensor
    metrics: Mapping[str, float]


def correct_rollout(job: Job, proximal: Tensor, rollout: Tensor, episodes: Tensor) -> RolloutCorrection:
    """Return what the job's decoupled preset makes of M tokens: log-probs under two policies, and episodes' numbers."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    if not len(proximal):
        return RolloutCorrection(proximal, proximal.bool(), {})
    preset, sequences = _preset(job), Sequences(episodes)
    mask = sequences.pad(torch.ones_like(episodes))
    weights, kept, metrics = compute_rollout_correction_and_rejection_mask(
        sequences.pad(proximal), sequences.pad(rollout), mask, rollout_is=preset.rollout_is,
        rollout_is_threshold=preset.rollout_is_threshold, rollout_is_batch_normalize=preset.rollout_is_batch_normalize,
        rollout_rs=preset.rollout_rs, rollout_rs_threshold=preset.rollout_rs_threshold,
    )  # fmt: skip
    factors = torch.ones_like(proximal) if weights is None else sequences.unpad(weights.batch["rollout_is_weights"])
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return RolloutCorrection(factors, sequences.unpad(kept).bool(), finite)


def _preset(job: Job) -> Any:
    from verl.trainer.config.algorithm import RolloutCorrectionConfig

    name = job.verl_fields.rollout_correction
    return RolloutCorrectionConfig(rollout_is=None) if name is None else getattr(RolloutCorrectionConfig, name)()


class Sequences:
    """Where the M tokens of E episodes stand in a padded (E, R) tensor: those of one are in order, from the left."""

    def __init__(self, episodes: Tensor) -> None:
        _, self._rows, counts = episodes.unique(return_inverse=True, return_counts=True)
        order = self._rows.argsort(stable=True)
        places = torch.arange(len(episodes), device=episodes.device)
        self._columns = torch.empty_like(places)
        self._columns[order] = places - (counts.cumsum(0) - counts).repeat_interleave(counts)
        self._shape = (len(counts), int(counts.max()))

    def pad(self, values: Tensor) -> Tensor:
        """Return values (M,) as (E, R), 0 elsewhere, with their gradient."""
        return values.new_zeros(self._shape).index_put((self._rows, self._columns), values)

    def unpad(self, values: Tensor) -> Tensor:
        """Return of values (E, R) those (M,) of the tokens."""
        return values[self._rows, self._columns]


def policy_loss(
    job: Job, tokens: Tokens, present: Tensor, proximal: Tensor, correction: Tensor
) -> tuple[Tensor, float, float]:
    """Return verl's loss () of M > 0 tokens, with factors so chosen that tokens' weights hold, and the parts that verl
    says it clipped, above and below. (M,): log-probs present, with gradient, and proximal; off-policy factors."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    name = job.verl_fields.loss
    assert name is not None
    sequences = Sequences(tokens.episodes)
    kept = torch.ones_like(tokens.episodes) if tokens.kept is None else tokens.kept.long()
    mask, weighed, factors = sequences.pad(kept), sequences.pad(tokens.weights), sequences.pad(correction)
    advantages = sequences.pad(tokens.advantages)
    if name == "bypass_mode":  # which ignores factors, and is in proportion to the advantages
        advantages = advantages * weighed
    elif name == "sapo":  # always a mean over a sequence's tokens
        factors = factors * weighed * mask.sum(1, keepdim=True)
    else:
        factors = factors * weighed
    unbound = _DPPO_TRUNCATION if name.startswith("dppo_") else _UNBOUND
    config = ActorConfig(
        strategy="fsdp2", rollout_n=job.group_size, use_dynamic_bsz=True, clip_ratio=job.clip_ratio,
        clip_ratio_low=job.clip_ratio,
        clip_ratio_high=job.clip_ratio if job.clip_ratio_high is None else job.clip_ratio_high,
        clip_ratio_c=unbound if job.dual_clip is None else job.dual_clip, loss_agg_mode="token-sum",
        policy_loss=PolicyLossConfig(loss_mode=name, rollout_correction=_preset(job)),
        global_batch_info={"dp_size": 1, "batch_num_tokens": None, "global_batch_size": 1, "loss_scale_factor": None},
    )  # fmt: skip
    loss, metrics = get_policy_loss_fn(name)(
        old_log_prob=sequences.pad(proximal), log_prob=sequences.pad(present), advantages=advantages,
        response_mask=mask, loss_agg_mode="token-sum", config=config, rollout_is_weights=factors,
    )  # fmt: skip
    clipped, lower = (float(metrics.get(f"actor/{each}", 0.0)) for each in ("pg_clipfrac", "pg_clipfrac_lower"))
    return loss, clipped, lower
