"""Where the local engine spends the time of some work, by part: wall time, and kernels within forwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from torch.profiler import ProfilerActivity, profile

from rig.engines import Ours, Request
from swarm.backends.local import batcher as generation
from swarm.backends.local.batcher import Batcher, sample
from swarm.backends.protocols import Sampling

_CONTEXT = 256
_KERNELS = {
    "products": ("aten::mm", "aten::addmm"),
    "attention": ("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_scaled_dot_product"),
    "cache": ("aten::index_copy", "aten::index_select"),
}


def shares(ours: Ours, work: Callable[[], float], requests: Sequence[Request]) -> dict[str, float]:
    """Return the parts of the seconds that `work` takes; kernels are counted while `requests` run by themselves."""
    spent = {"forward": 0.0, "head": 0.0, "sampling": 0.0, "step": 0.0}
    policy, batcher = ours.policy, ours.batcher
    with (
        patch.object(policy, "decode", _timed(policy.decode, spent, "forward")),
        patch.object(policy, "head", _timed(policy.head, spent, "head")),
        patch(f"{generation.__name__}.sample", _timed(sample, spent, "sampling")),
        patch.object(batcher, "step", _timed(batcher.step, spent, "step")),
    ):
        seconds = work()
    model = spent["forward"] + spent["head"]
    kernels = _kernels(Batcher(policy, slots=len(requests), positions=_CONTEXT, seed=0), requests)
    return {
        **{name: kernel / seconds for name, kernel in kernels.items()},
        "rest of the forward": (model - sum(kernels.values())) / seconds,
        "sampling": spent["sampling"] / seconds,
        "bookkeeping": (spent["step"] - model - spent["sampling"]) / seconds,
        "delivery": 1 - spent["step"] / seconds,
    }


def _kernels(batcher: Batcher, requests: Sequence[Request]) -> dict[str, float]:
    """Return the seconds in kernels of each kind, by the profiler."""
    for request in requests:
        batcher.add(generation.Generation(list(request.prompt), Sampling(max_tokens=request.answer)))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        while batcher.busy:
            batcher.step()
    events = profiled.key_averages()
    return {
        kind: sum(event.self_cpu_time_total for event in events if event.key.startswith(names)) / 1e6
        for kind, names in _KERNELS.items()
    }


def _timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spent[name] += time.perf_counter() - begun

    return timed
