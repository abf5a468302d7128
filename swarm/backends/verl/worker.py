"""One rank: a process with its shard of the policy, trained by verl's engine; its batches, and the job's loss.

`start`, `score`, `gradient`, `step` and `export_weights` exchange with the other ranks: all must be called. The
reference is the model as training begins with it. Shards go by the model's own parameter names; `whole_tensors` gives
full tensors under Hugging Face's names, adapters merged and tied embeddings under both names.

A batch is a TensorDict of jagged tensors, one row of ids for each of ours; `response_mask` is 0 where a later turn's
prompt stands. A `padding` row has no sampled token and adds nothing. Micro-batches and ranks add up to exactly the
minibatch's loss: FSDP averages gradients, so each rank's share is multiplied by their number. A micro-batch without a
sampled token contributes 0 and still takes part in the exchange. A loss can be pickled.

It also holds a CPU platform for verl, which brings CUDA and NPU alone; `adapter.environment` has verl find and take it.
"""

import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from swarm.algorithms.learner import CPU
from swarm.algorithms.losses import Surrogate
from swarm.algorithms.objective import Objective, UpdateSums
from swarm.algorithms.rows import Row, Tokens, flatten_tokens
from swarm.backends.local import checkpoint
from swarm.backends.local.policy import trainable_parameters
from swarm.backends.verl import adapter
from swarm.backends.verl.processes import Bucket, forget_secrets, set_gloo_interface
from swarm.backends.verl.vllm import add_adapter, folder_tensors, sample_tensors
from swarm.job import Job
from swarm.rendering.messages import BackendError

_NOTHING_TO_DO = "empty_cache synchronize ipc_collect set_device reset_peak_memory_stats manual_seed manual_seed_all"
_MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def _always(value: Any) -> Any:
    return lambda *_, **__: value


def _device_module() -> ModuleType:
    module = ModuleType("cpu_device")
    module.__dict__.update({
        **dict.fromkeys(_NOTHING_TO_DO.split(), _always(None)),
        **dict.fromkeys(_MEMORY, lambda *_, **__: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
        "is_available": _always(True),
        "device_count": _always(1),
        "current_device": _always(torch.device("cpu")),
        "get_device_name": _always("cpu"),
        "is_bf16_supported": _always(True),
        "mem_get_info": _always((0, 0)),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    })  # fmt: skip
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Implements verl's platform. It is never detected, only chosen by name."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _device_module()

    is_available, device_count = _always(True), _always(1)
    is_platform_available = is_ipc_supported = _always(False)
    current_device = _always(torch.device("cpu"))  # verl passes it to `Tensor.to`, where a number would be a GPU's
    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _always(None)
    profiler_start = profiler_stop = cudart = _always(None)
    get_device_capability = _always((None, None))
    communication_backend_name, ray_resource_name = _always("gloo"), _always("CPU")
    visible_devices_envvar = _always("VERL_CPU_VISIBLE_DEVICES")
    nvtx_range = _always(nullcontext())
    ray_noset_envvars = _always(())

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_cpus": num_gpus}


_COLUMNS = {
    "advantages": "advantages", "token_weights": "weights", "rollout_log_probs": "rollout", "versions": "versions",
    "episodes": "episodes", "old_log_probs": "proximal", "sequence_log_ratios": "sequence",
    "rollout_is_weights": "correction", "kept": "kept",
}  # fmt: skip
"""What each sampled token carries in a batch, by names that are verl's where it has one, and fields of `Tokens`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A row in verl's terms: all its ids (T,), the length of its prompt, and where in the response (R,) it sampled."""

    ids: Tensor
    prompt: int
    sampled: Tensor


def verl_batch(
    rows: Sequence[Row], advantages: Sequence[float], weights: Sequence[float], *, padding: int = 0
) -> TensorDict:
    """Return verl's batch of `rows` and as many rows of `padding`; advantages, weights: by episode. Jagged over a row's
    ids: `input_ids`, `position_ids`, `loss_mask`; over its prompt: `prompts`; over its response: `responses`,
    `response_mask` and, unless all is padding, `ref_log_prob` and those of `_COLUMNS` that are there."""
    shapes = []
    for row in rows:  # with the id that it ends on, which ours leaves out: nothing is predicted after it
        first = int(row.places[0]) + 1
        shapes.append(_Shape(torch.cat([row.ids, row.targets[-1:]]), first, row.places + 1 - first))
    shapes += [_Shape(torch.zeros(2, dtype=torch.long), 1, torch.zeros(0).long())] * padding
    responses = [shape.ids[shape.prompt :] for shape in shapes]
    masks = [_scatter(shape, torch.ones(len(shape.sampled), dtype=torch.long)) for shape in shapes]
    whole = [torch.cat([torch.zeros(s.prompt).long(), mask]) for s, mask in zip(shapes, masks, strict=True)]
    columns: dict[str, Sequence[Tensor]] = {}
    if rows:
        tokens, counts = flatten_tokens(rows, advantages, weights, CPU), [len(row.targets) for row in rows]
        flat = {name: getattr(tokens, field) for name, field in _COLUMNS.items()}
        columns = {name: values.split(counts) for name, values in flat.items() if values is not None}
        references = [row.reference for row in rows if row.reference is not None]
        columns |= {"ref_log_prob": references} if len(references) == len(rows) else {}
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
    jagged = torch.nested.nested_tensor_from_jagged
    nested = {name: jagged(torch.cat(own), lengths=torch.tensor([*map(len, own)])) for name, own in parts.items()}
    return TensorDict(nested, batch_size=[len(shapes)])


def _scatter(shape: _Shape, values: Tensor) -> Tensor:
    """Return values (K,) of the sampled tokens at their places in the response (R,), 0 elsewhere."""
    found = values.new_zeros(len(shape.ids) - shape.prompt)
    found[shape.sampled] = values
    return found


def select_sampled(values: Any, batch: TensorDict) -> Tensor:
    """Return what a jagged output, which stands where ids are fed, says of the M sampled tokens, in the rows' order."""
    flat, ends = values.values(), values.offsets()[1:]
    lengths = batch["response_mask"].offsets().diff()
    parts = [flat[end - length - 1 : end - 1] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return torch.cat(parts)[batch["response_mask"].values().bool()]


def batch_tokens(batch: TensorDict) -> tuple[Tokens, Tensor | None]:
    """Return the M sampled tokens of a batch, row by row, and their log-probs under the reference if it has them."""
    sampled = batch["response_mask"].values().bool()

    def own(name: str) -> Any:
        return batch[name].values()[sampled] if name in batch.keys() else None  # noqa: SIM118 a TensorDict needs keys()

    fields: dict[str, Any] = {field: own(name) for name, field in _COLUMNS.items()}
    return Tokens(targets=own("responses"), **fields), own("ref_log_prob")


class ObjectiveLoss:
    """The job's `Objective`, as verl calls a loss function; `sums` are of what this rank computed in one update."""

    def __init__(self, job: Job, version: int) -> None:
        self.sums = UpdateSums(version, job.correction_cap)
        self._objective = Objective(job)

    def __call__(
        self, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the micro-batch's share () of the loss times the number of ranks, and no metrics: see `sums`."""
        nothing = model_output["log_probs"].values()[:0].sum()
        if not data["response_mask"].values().any():
            return nothing, {}
        tokens, reference = batch_tokens(data)
        present, entropy = (select_sampled(model_output[name], data) for name in ("log_probs", "entropy"))
        loss = self._share(present, entropy, tokens, reference)
        return loss * data["dp_size"] + nothing, {}

    def _share(self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None) -> Tensor:
        return self._objective.token_loss(present, entropy, tokens, reference, self.sums)


class VerlLoss(ObjectiveLoss):
    """The loss of the policy that the job names, by verl's function; entropy and divergence are the objective's."""

    def __init__(self, job: Job, version: int) -> None:
        super().__init__(job, version)
        self._job = job
        self._bypass = job.verl_fields.bypass

    def _share(self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None) -> Tensor:
        if self._bypass:
            proximal, correction = tokens.rollout, torch.ones_like(tokens.rollout)
        else:
            proximal = self._objective.proximal(present, tokens)
            correction = self._objective.correction(proximal, tokens)
        loss, *clipped = adapter.policy_loss(self._job, tokens, present, proximal, correction)
        self.sums.add(pg_loss=loss)
        # verl tells parts of all tokens, and our sums are over tokens: each counts as the part
        terms = Surrogate(present.detach(), *[torch.full_like(present, part) for part in clipped])
        self.sums.add_tokens(tokens, present, proximal, terms, correction)
        return self._objective.add_bonuses(loss, present, entropy, tokens, reference, self.sums)


_HEAD, _ADAPTED = "lm_head.weight", ".base_layer"
_PREFIX = "base_model.model."
"""What peft puts before the names of a model with an adapter."""


def copy_shards(engine: Any) -> checkpoint.Sets:
    """Return copies of this rank's parts of the trained weights, and of AdamW's state by `PARAMETER/KEY`, as sets."""
    own, state = trainable_parameters(engine.module), engine.optimizer.state
    moments = {
        f"{name}/{key}": _local_part(value).to("cpu", copy=True)
        for name, weight in own.items() for key, value in state[weight].items()
    } if state else {}  # fmt: skip
    return {checkpoint.MODEL: copy_weights(engine.module), checkpoint.OPTIMIZER: moments}


def _local_part(value: Any) -> Tensor:
    """Return this rank's part of a tensor, which shares its memory."""
    part: Tensor = (value.to_local() if hasattr(value, "to_local") else value).detach()
    return part


def copy_weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: _local_part(weight).to("cpu", copy=True) for name, weight in trainable_parameters(module).items()}


@torch.no_grad()
def put_back(engine: Any, saved: checkpoint.Sets) -> None:
    own, state = trainable_parameters(engine.module), engine.optimizer.state
    put_weights(engine.module, saved[checkpoint.MODEL])
    state.clear()
    for path, value in saved.get(checkpoint.OPTIMIZER, {}).items():
        name, key = path.rsplit("/", 1)
        if key == "step":
            state[own[name]][key] = value.clone()
        else:  # sharded as the weight is
            state[own[name]][key] = torch.zeros_like(own[name])
            _local_part(state[own[name]][key]).copy_(value)


@torch.no_grad()
def put_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, weight in trainable_parameters(module).items():
        _local_part(weight).copy_(weights[name])


@torch.no_grad()
def whole_tensors(module: Any, *, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield name and full tensor or, on a CPU, the weight itself, of the plain model, adapters added; all take all."""
    state: Mapping[str, Tensor] = module.state_dict()
    sources = {own.removeprefix(_PREFIX).replace(_ADAPTED, ""): own for own in state if ".lora_" not in own}
    embeddings = next((own for name, own in sources.items() if name.endswith("embed_tokens.weight")), None)
    if getattr(module.config, "tie_word_embeddings", False) and embeddings is not None:
        sources.setdefault(_HEAD, embeddings)
    before, full = "", torch.empty(0)
    for name, own in sorted(sources.items()):
        if own != before:
            before, full = own, _full_tensor(state[own])
            if _ADAPTED in own and own.endswith(".weight"):
                base = own.split(_ADAPTED)[0]
                down, up = (_full_tensor(state[f"{base}.lora_{side}.default.weight"]) for side in "AB")
                full = add_adapter(full, down, up, module.get_submodule(base).scaling["default"])
            full = full.to("cpu", dtype)
        yield name, full


def _full_tensor(value: Any) -> Tensor:
    full: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full


BUCKET_BYTES = 256 << 20
"""Most bytes of a bucket of exported weights, unless one tensor alone has more."""


class Rank:
    """A Ray actor's class. Nothing of verl is imported before `start`."""

    def __init__(self, folder: str, job: Job, device: str) -> None:
        self._folder, self._job, self._device = Path(folder), job, device
        self._engine: Any = None
        self._loss: Any = None
        self._before: checkpoint.Sets | None = None
        self._read: checkpoint.Sets | None = None
        self._reference: Mapping[str, Tensor] | None = None
        self._samples: Mapping[str, Tensor] = {}  # of the model's folder; none where all weights are published
        self._rank, self._world = 0, 1
        self._store: Any = None
        forget_secrets()

    def alive(self) -> None:
        """Say that this process lives."""

    def address(self) -> tuple[str, int]:
        """Return where rank 0 can be met from now on: its node's address and a port."""
        import ray

        here = ray.util.get_node_ip_address()
        self._store = adapter.rendezvous(here, begin=True)
        return here, int(self._store.port)

    def start(self, rank: int, world: int, address: str, port: int) -> float:
        """Join the others, load the model and shard it; return the seconds that took."""
        import ray

        begun = time.perf_counter()
        self._rank, self._world = rank, world
        if self._device == "cpu":
            torch.set_num_threads(1)  # ranks that spin beside one another cost ten times as much
        alone = self._job.verl is None or self._job.verl.address is None
        # nobody else is to reach a Ray of its own
        set_gloo_interface("127.0.0.1" if alone else ray.util.get_node_ip_address())
        adapter.join(self._device, rank, world, address, port, self._store)
        self._engine = adapter.make_engine(self._folder, self._job, self._device)
        if self._job.kl_coef > 0 and not self._job.lora_rank:
            self._reference = copy_weights(self._engine.module)
        if self._job.lora_rank:
            tensors = folder_tensors(self._folder)
            alike = torch.tensor(all(name.split(".lora_")[0] + ".weight" in tensors for name in self._adapters())).int()
            torch.distributed.all_reduce(alike, torch.distributed.ReduceOp.MIN)  # all ranks export the same
            self._samples = sample_tensors(tensors) if alike else {}
        return time.perf_counter() - begun

    def _adapters(self) -> dict[str, Any]:
        state = self._engine.module.state_dict().items()
        return {name.removeprefix(_PREFIX).replace(".default", ""): value for name, value in state if ".lora_" in name}

    def score(self, batches: Sequence[Any], *, reference: bool) -> Tensor:
        """Return the log-probs (M,) of the sampled tokens of micro-batches under the present weights, or the frozen
        reference."""
        with self._using_reference() if reference else nullcontext():
            prepared = [adapter.prepare_batch(batch, self._job, entropy=False) for batch in batches]
            found = adapter.infer(self._engine, prepared)
        return torch.cat([select_sampled(each, batch) for each, batch in zip(found, batches, strict=True)])

    @contextmanager
    def _using_reference(self) -> Iterator[None]:
        if self._reference is None:
            with self._engine.disable_adapter():
                yield
            return
        present = copy_weights(self._engine.module)
        try:
            put_weights(self._engine.module, self._reference)
            yield
        finally:
            put_weights(self._engine.module, present)

    def call_verl(self, function: str, *arguments: Any) -> Any:
        """Return what verl's `advantages` or `correct_rollout`, of the adapter, make of a batch."""
        return getattr(adapter, function)(self._job, *arguments)

    def begin(self, loss: ObjectiveLoss, *, undoable: bool) -> None:
        """Begin an update; `undoable`: it may fail after a step, and what is there now is kept for `undo`."""
        self._loss = loss
        self._before = copy_shards(self._engine) if undoable else None

    def keep(self) -> None:
        """End an update that was made: forget what `undo` would have put back."""
        self._before = None

    def gradient(self, batches: Sequence[Any]) -> tuple[float, UpdateSums, dict[str, float]]:
        """Leave the gradient of a minibatch's micro-batches; return this rank's loss, the update's sums so far, and
        what it took of the device."""
        begun = time.perf_counter()
        prepared = [adapter.prepare_batch(batch, self._job, entropy=True) for batch in batches]
        loss = adapter.gradient(self._engine, prepared, self._loss)
        return loss, self._loss.sums, adapter.usage(self._engine, prepared, begun)

    def step(self, size: float) -> float:
        """Change the weights by the clipped gradient, unless it is not finite; return the norm it had."""
        norm = adapter.step(self._engine, size)
        self._loss.sums.steps += 1
        return norm

    def undo(self) -> None:
        """Put everything back as it was when the update began, and forget the gradient."""
        self._engine.optimizer_zero_grad()
        if self._before is not None:
            put_back(self._engine, self._before)
        self._before = None

    def save(self, folder: str) -> None:
        checkpoint.write_rank(Path(folder), self._rank, copy_shards(self._engine))

    def prepare(self, folder: str) -> None:
        """Read this rank's part, whoever wrote, for `restore`; BackendError for what is damaged or does not fit."""
        saved = checkpoint.read_rank(Path(folder), self._rank, self._world)
        own = {name: _local_part(weight).shape for name, weight in trainable_parameters(self._engine.module).items()}
        if {name: value.shape for name, value in saved.get(checkpoint.MODEL, {}).items()} != own:
            raise BackendError(f"the checkpoint {folder} is of another model: load it into the job that wrote it")
        self._read = saved

    def restore(self) -> None:
        assert self._read is not None
        put_back(self._engine, self._read)
        self._read = None

    def export_weights(self) -> list[Any]:
        """Return rank 0's references to buckets of full tensors, which all ranks exchange."""
        return self._put(whole_tensors(self._engine.module, dtype=getattr(torch, self._job.dtype)), BUCKET_BYTES)

    def export_version(self) -> list[Any]:
        """Return what replicas need that have the model's folder: one bucket of the adapters, by peft's names, if the
        folder has by the same names what they are added to; else all weights."""
        if not self._samples:
            return self.export_weights()
        tensors = {**self._adapters(), **self._samples}
        return self._put(((name, _full_tensor(value).cpu()) for name, value in tensors.items()), None)

    def _put(self, tensors: Iterable[tuple[str, Tensor]], most: int | None) -> list[Any]:
        import ray

        adapter.release(self._engine)  # an update that ran out of memory may have left some
        references, bucket, size = [], Bucket(), 0
        for name, tensor in tensors:
            if self._rank:
                continue
            if most and bucket and size + tensor.nbytes > most:
                references.append(ray.put(bucket))
                bucket, size = Bucket(), 0
            bucket[name] = tensor
            size += tensor.nbytes
        return references if self._rank else [*references, ray.put(bucket)]
