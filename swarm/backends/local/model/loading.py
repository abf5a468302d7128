"""Loading: from a folder and a job to the policy, on the job's device, in its element type, with its adapter.

Promises: whatever is wrong (a missing weight, a device that is not there, a context beyond the model's, an
architecture that cannot be served, too little memory) is one BackendError, and all but missing or damaged weights are
found before any are read; any Hugging Face causal LM whose tokens see all before them (`architecture.py`) in
safetensors, in one file or in shards, its embeddings tied or not.
Knows nothing of what runs on the policy, and does not check what it computes (`eager_check.py`), nor whether the folder
is there and whole (`swarm.models`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from swarm.backends.local.model.adapters import add_adapter
from swarm.backends.local.model.architecture import Attention, attention, refusing, require_servable
from swarm.backends.local.model.fit import require_room
from swarm.backends.local.model.policy import Policy
from swarm.backends.local.model.threads import choose_threads
from swarm.backends.protocols import BackendError, not_loaded
from swarm.job import Job


def load_policy(folder: Path, job: Job, *, ids: int = 0, text: Sequence[int] = ()) -> Policy:
    """Load the causal LM in `folder`, which must know `ids` ids, as the job says; BackendError with what is missing.

    `text` is ids of ordinary text as the model is shown it, which checks feed.
    From here on torch computes with as many threads as the model can use (`threads.py`).
    """
    device = chosen_device(job)
    _require_layout(job, device)
    skeleton = _skeleton(folder, job)
    _require_rows(folder, skeleton, ids)
    _require_positions(folder, skeleton.config, job.max_context)
    require_servable(folder, skeleton, job.max_context)
    attends = attention(skeleton)
    require_room(folder, skeleton, job, device)
    model = read_model(folder, getattr(torch, job.dtype), attends)
    if job.lora_rank:
        add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    choose_threads(sum(parameter.numel() for parameter in model.parameters()))
    kind, no_adapter = skeleton.config.model_type, "set lora_rank to 0, or " if job.lora_rank else ""
    found = f"expected a forward over ids alone, found that {kind} in {folder} fails"
    with refusing(found, f"{no_adapter}choose another model"):
        return Policy(model, device, text)


def chosen_device(job: Job) -> torch.device:
    """Return the job's device, the best there is for `auto`; BackendError where this machine has no such one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if job.device == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    if not there[job.device]:
        raise BackendError(
            f"the job's device is {job.device} and torch {torch.__version__} finds none on this machine: "
            f"set device to auto or cpu"
        )
    return torch.device(job.device)


def _require_layout(job: Job, device: torch.device) -> None:
    if job.merging == "tree" and device.type != "cpu":
        raise BackendError(
            f"expected merging auto, linear or none on {device.type}, where rows are computed faster than trees, found "
            "tree: change merging, or set device to cpu"
        )


def _skeleton(folder: Path, job: Job) -> Any:
    """Return the model, with its adapter, as shapes without weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, job.dtype), trust_remote_code=False)
            if job.lora_rank:
                add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _unreadable(folder, error) from error
    return model


def read_model(folder: Path, dtype: torch.dtype, attends: Attention) -> nn.Module:
    """Return the causal LM in `folder`, on the CPU; BackendError where it does not load, or lacks weights."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, found = load(
            folder,
            dtype=dtype,
            attn_implementation=attends,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _unreadable(folder, error) from error
    if missing := sorted(found["missing_keys"]):
        raise BackendError(
            f"the model in {folder} lacks {len(missing)} of its weights ({', '.join(missing[:3])}"
            f"{', ...' if missing[3:] else ''}): copy the whole model"
        )
    loaded: nn.Module = model
    return loaded


def _unreadable(folder: Path, error: Exception) -> BackendError:
    return not_loaded(f"the model in {folder}", error)


def _require_rows(folder: Path, skeleton: Any, ids: int) -> None:
    rows = skeleton.get_input_embeddings().num_embeddings
    if ids > rows:
        raise BackendError(
            f"the tokenizer in {folder} makes ids up to {ids - 1}, the model has embeddings for {rows} ids, up to "
            f"{rows - 1}: give the model as many rows (resize_token_embeddings({ids})), or take the added tokens away"
        )


def _require_positions(folder: Path, config: Any, max_context: int) -> None:
    limit = getattr(config, "max_position_embeddings", None) or max_context
    if max_context > limit:
        raise BackendError(
            f"expected a max_context of at most {limit}, as many as the model in {folder} has positions, found "
            f"{max_context}: set max_context to {limit} or less, or choose another model"
        )
