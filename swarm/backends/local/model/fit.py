"""Whether a model fits: the bytes that serving and training it take, against those that its device has free.

Promises: counted before anything is read, from the model's shapes alone; only what is certain is counted (weights,
gradients, optimiser, reference, the key-value cache), so that what is refused could not have run. Activations come on
top: `micro_batch_tokens` and `gradient_checkpointing` bound those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from swarm.backends.local.model.cache_shape import CacheShape, measure_cache_shape, slot_bytes
from swarm.backends.protocols import BackendError
from swarm.job import Job

_MASTER = 4
"""Bytes of an fp32 number: gradients are summed, moments kept and steps made in it."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def require_room(folder: Path, skeleton: Any, job: Job, device: torch.device) -> None:
    """Raise BackendError, with all the figures, if a model of `skeleton`'s shapes has no room on `device` or beside it.

    Whatever the device, weights come by way of the host's memory, and what undoes an update is kept there.
    """
    own, host = needs(skeleton, job), host_needs(skeleton, job)
    if device.type == "cpu":
        host = {**own, "copy to undo an update": host["copy to undo an update"]}
    else:
        _require(folder, own, job, device)
    _require(folder, host, job, torch.device("cpu"))


def _require(folder: Path, needed: Mapping[str, int], job: Job, device: torch.device) -> None:
    total, free = sum(needed.values()), free_bytes(device)
    if total > free:
        parts = ", ".join(f"{name} {_said(size)}" for name, size in needed.items() if size)
        raise BackendError(
            f"the model in {folder} needs {total:,} bytes on {device.type} ({parts}) and {free:,} are free: "
            f"{_advice(job)}"
        )


def needs(skeleton: Any, job: Job) -> Mapping[str, int]:
    """Return the bytes that each part takes at least on the device that computes."""
    weights, trained = list(skeleton.parameters()), _trained(skeleton)
    numbers, served = _numbers(trained), _bytes(trained)
    lower = job.dtype != "float32"
    return {
        "weights": _bytes(weights),
        "gradients": numbers * _MASTER + (served if lower else 0),
        "optimiser": 2 * numbers * _MASTER,
        "fp32 copy of the weights": numbers * _MASTER if lower else 0,
        "reference": served if job.kl_coef > 0 and not job.lora_rank else 0,
        "key-value cache": _cache(skeleton, job),
    }


def host_needs(skeleton: Any, job: Job) -> Mapping[str, int]:
    """Return the bytes that the host's memory must have, wherever the model computes."""
    several = job.epochs * job.minibatches > 1
    return {
        "weights": _bytes(skeleton.parameters()),
        "copy to undo an update": 3 * _numbers(_trained(skeleton)) * _MASTER if several else 0,
    }


def _trained(skeleton: Any) -> list[Tensor]:
    return [weight for weight in skeleton.parameters() if weight.requires_grad]


def _numbers(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _cache(skeleton: Any, job: Job) -> int:
    one = slot_bytes(_cache_shape(skeleton), getattr(torch, job.dtype), job.max_context)
    return min(job.max_concurrency, max(1, job.kv_cache_bytes // one)) * one


def _cache_shape(skeleton: Any) -> CacheShape:
    """Return the cache's shape: measured, or as configured where positions are computed from numbers, not shapes."""
    try:
        return measure_cache_shape(skeleton)
    except BackendError:
        config = skeleton.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return CacheShape(config.num_hidden_layers, heads, width, width)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def free_bytes(device: torch.device) -> int:
    """Return the bytes that can still be taken on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return min(psutil.virtual_memory().available, _container_bytes())


def _container_bytes() -> int:
    """Return what a container's limit leaves this process; more than any machine has where there is none."""
    said = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    return int(said) - int(psutil.Process().memory_info().rss) if said.isdigit() else 1 << 62


def _advice(job: Job) -> str:
    ways = [
        "take a smaller model",
        "dtype bfloat16" if job.dtype == "float32" else "",
        "a lora_rank" if not job.lora_rank else "",
        "a smaller kv_cache_bytes",
    ]
    return ", ".join(way for way in ways if way)


def _said(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
