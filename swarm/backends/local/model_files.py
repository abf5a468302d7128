"""Model folders in Hugging Face's format, out of a checkpoint or a GGUF file.

    python -m swarm.backends.local.model_files --source FILE.gguf --target DIR

GGUF (needs the package `gguf`) becomes fp32; a folder it could not finish may hold parts. A checkpoint's folder
computes in float32 what the engine does; in bfloat16 too, but for a merged adapter, whose sum is rounded once more.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from swarm.backends.local import checkpoint
from swarm.backends.local.backend import base_model
from swarm.backends.local.loading import provenance, read_model
from swarm.backends.local.policy import add_adapter, frozen_copy, lora_config, trainable_parameters
from swarm.backends.protocols import DiskFull
from swarm.job import Job, PathModel
from swarm.models import Adapter, folder_hash, tokenizer_files
from swarm.rendering.messages import BackendError
from swarm.rendering.renderer import load_renderer

os.environ.setdefault("HF_HUB_OFFLINE", "1")

_WHATEVER_IS_WRONG = (OSError, ValueError, KeyError, IndexError, RuntimeError, ImportError, TypeError, AttributeError)
"""What transformers raises on files that it does not know."""


def convert(source: Path, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    say = partial(print, flush=True)
    say("reading the tokenizer")
    own: Any = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, **own)
    say("reading the weights")
    read: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **own)
    say("writing the weights in fp32")
    # What was read from GGUF remembers its quantisation and refuses to be saved: a fresh model has the weights alone.
    fresh = type(read)(read.config)
    fresh.load_state_dict(read.state_dict())
    fresh.generation_config = read.generation_config
    fresh.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main(arguments: list[str] | None = None) -> int:
    """Convert as the command line says; return the exit code (2: it could not be, with one line on stderr)."""
    parser = argparse.ArgumentParser(
        prog="python -m swarm.backends.local.model_files", description="Convert a GGUF file."
    )
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--target", required=True, type=Path)
    given = parser.parse_args(arguments)
    disable_progress_bar()
    try:
        convert(given.source, given.target)
    except (*_WHATEVER_IS_WRONG, SafetensorError) as error:
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 2
    return 0


_AROUND_PEFT = "base_model.model."
_DEFAULT = ".default.weight"


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """What was written: the model that training began with, and hashes."""

    base: Path
    base_weights: str
    template: str
    adapter: Adapter


def write_model(
    job: Job, models: Path, source: Path, to: Path, *, apart: bool, say: Callable[[str], None]
) -> WrittenModel:
    """Write a job's checkpoint as a model folder `to`, its adapter `apart`. BackendError (DiskFull), or OSError."""
    disable_progress_bar()
    say("reading the model that training began with")
    base = base_model(job, models)
    own, began_with = job.model, None
    if isinstance(own, PathModel) and not own.warm_start_steps and job.start_from is None:
        began_with = own.sha256
    if began_with is not None and (present := folder_hash(base)) != began_with:
        raise BackendError(
            f"expected the model in {base} as training began with it (sha256 {began_with[:12]}), found it changed "
            f"({present[:12]}): put the former files back"
        )
    model = read_model(base, torch.float32, "eager")
    began = provenance(read_model(base, getattr(torch, job.dtype), "eager"), load_renderer(base).template)
    say("reading the checkpoint")
    if job.backend == "verl":  # whose names are peft's
        learned = {name.removeprefix(_AROUND_PEFT): weight for name, weight in checkpoint.read_model(source).items()}
    else:
        learned = dict(checkpoint.read(source, checkpoint.MODEL).sets[checkpoint.MODEL])
    if job.lora_rank:
        add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    trained = trainable_parameters(model)
    if {name: weight.shape for name, weight in trained.items()} != {name: own.shape for name, own in learned.items()}:
        raise BackendError(f"the checkpoint is of another model than the one in {base}: put the former files back")
    say("writing")
    try:
        if apart:
            _write_adapter(job, learned, base, to)
        else:
            with torch.no_grad():
                for name, weight in trained.items():
                    weight.copy_(learned[name])
            _write_whole(model, getattr(torch, job.dtype), base, to)
    except SafetensorError as error:
        if checkpoint.is_full(error):
            raise DiskFull(str(error)) from error
        raise BackendError(f"the weights could not be written: {error}") from error
    for path in tokenizer_files(base):
        target = to / path.relative_to(base)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    kind: Adapter = "apart" if apart else "merged" if job.lora_rank else "none"
    return WrittenModel(base, began["weights"], began["template"], kind)


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


if __name__ == "__main__":
    sys.exit(main())
