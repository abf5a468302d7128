"""What this machine carries: how many runs at once, and how it is described in a study."""

from __future__ import annotations

import os
import platform
from typing import Any

import psutil

RUN_BYTES = 3 << 29
"""Memory one run of the tiny model takes: server, client, W&B. 1.5 GiB, generous."""


def cores() -> int:
    """Return the cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def parallel() -> int:
    """Return how many runs this machine carries at once: a core and 1.5 GiB of free memory each, at least one."""
    return max(1, min(cores(), psutil.virtual_memory().available // RUN_BYTES))


def describe() -> dict[str, Any]:
    """Return the machine as `study.created` stores it: cpus, memory_gib, platform."""
    memory = round(psutil.virtual_memory().total / 2**30, 1)
    return {"cpus": cores(), "memory_gib": memory, "platform": platform.platform(terse=True)}
