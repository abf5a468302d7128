"""A Hugging Face folder of a checkpoint: the model that training began with, with what it learned.

Promises: in float32 the folder computes what the engine does; in bfloat16 too, but for an adapter that is merged, whose
sum with the weights is rounded once more. No code goes with a model: one that needs its own is refused, as a server
refuses it. Writes into a folder that its caller made, and knows nothing of trainings but the job.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from swarm.backends.local.backend import base_model
from swarm.backends.local.learning import checkpoint
from swarm.backends.local.model.adapters import add_adapter, frozen_copy, lora_config, trained
from swarm.backends.local.model.loading import read_model
from swarm.backends.local.provenance import provenance
from swarm.backends.protocols import BackendError, NoRoom
from swarm.backends.rendering.renderer import load_renderer
from swarm.backends.verl.saving import sharded
from swarm.job import Job, PathModel
from swarm.models import folder_hash, tokenizer_files
from swarm.models.card import Adapter

_AROUND_PEFT = "base_model.model."
_DEFAULT = ".default.weight"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the model that training began with, and hashes."""

    base: Path
    base_weights: str
    template: str
    adapter: Adapter


def write_model(job: Job, models: Path, source: Path, to: Path, *, apart: bool, say: Callable[[str], None]) -> Written:
    """Write the checkpoint in `source` of the job's training into the folder `to`; `apart` keeps an adapter apart,
    which the job has to have.

    Raises BackendError with what is wrong (NoRoom on a full disk), and OSError where files cannot be written.
    """
    disable_progress_bar()
    say("reading the model that training began with")
    base = base_model(job, models)
    _require_unchanged(job, base)
    model = read_model(base, torch.float32, "eager")
    began = provenance(read_model(base, getattr(torch, job.dtype), "eager"), load_renderer(base).template)
    say("reading the checkpoint")
    learned = _learned(job, source)
    if job.lora_rank:
        add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    _take(model, learned, base)
    say("writing")
    try:
        if apart:
            _write_adapter(job, learned, base, to)
        else:
            _write_whole(model, getattr(torch, job.dtype), base, to)
    except SafetensorError as error:
        if checkpoint.is_full(error):
            raise NoRoom(str(error)) from error
        raise BackendError(f"the weights could not be written: {error}") from error
    for path in tokenizer_files(base):
        target = to / path.relative_to(base)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    kind: Adapter = "apart" if apart else "merged" if job.lora_rank else "none"
    return Written(base, began["weights"], began["template"], kind)


def _require_unchanged(job: Job, base: Path) -> None:
    spec = job.model
    if not isinstance(spec, PathModel) or spec.sha256 is None or spec.warm_start_steps or job.start_from is not None:
        return
    if (found := folder_hash(base)) != spec.sha256:
        raise BackendError(
            f"expected the model in {base} as training began with it (sha256 {spec.sha256[:12]}), found it changed "
            f"({found[:12]}): put the former files back"
        )


def _learned(job: Job, source: Path) -> Mapping[str, Tensor]:
    """Return the trained weights of a checkpoint, by the names that they have in the plain model or on it."""
    if job.backend == "verl":
        return {name.removeprefix(_AROUND_PEFT): weight for name, weight in sharded.read_model(source).items()}
    return checkpoint.read(source).sets["model"]


@torch.no_grad()
def _take(model: nn.Module, learned: Mapping[str, Tensor], base: Path) -> None:
    """Give the model its learned weights; raise BackendError where they are another model's."""
    own = trained(model)
    if {name: weight.shape for name, weight in own.items()} != {name: each.shape for name, each in learned.items()}:
        raise BackendError(f"the checkpoint is of another model than the one in {base}: put the former files back")
    for name, weight in own.items():
        weight.copy_(learned[name])


def _write_whole(model: nn.Module, dtype: torch.dtype, base: Path, to: Path) -> None:
    for module in list(model.modules()):
        if hasattr(module, "base_layer") and hasattr(module, "merge"):
            merge: Any = module.merge
            merge()
    whole: Any = frozen_copy(model).to(dtype)
    for code in ("auto_map", "custom_pipelines"):
        whole.config.__dict__.pop(code, None)
    whole.save_pretrained(to)
    if (settings := base / "generation_config.json").is_file():
        shutil.copyfile(settings, to / settings.name)


def _write_adapter(job: Job, learned: Mapping[str, Tensor], base: Path, to: Path) -> None:
    """Write the adapter as peft names it, with the layers it is on."""
    dtype = getattr(torch, job.dtype)
    files = {
        f"{_AROUND_PEFT}{name.removesuffix(_DEFAULT)}.weight": weight.to(dtype).contiguous()
        for name, weight in learned.items()
    }
    config = lora_config(rank=job.lora_rank, alpha=job.lora_alpha)
    config.target_modules = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in learned}
    config.base_model_name_or_path = str(base.absolute())
    config.task_type = "CAUSAL_LM"
    config.inference_mode = True
    config.save_pretrained(str(to))
    save_file(files, to / "adapter_model.safetensors", {"format": "pt"})
