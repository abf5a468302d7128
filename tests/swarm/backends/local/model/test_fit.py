"""Whether a model fits: counted from its shapes, and equal to what training it really takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.local.generating.cache import SlotCache
from swarm.backends.local.learning.learner import LocalLearner
from swarm.backends.local.model import fit
from swarm.backends.local.model.cache_shape import measure_cache_shape
from swarm.backends.local.model.fit import free_bytes, host_needs, needs, require_room
from swarm.backends.local.model.loading import _skeleton, load_policy
from swarm.backends.protocols import BackendError
from swarm.job import Job
from tests.swarm.backends.local.batches import make_batch
from tests.swarm.backends.local.models import make_model

_CPU = torch.device("cpu")


def _needs(folder: Path, **fields: Any) -> dict[str, int]:
    job = Job(max_context=64, **fields)
    make_model("qwen2").save_pretrained(folder)
    skeleton = _skeleton(folder, job)
    return {**host_needs(skeleton, job), **needs(skeleton, job)}


@pytest.mark.parametrize(
    "fields", [{}, {"dtype": "bfloat16"}, {"lora_rank": 3}, {"lora_rank": 3, "dtype": "bfloat16"}, {"kl_coef": 0.1}]
)
def test_what_is_counted_is_what_training_holds(fields: dict[str, Any], tmp_path: Path) -> None:
    counted = _needs(tmp_path, **fields)
    job = Job(max_context=64, device="cpu", **fields)
    policy = load_policy(tmp_path, job)
    learner = LocalLearner(policy, job, {})
    learner.update(make_batch(policy))
    masters = dict(learner._optimizer.masters)
    assert counted["weights"] == _bytes(policy.model.parameters())
    assert counted["optimiser"] == _bytes(v for k, v in learner._optimizer.moments().items() if not k.endswith("step"))
    assert counted["fp32 copy of the weights"] == (_bytes(masters.values()) if job.dtype == "bfloat16" else 0)
    assert counted["gradients"] >= _bytes(m.grad for m in masters.values() if m.grad is not None)
    reference = learner._reference
    assert counted["reference"] == (_bytes(reference.model.parameters()) if reference else 0)


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_an_adapter_needs_no_copy_of_its_base_for_reference(tmp_path: Path) -> None:
    counted = _needs(tmp_path, lora_rank=2, kl_coef=0.1)
    assert counted["reference"] == 0
    assert counted["gradients"] < counted["weights"] / 2


def test_the_cache_is_counted_as_large_as_it_may_become(tmp_path: Path) -> None:
    def cache(**fields: Any) -> int:
        return _needs(tmp_path, **fields)["key-value cache"]

    memory = SlotCache(
        measure_cache_shape(make_model("qwen2")), slots=8, positions=64, dtype=torch.float32, device=_CPU
    )._memory
    assert cache(max_concurrency=8) == _bytes(memory)
    one = cache(max_concurrency=1)
    assert cache(max_concurrency=8, kv_cache_bytes=max(1 << 16, 3 * one + 1)) == max(1 << 16, 3 * one) // one * one


def test_several_optimiser_steps_need_a_copy_to_go_back_to(tmp_path: Path) -> None:
    assert _needs(tmp_path)["copy to undo an update"] == 0
    counted = _needs(tmp_path, epochs=2)
    assert counted["copy to undo an update"] == counted["weights"] + counted["optimiser"]


@pytest.mark.parametrize(
    ("device", "short", "words"),
    [
        ("cpu", "cpu", "on cpu .*optimiser .*copy to undo"),
        ("cuda", "cuda", "on cuda .*optimiser .*key-value"),
        ("cuda", "cpu", r"on cpu \(weights [\d.]+ MiB, copy to undo an update [\d.]+ MiB\)"),
    ],
)
def test_what_is_short_is_told_of_the_memory_that_lacks_it(
    device: str, short: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model("qwen2").save_pretrained(tmp_path)
    job = Job(max_context=64, epochs=2)
    skeleton = _skeleton(tmp_path, job)
    monkeypatch.setattr(fit, "free_bytes", lambda asked: 1000 if asked.type == short else 1 << 40)
    with pytest.raises(BackendError, match=words) as refusal:
        require_room(tmp_path, skeleton, job, torch.device(device))
    assert "\n" not in str(refusal.value)
    monkeypatch.setattr(fit, "free_bytes", lambda _: 1 << 40)
    require_room(tmp_path, skeleton, job, torch.device(device))


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(fit, "_CGROUP_LIMIT", limit)
    free = free_bytes(_CPU)
    limit.write_text("max\n")
    assert free_bytes(_CPU) == pytest.approx(free, rel=0.2)
    limit.write_text(f"{1 << 20}\n")
    assert free_bytes(_CPU) < 1 << 20
