"""verl's names in one place, pinned to 0.9: engines, batches, gradients.

verl promises nothing about these between versions: `TrainingWorker` and its configurations, the engine's
`forward_backward_batch`, `infer_batch`, `optimizer_step`, `train_mode`, `module` and `optimizer`, `_build_lora_module`,
the registry of engines, `tensordict_utils`, the platform. Run for real: verl 0.9.1 on a CPU (gloo, FSDP2); the branches
for CUDA (nccl) were never run.

A batch is a TensorDict of jagged tensors, one row of ids for each of ours. Every sampled token is there once, with its
advantage, weight, log-probs, version and episode; `response_mask` is 0 where a later turn's prompt stands. A `padding`
row has no sampled token and adds nothing. Linear rows only: verl gives each row its own positions and attention, so
shared ids are fed once per row.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from swarm.algorithms.rows import Row, Tokens, flatten_tokens
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields

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
    return {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "swarm.backends.verl.worker"}


def rendezvous(address: str, port: int = 0, *, begin: bool) -> TCPStore:
    """Return where ranks meet: begun here, at a port that is free and from then on taken, or joined."""
    return TCPStore(
        address, port, is_master=begin, wait_for_workers=False, timeout=timedelta(seconds=EXCHANGE_TIMEOUT_S)
    )


def join(device: str, rank: int, world: int, store: TCPStore) -> None:
    """Join the process group at `store`; verl would ask for "cpu:gloo,cpu:gloo" on a CPU, which torch refuses."""
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(
        backend, timeout=timedelta(seconds=EXCHANGE_TIMEOUT_S), store=store, rank=rank, world_size=world
    )


def make_engine(folder: Path, job: Job, device: str) -> Any:
    """Return verl's engine for a model, made and sharded over the ranks of the group; all of them must call it."""
    made = make_worker(folder, job, device, "language_model")
    made.engine._build_lora_module = _seed_builder(made.engine._build_lora_module, job.seed)
    load_model(made)
    return made.engine


def load_model(worker: Any) -> None:
    if worker.engine.is_param_offload_enabled:
        _wait_for_moves()
    with enter_mode(worker.engine, nullcontext()):
        worker.reset()


def _wait_for_moves() -> None:
    """Have verl move weights and moments to the host in plain memory, and wait: FSDP2 pads small shards at once, with
    what has come by then, and pinned memory is rounded up to powers of two."""
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


def make_worker(folder: Path, job: Job, device: str, model_type: ModelType) -> Any:
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


def _seed_builder(build: Callable[[Any], Any], seed: int) -> Callable[[Any], Any]:
    """Return verl's maker of adapters with its draws from `seed` alone, as the local backend makes its own."""

    def build_seeded(module: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(module)

    return build_seeded


def prepare_batch(batch: TensorDict, job: Job, longest: int, *, entropy: bool) -> TensorDict:
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
    with enter_mode(engine, engine.eval_mode()):
        found: Tensor = engine.infer_batch(batch)["model_output"]["log_probs"].cpu()  # else Ray brings the GPU along
    return found


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


def gradient(engine: Any, batch: TensorDict, loss: Callable[..., Any]) -> float:
    """Leave a batch's gradient with the engine; return this rank's loss, of which the minibatch's is the mean."""
    with enter_mode(engine, engine.train_mode(zero_grad_on_exit=False)):
        engine.optimizer_zero_grad()
        output = engine.forward_backward_batch(batch, loss)
    return float(sum(output["loss"]))


def step(engine: Any, size: float) -> float:
    """Clip the gradient and change the weights; return the norm it had. Where that is not finite, nothing changes."""
    for group in engine.optimizer.param_groups:
        group["lr"] = size
    with enter_mode(engine, engine.train_mode(zero_grad_on_exit=True)):
        return float(engine.optimizer_step())


def set_rank(rank: int, world: int, address: str, port: int) -> None:
    """Say which rank this process is: verl reads it from the environment."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))


_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A row in verl's terms: all its ids (T,), the length of its prompt, and where in the response (R,) it sampled."""

    ids: Tensor
    prompt: int
    sampled: Tensor


def verl_batch(
    rows: Sequence[Row],
    advantages: Sequence[float],
    weights: Sequence[float],
    *,
    places: Sequence[Tensor] = (),
    padding: int = 0,
) -> TensorDict:
    """Return verl's batch of `rows` and as many rows of `padding`.

    advantages, weights: by episode, as `flatten_tokens` takes them. places: where among all tokens of a minibatch those of each row (K,) stand. Jagged over a
    row's ids: `input_ids`, `position_ids`, `loss_mask`; over its prompt: `prompts`; over its response: `responses`,
    `response_mask` and, unless all is padding, `places` and the columns of `_columns`.
    """
    shapes = [*map(_shape, rows), *[_Shape(torch.zeros(2, dtype=torch.long), 1, torch.zeros(0).long())] * padding]
    responses = [shape.ids[shape.prompt :] for shape in shapes]
    masks = [_scatter(shape, torch.ones(len(shape.sampled), dtype=torch.long)) for shape in shapes]
    whole = [torch.cat([torch.zeros(s.prompt).long(), mask]) for s, mask in zip(shapes, masks, strict=True)]
    columns = _columns(rows, flatten_tokens(rows, advantages, weights, _CPU)) if rows else {}
    if rows and places:
        columns["places"] = places
    filled = {
        name: [_scatter(s, v) for s, v in zip(shapes, [*values, *[values[0][:0]] * padding], strict=True)]
        for name, values in columns.items()
    }
    parts = {
        "input_ids": [shape.ids for shape in shapes],
        "position_ids": [torch.arange(len(shape.ids)) for shape in shapes],
        "loss_mask": whole,
        "prompts": [shape.ids[: shape.prompt] for shape in shapes],
        "responses": responses,
        "response_mask": masks,
        **filled,
    }
    nested = {name: torch.nested.as_nested_tensor(own, layout=torch.jagged) for name, own in parts.items()}
    return TensorDict(nested, batch_size=[len(shapes)])


def _shape(row: Row) -> _Shape:
    """Return a row with the id that it ends on, which ours leaves out: nothing is predicted after it."""
    first = int(row.places[0]) + 1
    return _Shape(torch.cat([row.ids, row.targets[-1:]]), first, row.places + 1 - first)


def _scatter(shape: _Shape, values: Tensor) -> Tensor:
    """Return values (K,) of the sampled tokens at their places in the response (R,), 0 elsewhere."""
    found = values.new_zeros(len(shape.ids) - shape.prompt)
    found[shape.sampled] = values
    return found


def _columns(rows: Sequence[Row], tokens: Tokens) -> dict[str, Sequence[Tensor]]:
    """Return what each sampled token carries, row by row; names that verl has are verl's."""
    counts = [len(row.targets) for row in rows]
    flat = {
        "advantages": tokens.advantages,
        "token_weights": tokens.weights,
        "rollout_log_probs": tokens.rollout,
        "versions": tokens.versions,
        "episodes": tokens.episodes,
        "old_log_probs": tokens.proximal,
        "sequence_log_ratios": tokens.sequence,
        "rollout_is_weights": tokens.correction,
        "kept": tokens.kept,
    }
    columns: dict[str, Sequence[Tensor]] = {
        name: values.split(counts) for name, values in flat.items() if values is not None
    }
    for name, known in (
        ("ref_log_prob", [row.reference for row in rows if row.reference is not None]),
        ("values", [row.values for row in rows if row.values is not None]),
        ("returns", [row.returns for row in rows if row.returns is not None]),
    ):
        if len(known) == len(rows):
            columns[name] = known
    return columns


def select_sampled(values: Any, batch: TensorDict) -> Tensor:
    """Return what a jagged output, which stands where ids are fed, says of the M sampled tokens, in the rows' order."""
    flat, ends = values.values(), values.offsets()[1:]
    lengths = batch["response_mask"].offsets().diff()
    parts = [flat[end - length - 1 : end - 1] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return torch.cat(parts)[batch["response_mask"].values().bool()]


def column(batch: TensorDict, name: str) -> Tensor:
    """Return what of a name a batch has of its M sampled tokens: one of `verl_batch`'s, or `places`."""
    found: Tensor = batch[name].values()[batch["response_mask"].values().bool()]
    return found


def batch_tokens(batch: TensorDict) -> tuple[Tokens, Tensor | None]:
    """Return the M sampled tokens of a batch, row by row, and their log-probs under the reference if it has them."""

    def own(name: str) -> Tensor | None:
        return column(batch, name) if name in batch.keys() else None  # noqa: SIM118 a TensorDict needs keys()

    tokens = Tokens(
        targets=column(batch, "responses"),
        rollout=column(batch, "rollout_log_probs"),
        versions=column(batch, "versions"),
        proximal=own("old_log_probs"),
        advantages=column(batch, "advantages"),
        weights=column(batch, "token_weights"),
        episodes=column(batch, "episodes"),
        sequence=own("sequence_log_ratios"),
        correction=own("rollout_is_weights"),
        kept=own("kept"),
    )
    return tokens, own("ref_log_prob")
