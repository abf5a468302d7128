"""What this machine carries: how many runs at once, and how it is described in a study."""

from __future__ import annotations

import os
import platform
from typing import Any

import psutil

RUN_BYTES = 3 << 29
"""Memory one run of the tiny model takes: server, client, W&B. 1.5 GiB, generous."""
_BYTES_PER_PARAMETER = 28
"""Of a larger model: weights, gradients and two moments in float32, and activations of about as much again."""


def cores() -> int:
    """Return the cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def run_bytes(parameters: int, peak: int | None = None) -> int:
    """Return the memory that one run of a model of so many parameters takes.

    `peak` is the most that a check of the model took, where there was one.
    """
    return RUN_BYTES + (_BYTES_PER_PARAMETER * parameters if peak is None else peak)


def parallel(each: int = RUN_BYTES) -> int:
    """Return how many runs this machine carries, of a core and so many bytes of free memory each; at least one."""
    return max(1, min(cores(), psutil.virtual_memory().available // each))


def describe() -> dict[str, Any]:
    """Return the machine as `study.created` stores it: cpus, memory_gib, platform."""
    memory = round(psutil.virtual_memory().total / 2**30, 1)
    return {"cpus": cores(), "memory_gib": memory, "platform": platform.platform(terse=True)}
