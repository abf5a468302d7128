"""Where an update spends its time, by part: kernels by what they are and are of, and all that is no kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

PARTS = ("layers", "attention", "vocabulary", "optimiser", "between kernels")
_ATTENTION = ("flash_attention", "lerp", "logaddexp", "sigmoid")
_OPTIMISER = ("adamw", "_foreach", "linalg_vector_norm")


def spent(work: Callable[[], Any], vocabulary: int) -> dict[str, float]:
    """Return the seconds of `work`: of kernels by kind (one that touches `vocabulary` entries is of the head and the
    loss), and the rest, which is Python and dispatch, the profiler's own included."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        begun = time.perf_counter()
        work()
        seconds = time.perf_counter() - begun
    found = dict.fromkeys(PARTS, 0.0)
    for event in profiled.key_averages(group_by_input_shape=True):
        if event.key.startswith("aten::"):
            found[_part(event.key, event.input_shapes, vocabulary)] += event.self_cpu_time_total / 1e6
    found["between kernels"] = seconds - sum(found.values())
    return found


def _part(name: str, shapes: list[Any], vocabulary: int) -> str:
    if any(word in name for word in _OPTIMISER):
        return "optimiser"
    if any(word in name for word in _ATTENTION):
        return "attention"
    of_vocabulary = any(isinstance(shape, list) and vocabulary in shape for shape in shapes)
    return "vocabulary" if of_vocabulary and "embedding" not in name else "layers"
