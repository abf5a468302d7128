"""What a rank needs is counted without numbers as autograd counts with them, and what cannot fit is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from swarm.backends.verl import memory
from swarm.job import Job, PathModel
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields
from tests.swarm.backends.local import models

TOKENS = 256


def job_of(folder: Path, **fields: object) -> Job:
    verl = VerlFields(trainers=2)
    made = {"max_context": TOKENS, "max_tokens": 8, "micro_batch_tokens": TOKENS, "verl": verl, **fields}
    return Job(backend="verl", model=PathModel(path=str(folder)), **made)


def test_activations_are_those_that_a_real_backward_pass_keeps(tmp_path: Path) -> None:
    folder = models.save_folder(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    weights, kept = {weight.untyped_storage()._cdata for weight in model.parameters()}, {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = (tensor, 0 if storage._cdata in weights else storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.base_model(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
    real = sum(size for _, size in kept.values())
    counted = memory.measure_rank(folder, job_of(folder), recomputed=False)
    assert counted.activations == pytest.approx(real, rel=0.1)
    numbers = sum(weight.numel() for weight in model.parameters())
    assert counted.states == 16 * numbers // 2
    assert memory.measure_rank(folder, job_of(folder), recomputed=True).activations < counted.activations
    several = job_of(folder, minibatches=2, kl_coef=0.1)
    assert memory.measure_rank(folder, several, recomputed=False).states == counted.states
    on_host = memory.measure_rank(folder, several, recomputed=False, copies=True)
    assert on_host.states == (16 + 12 + 8) * numbers // 2
    adapted = memory.measure_rank(folder, job_of(folder, lora_rank=4), recomputed=False)
    assert 2 * numbers < adapted.states < counted.states


def test_what_cannot_fit_is_refused_with_its_parts_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = models.save_folder(tmp_path / "model")
    assert "GB is there" in memory.require_room(folder, job_of(folder), "cpu")
    assert "not known here" in memory.require_room(folder, job_of(folder), None)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=100_000))
    with pytest.raises(BackendError, match=r"GB a rank \(weights, .*activations .*: ask for more verl.trainers"):
        memory.require_room(folder, job_of(folder), "cpu")


def test_a_model_that_runs_with_numbers_alone_is_not_counted_and_not_refused(tmp_path: Path) -> None:
    folder = models.save_folder(tmp_path / "model")
    (folder / "config.json").write_text('{"model_type": "nobody knows"}')
    assert memory.require_room(folder, job_of(folder), "cpu").startswith("not counted")
