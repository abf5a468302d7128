"""Loading: every folder, device and element type a job may name, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from swarm.backends.local.model import fit, loading
from swarm.backends.local.model.loading import chosen_device, load_policy
from swarm.backends.protocols import BackendError
from swarm.job import Job
from tests.swarm.backends.local.models import KINDS, make_model, save_folder


def _job(**fields: Any) -> Job:
    return Job(max_context=64, device="cpu", **fields)


def _saved(folder: Path, kind: str = "llama", **options: Any) -> Path:
    make_model(kind).save_pretrained(folder, **options)
    return folder


def test_a_whole_folder_loads_in_fp32(tmp_path: Path) -> None:
    policy = load_policy(save_folder(tmp_path), _job())
    assert policy.dtype == torch.float32
    assert (policy.version, policy.device.type) == (0, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_kept_with_embeddings_tied_or_not_in_one_file_or_in_shards(kind: str, tmp_path: Path) -> None:
    model = make_model(kind)
    whole, parts = _saved(tmp_path / "whole", kind), _saved(tmp_path / "parts", kind, max_shard_size="8KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    for folder in (whole, parts):
        loaded = load_policy(folder, _job()).model
        assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
        tied = loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
        assert tied == model.config.tie_word_embeddings


def test_a_model_is_served_in_the_job_s_element_type(tmp_path: Path) -> None:
    policy = load_policy(_saved(tmp_path), _job(dtype="bfloat16", lora_rank=2))
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.bfloat16}


def test_the_adapter_is_there_from_the_start(tmp_path: Path) -> None:
    policy = load_policy(_saved(tmp_path), _job(lora_rank=2))
    names = [name for name, weight in policy.model.named_parameters() if weight.requires_grad]
    assert names
    assert all("lora_" in name for name in names)


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert chosen_device(Job()).type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(BackendError, match=f"device is {name} .* set device to auto or cpu"):
            chosen_device(Job(device=name))


def test_the_best_device_is_chosen_where_the_job_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen_device(Job()).type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [chosen_device(Job(device=name)).type for name in ("auto", "cpu")] == ["cuda", "cpu"]


def test_a_context_beyond_the_model_s_positions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"at most 256, .* found 999: set max_context to 256 or less"):
        load_policy(_saved(tmp_path), Job(max_context=999))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    (_saved(tmp_path / "a") / "model.safetensors").write_bytes(b"nonsense")
    (_saved(tmp_path / "b") / "config.json").write_text("{")
    (_saved(tmp_path / "c", max_shard_size="8KB") / "model-00002-of-00005.safetensors").unlink(missing_ok=True)
    next((tmp_path / "c").glob("model-*")).unlink()
    for folder in (tmp_path / "a", tmp_path / "b", tmp_path / "c"):
        with pytest.raises(BackendError, match="does not load"):
            load_policy(folder, _job())


def test_a_weight_that_is_missing_is_named_and_not_made_up(tmp_path: Path) -> None:
    file = _saved(tmp_path, "qwen2") / "model.safetensors"
    weights = load_file(file)
    del weights["lm_head.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(BackendError, match=r"lacks 1 of its weights \(lm_head\.weight\)"):
        load_policy(tmp_path, _job())


def test_a_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    config = json.loads((_saved(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    with pytest.raises(BackendError, match="does not load"):
        load_policy(tmp_path, _job())


def test_a_model_without_room_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(loading, "read_model", lambda *_: pytest.fail("the weights were read"))
    with pytest.raises(BackendError, match=r"needs [\d,]+ bytes on cpu \(weights .*\) and 1,000 are free: take a smal"):
        load_policy(_saved(tmp_path), _job())


def test_torch_is_given_threads_by_the_model_s_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(loading, "choose_threads", told.append)
    policy = load_policy(_saved(tmp_path), _job(lora_rank=2))
    assert told == [sum(weight.numel() for weight in policy.model.parameters())]
