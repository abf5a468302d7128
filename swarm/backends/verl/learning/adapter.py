"""Every touch of verl's own names, pinned to 0.9: engines made, batches run, gradients applied.

verl promises nothing about these between its versions. What is touched: `TrainingWorker` and its configurations, the
engine's `forward_backward_batch`, `infer_batch`, `optimizer_step` and `train_mode`, its `module` and `optimizer`,
`_build_lora_module`, the registry of engines, `tensordict_utils`, and the platform of `cpu_platform.py`.
Run for real: verl 0.9.1 on a CPU (gloo, FSDP2). The branches for CUDA (nccl) are written and were never run.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from swarm.backends.protocols import BackendError
from swarm.job import Job
from swarm.verl_fields import VerlFields

PINNED = "0.9"
"""The verl that this file was written for: any 0.9.x."""
ModelType = Literal["language_model", "value_model"]
"""verl's names of what a model says at each place: log-probs of the next id, or one number."""
EXCHANGE_TIMEOUT_S = 1800
"""Seconds that a rank waits for the others in one exchange."""


def check() -> str:
    """Return a line that names the versions found; BackendError where one is missing or known not to work."""
    found: dict[str, str] = {}
    for name in ("verl", "ray", "torch", "tensordict"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError as error:
            raise BackendError(
                f"the backend `verl` needs the package {name}, which is not installed: install ajet[verl] as "
                "docs/cluster.md says"
            ) from error
    if found["verl"].rsplit(".", 1)[0] != PINNED:
        raise BackendError(f"expected verl {PINNED}.x, found {found['verl']}: install verl>=0.9,<0.10")
    return ", ".join(f"{name} {version}" for name, version in found.items())


def environment(device: str) -> dict[str, str]:
    """Return environment variables of a process that computes with verl; verl reads them when it is imported."""
    if device != "cpu":
        return {}
    return {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "swarm.backends.verl.learning.cpu_platform"}


def meeting(address: str, port: int = 0, *, begin: bool) -> TCPStore:
    """Return where ranks meet: begun here, at a port that is free and from then on taken, or joined."""
    return TCPStore(
        address, port, is_master=begin, wait_for_workers=False, timeout=timedelta(seconds=EXCHANGE_TIMEOUT_S)
    )


def join(device: str, rank: int, world: int, store: TCPStore) -> None:
    """Join the ranks' process group, which meets at `store`.

    verl stays in it: by itself it would ask for "cpu:gloo,cpu:gloo" on a CPU,
    which torch refuses.
    """
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(
        backend, timeout=timedelta(seconds=EXCHANGE_TIMEOUT_S), store=store, rank=rank, world_size=world
    )


def joined() -> bool:
    """Return whether this process is in a process group."""
    return torch.distributed.is_initialized()


def engine(folder: Path, job: Job, device: str) -> Any:
    """Return verl's engine for a model, made and sharded over the ranks of the group; all of them must call it."""
    made = worker(folder, job, device, "language_model")
    made.engine._build_lora_module = _seeded(made.engine._build_lora_module, job.seed)
    loaded(made)
    return made.engine


def loaded(worker: Any) -> None:
    """Have verl's worker load its model."""
    if worker.engine.is_param_offload_enabled:
        _wait_for_moves()
    with computing(worker.engine, nullcontext()):
        worker.reset()


def _wait_for_moves() -> None:
    """Have verl move weights and moments to the host by copies that are there when it goes on, in plain memory.

    Its own are under way then, in pinned memory that torch rounds up to powers of two; and FSDP2 pads a shard that is
    smaller than the others' at once, with whatever has come by that moment.
    """
    from verl.utils import fsdp_utils
    from verl.workers.engine.fsdp import transformer_impl

    fsdp_utils.offload_fsdp2_model_to_cpu = _weights_to_host
    transformer_impl.offload_fsdp_optimizer = _moments_to_host


def _weights_to_host(model: torch.nn.Module, empty_cache: bool = True) -> None:
    with torch.no_grad():
        model.to("cpu")


def _moments_to_host(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state.update({key: value.cpu() for key, value in state.items() if isinstance(value, Tensor)})


def worker(folder: Path, job: Job, device: str, model_type: ModelType) -> Any:
    """Return verl's worker around an engine of a type, which `reset` loads the model into."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    _register(device)
    model, engine, optimizer = _configurations(folder, job, device)
    config = TrainingWorkerConfig(
        model_type=model_type,
        model_config=model,
        engine_config=engine,
        optimizer_config=optimizer,
        checkpoint_config=CheckpointConfig(),
    )
    return TrainingWorker(config)


@cache
def _register(device: str) -> None:
    """Tell verl that its FSDP engines run on a CPU."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

    if device == "cpu":
        for model_type, made in (("language_model", FSDPEngineWithLMHead), ("value_model", FSDPEngineWithValueHead)):
            EngineRegistry.register(model_type=model_type, backend=["fsdp2"], device="cpu")(made)


def _configurations(folder: Path, job: Job, device: str) -> tuple[Any, Any, Any]:
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    # padded rows with torch's attention: packed ones need flash attention to pay
    model = HFModelConfig(
        path=str(folder),
        use_remove_padding=False,
        enable_gradient_checkpointing=job.gradient_checkpointing,
        lora_rank=job.lora_rank,
        lora_alpha=job.lora_alpha,
        target_modules="all-linear",
        override_config={"attn_implementation": "sdpa"},
    )
    shares = device != "cpu" and (job.verl or VerlFields()).colocated  # its device is another's between its turns
    computed = "bf16" if job.dtype == "bfloat16" else "fp32"
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        model_dtype="fp32",
        mixed_precision={"param_dtype": computed, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False,
        param_offload=shares,
        optimizer_offload=shares,
        use_dynamic_bsz=True,
        entropy_checkpointing=True,
        max_token_len_per_gpu=job.micro_batch_tokens,
        infer_max_token_len_per_gpu=job.micro_batch_tokens,
    )
    optimizer = FSDPOptimizerConfig(
        lr=job.learning_rate,
        weight_decay=job.weight_decay,
        betas=(0.9, 0.999),
        clip_grad=job.max_grad_norm,
        total_training_steps=job.steps,
        lr_warmup_steps=0,
    )
    return model, engine, optimizer


def _seeded(build: Callable[[Any], Any], seed: int) -> Callable[[Any], Any]:
    """Return verl's maker of adapters with its draws from `seed` alone, as the local backend makes its own."""

    def built(module: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(module)

    return built


def prepared(batch: TensorDict, job: Job, longest: int, *, entropy: bool) -> TensorDict:
    """Return a batch with what verl's engine wants to know beside it; `longest`: ids of the longest row of any rank."""
    from verl.utils import tensordict_utils

    tensordict_utils.assign_non_tensor(
        batch,
        temperature=job.temperature,
        calculate_entropy=entropy,
        use_remove_padding=False,
        use_fused_kernels=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=max(job.micro_batch_tokens, longest),
    )
    return batch


def logprobs(engine: Any, batch: TensorDict) -> Tensor:
    """Return the log-probs, jagged over the batch's ids, of each one's next id under the present weights."""
    with computing(engine, engine.eval_mode()):
        found: Tensor = engine.infer_batch(batch)["model_output"]["log_probs"].cpu()  # else Ray brings the GPU along
    return found


@contextmanager
def computing(engine: Any, mode: AbstractContextManager[Any]) -> Iterator[None]:
    """Be in a mode of an engine's within; afterwards what it keeps on the host is there, and its device free.

    What fails on the way into the mode, or within, leaves no weight on the device either.
    """
    try:
        with mode:
            yield
    except BaseException:
        if engine.is_param_offload_enabled:
            engine.to("cpu", model=True, optimizer=True, grad=True)
        raise
    finally:
        _empty(engine)


def release(engine: Any) -> None:
    """Give the device's memory back, where an engine shares it, that what failed and was told held on to."""
    if engine.is_param_offload_enabled:
        gc.collect()
        _empty(engine)


def _empty(engine: Any) -> None:
    from verl.utils.device import get_torch_device

    if engine.is_param_offload_enabled:
        get_torch_device().empty_cache()


def gradient(engine: Any, batch: TensorDict, loss: Callable[..., Any]) -> float:
    """Leave the gradient of a batch with the engine's parameters; return this rank's loss.

    The minibatch's loss is the mean over the ranks.
    """
    with computing(engine, engine.train_mode(zero_grad_on_exit=False)):
        engine.optimizer_zero_grad()
        output = engine.forward_backward_batch(batch, loss)
    return float(sum(output["loss"]))


def step(engine: Any, size: float) -> float:
    """Clip the gradient and change the weights; return the norm it had. Where that is not finite, nothing changes."""
    for group in engine.optimizer.param_groups:
        group["lr"] = size
    with computing(engine, engine.train_mode(zero_grad_on_exit=True)):
        return float(engine.optimizer_step())


def set_rank(rank: int, world: int, address: str, port: int) -> None:
    """Say which rank this process is: verl reads it from the environment."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
