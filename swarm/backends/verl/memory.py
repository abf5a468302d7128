"""What a rank of the learner holds at once of its device's memory, by part, before anything is loaded.

Counted on torch's meta device, which computes nothing, by what autograd keeps of a forward of the longest micro-batch.
Allocators' waste, kernels' scratch and what else is on the device are not in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch import Tensor

from swarm.job import Job
from swarm.rendering.messages import BackendError

_GB: Final = 1e9
_STATE_BYTES: Final = 16
"""Of a parameter that is trained: fp32 weight, gradient and the two moments of AdamW."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes that one rank holds at once on its device."""

    states: int
    """Its part of weights, gradients and moments, and where its device is the host of copies of them."""
    gathered: int
    """What it has of the others meanwhile: embeddings and head, and two layers, in the type that computes."""
    activations: int
    """What a backward pass needs of the longest micro-batch."""
    logits: int
    """Of that micro-batch, three times in the type that computes (scaled by the temperature, and their gradient), and
    twice in fp32 while their entropy is computed."""
    version: int
    """The largest tensor that is gathered to publish a version."""

    @property
    def total(self) -> int:
        return self.states + self.gathered + max(self.activations + self.logits, self.version)

    def describe(self) -> str:
        parts = (
            ("weights, gradients, moments", self.states), ("gathered", self.gathered),
            ("activations", self.activations), ("logits", self.logits), ("to publish", self.version),
        )  # fmt: skip
        return f"{self.total / _GB:.1f} GB a rank (" + ", ".join(f"{n} {v / _GB:.1f}" for n, v in parts) + ")"


_COUNTED: Final = "ajet_counted"


class _Attention(torch.autograd.Function):
    """What attention in tiles keeps: query, key, value and what comes out; on meta torch would keep all scores."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, found)
        return found


def _attend(_: Any, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> tuple[Tensor, None]:
    found: Tensor = _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
    return found.transpose(1, 2).contiguous(), None


def measure_rank(folder: Path, job: Job, *, recomputed: bool, copies: bool = False) -> RankMemory:
    """Return what a rank needs to train the model of a folder, layers `recomputed` in the backward pass or not;
    `copies` of weights and moments that are on its host are on its device, too: that is the host."""
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

    dtype: torch.dtype = getattr(torch, job.dtype)
    config = AutoConfig.from_pretrained(folder)
    AttentionInterface.register(_COUNTED, _attend)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=_COUNTED)
    weights = {weight.untyped_storage()._cdata: weight.numel() for weight in model.parameters()}
    whole, layers = sum(weights.values()), max(1, int(config.get_text_config().num_hidden_layers))
    within = sum(weight.numel() for weight in model.base_model.layers.parameters())
    ids = torch.zeros(1, max(job.micro_batch_tokens, job.max_context), dtype=torch.long, device="meta")
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        saved.append(tensor)
        return tensor

    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # given a mask of four dimensions, transformers looks at no numbers, which there are none of here
        mask = torch.zeros(1, 1, 1, 1, dtype=dtype, device="meta")
        hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    activations = sum(kept.values())
    if recomputed:
        activations = layers * hidden.nbytes + activations // layers
    layer_sizes = [sum(m.weight.shape) for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
    trained = job.lora_rank * sum(layer_sizes) if job.lora_rank else whole
    states = trained * _STATE_BYTES + (4 * whole if job.lora_rank else 0)
    vocabulary = model.get_output_embeddings().weight
    stays = job.verl_fields.engine.get("reshard_after_forward") is False
    if copies and job.epochs * job.minibatches > 1:  # what an update that fails puts back
        states += 12 * trained
    if copies and job.kl_coef > 0 and not job.lora_rank:  # the frozen one, and ours in its place
        states += 8 * whole
    return RankMemory(
        states=states // job.verl_fields.trainers,
        gathered=(whole if stays else whole - within + 2 * within // layers) * dtype.itemsize,
        activations=activations, logits=ids.numel() * len(vocabulary) * (3 * dtype.itemsize + 8),
        version=max(weight.numel() for weight in model.parameters()) * (4 + dtype.itemsize),
    )  # fmt: skip


def require_room(folder: Path, job: Job, device: str | None) -> str:
    """Return what a rank needs of a device, cpu or cuda, and what is there; None: one elsewhere, of which nobody knows.
    BackendError where it cannot fit; a model that torch cannot run without numbers is not counted."""
    try:
        gpu = device != "cpu"
        need = measure_rank(folder, job, recomputed=job.gradient_checkpointing or gpu, copies=not gpu)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return f"not counted, as its model runs with numbers alone: {type(error).__name__}"
    if device is None:
        return f"{need.describe()} on GPUs; how much those of the cluster have is not known here"
    share = psutil.virtual_memory().total // job.verl_fields.trainers  # replicas are small beside them
    there = share if device == "cpu" else torch.cuda.get_device_properties(0).total_memory
    found = f"{need.describe()}; {there / _GB:.1f} GB is there"
    if need.total > there:
        advice = "ask for more verl.trainers, lower max_context and micro_batch_tokens, or set a lora_rank"
        raise BackendError(f"expected a training that fits the device of a rank; found {found}: {advice}")
    return found
