"""Loading: every folder, device and element type a job may name, whether a model fits, on how many threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from swarm.backends.local import loading
from swarm.backends.local.learner import LocalLearner
from swarm.job import Job
from swarm.rendering.messages import BackendError
from tests.swarm.backends.local.models import KINDS, make_batch, make_model


def _job(**fields: Any) -> Job:
    return Job(max_context=64, device="cpu", **fields)


def _saved(folder: Path, kind: str = "llama", **options: Any) -> Path:
    make_model(kind).save_pretrained(folder, **options)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_kept_with_embeddings_tied_or_not_in_one_file_or_in_shards(kind: str, tmp_path: Path) -> None:
    model = make_model(kind)
    whole, parts = _saved(tmp_path / "whole", kind), _saved(tmp_path / "parts", kind, max_shard_size="8KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    for folder in (whole, parts):
        loaded = loading.load_policy(folder, _job()).model
        assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
        tied = loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
        assert tied == model.config.tie_word_embeddings


def test_a_device_that_is_not_there_and_trees_on_a_gpu_are_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loading.choose_device(Job()).type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(BackendError, match=f"device is {name} .*auto or cpu"):
            loading.choose_device(Job(device=name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for device in ("auto", "cuda"):
        with pytest.raises(BackendError, match=r"none on cuda, .* found tree: .*device to cpu"):
            loading.load_policy(tmp_path / "none", Job(device=device, merging="tree"))


def _without(file: Path, name: str) -> None:
    weights = load_file(file)
    del weights[name]
    save_file(weights, file, metadata={"format": "pt"})


def _wider(file: Path) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), "intermediate_size": 64}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"nonsense"), "does not load"),
        (lambda folder: (folder / "model.safetensors").unlink(), "does not load"),
        (lambda folder: (folder / "config.json").write_text("{"), "does not load"),
        (lambda folder: _wider(folder / "config.json"), "does not load"),
        (lambda folder: _without(folder / "model.safetensors", "lm_head.weight"),
         r"lacks 1 of its weights \(lm_head\.weight\)"),
    ],
    ids=["damaged", "missing", "no config", "another shape", "a weight missing"],
)  # fmt: skip
def test_damaged_files_another_shape_and_missing_weights_are_refused(
    spoil: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    spoil(_saved(tmp_path, "qwen2"))
    with pytest.raises(BackendError, match=said):
        loading.load_policy(tmp_path, _job())


@pytest.mark.parametrize(
    "load", [lambda f: loading.read_model(f, torch.float32, "eager"), lambda f: loading._skeleton(f, _job())]
)
def test_code_of_a_model_is_not_run_and_not_to_be_trusted(load: Callable[[Path], object], tmp_path: Path) -> None:
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(BackendError, match="never run") as refused:
        load(tmp_path)
    assert "trust" not in str(refused.value)


@pytest.mark.parametrize(
    "fields", [{}, {"dtype": "bfloat16"}, {"lora_rank": 3}, {"lora_rank": 3, "dtype": "bfloat16"}, {"kl_coef": 0.1}]
)
def test_what_is_counted_is_what_training_holds(fields: dict[str, Any], tmp_path: Path) -> None:
    job = _job(**fields)
    _saved(tmp_path, "qwen2")
    counted = loading.device_needs(loading._skeleton(tmp_path, job), job)
    policy = loading.load_policy(tmp_path, job)
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


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cpu", r"on cpu .*optimiser .*copy to undo an update [\d.]+ MiB\)"),
        ("cuda", r"on cuda .*optimiser .*key-value cache [\d.]+ MiB\)"),
    ],
)
def test_what_is_short_is_told_of_the_memory_that_lacks_it(
    device: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(epochs=2)
    skeleton = loading._skeleton(_saved(tmp_path, "qwen2"), job)
    monkeypatch.setattr(loading, "free_bytes", lambda asked: 1000)
    with pytest.raises(BackendError, match=words):
        loading.require_room(tmp_path, skeleton, job, torch.device(device))
    monkeypatch.setattr(loading, "free_bytes", lambda _: 1 << 40)
    loading.require_room(tmp_path, skeleton, job, torch.device(device))


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(loading, "_CGROUP_LIMIT", limit)
    free = loading.free_bytes(torch.device("cpu"))
    limit.write_text("max\n")
    assert loading.free_bytes(torch.device("cpu")) == pytest.approx(free, rel=0.2)
    limit.write_text(f"{1 << 20}\n")
    assert loading.free_bytes(torch.device("cpu")) < 1 << 20


TINY, REAL = 130_000, 135_000_000


@pytest.mark.parametrize(
    ("parameters", "runs", "cores", "expected"),
    [(TINY, 1, 64, 1), (REAL, None, 4, 4), (REAL, 2, 2, 1), (REAL, 3, 8, 2), (REAL, 9, 2, 1), (REAL, 1, 64, 27)],
)
def test_a_server_takes_the_cores_it_can_use_of_its_share(
    parameters: int, runs: int | None, cores: int, expected: int
) -> None:
    environment = {loading.SET_BY_HAND: "1", loading.RUNS_AT_ONCE: str(runs)} if runs else {}
    assert loading.count_threads(parameters, environment, cores) == expected
