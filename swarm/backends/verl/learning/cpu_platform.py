"""A platform for verl that computes on a CPU: verl brings CUDA and NPU alone.

verl finds it by its own extension point: `VERL_USE_EXTERNAL_MODULES` names this module, `VERL_PLATFORM=cpu` chooses
what it registers. Import it in no other way: verl must be about to choose.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

_NOTHING_TO_DO = (
    "empty_cache", "synchronize", "ipc_collect", "set_device", "reset_peak_memory_stats", "manual_seed",
    "manual_seed_all",
)  # fmt: skip
_MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def _nothing(*_: Any, **__: Any) -> None:
    """Do what a CPU needs: nothing."""


def _resident(*_: Any, **__: Any) -> int:
    """Return the process's peak memory in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_module() -> ModuleType:
    """Return what stands for `torch.cuda` in the calls that verl makes of it."""
    module = ModuleType("cpu_device")
    members: Mapping[str, Any] = {
        **dict.fromkeys(_NOTHING_TO_DO, _nothing),
        **dict.fromkeys(_MEMORY, _resident),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: torch.device("cpu"),
        "get_device_name": lambda *_: "cpu",
        "is_bf16_supported": lambda *_: True,
        "mem_get_info": lambda *_: (0, 0),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    }
    module.__dict__.update(members)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Implements verl's platform. It is never detected, only chosen by name."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _device_module()

    def is_available(self) -> bool:
        """Return that a CPU is there."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return that it is not to be detected."""
        return False

    def current_device(self) -> torch.device:
        """Return where verl puts tensors."""
        return torch.device("cpu")  # verl passes it to `Tensor.to`, where a number would be a GPU's

    def device_count(self) -> int:
        """Return how many devices a process sees."""
        return 1

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """Return that it has no compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return torch's name of what ranks exchange by."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return a variable that hides no CPU."""
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Mark nothing."""
        yield

    def ray_resource_name(self) -> str:
        """Return Ray's name of the device."""
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        """Return what an actor asks Ray for."""
        return {"num_cpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        """Return that Ray sets no variable for it."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return that processes share no device memory."""
        return False
