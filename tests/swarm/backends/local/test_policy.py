"""The policy: a split forward that is the model's own, and models that cannot be served are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from swarm.backends.local.policy import Policy, load_policy
from swarm.backends.protocols import BackendError
from tests.swarm.backends.local.models import KINDS, make_model, save_folder


def _own(policy: Policy, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = policy.model(input_ids=ids, use_cache=False).logits
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_head_give_the_model_s_own_logits(kind: str) -> None:
    policy = Policy(make_model(kind))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    features = policy.features(ids, use_cache=False)
    assert features.shape[-1] == policy.config.hidden_size
    assert torch.allclose(policy.head(features[0]), _own(policy, ids)[0], atol=1e-6)


class _Capped(nn.Module):
    """A model that post-processes its logits, as Gemma 2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: Any = make_model()
        self.config = self.inner.config
        self.base_model = self.inner.base_model

    def get_input_embeddings(self) -> nn.Module:
        module: nn.Module = self.inner.get_input_embeddings()
        return module

    def get_output_embeddings(self) -> nn.Module:
        module: nn.Module = self.inner.get_output_embeddings()
        return module

    def forward(self, **inputs: Any) -> Any:
        output = self.inner(**inputs)
        output.logits = torch.tanh(output.logits / 3) * 3
        return output


def test_a_model_that_post_processes_its_logits_is_run_whole() -> None:
    policy = Policy(_Capped())
    ids = torch.tensor([[3, 1, 4]])
    assert torch.equal(policy.head(policy.features(ids, use_cache=False)), _own(policy, ids))


def test_a_model_with_sliding_attention_is_refused() -> None:
    model = make_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(BackendError, match="sliding_attention"):
        Policy(model)


def test_a_whole_folder_loads_in_fp32(tmp_path: Path) -> None:
    policy = load_policy(save_folder(tmp_path), max_context=64)
    assert policy.dtype == torch.float32
    assert policy.version == 0


def test_a_context_beyond_the_model_s_positions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="max_context is 999"):
        load_policy(save_folder(tmp_path), max_context=999)


@pytest.mark.parametrize(
    ("missing", "words"), [("config.json", "no config.json"), ("model.safetensors", "no .*safetensors")]
)
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(tmp_path: Path, missing: str, words: str) -> None:
    (save_folder(tmp_path) / missing).unlink()
    with pytest.raises(BackendError, match=words):
        load_policy(tmp_path, max_context=64)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    (save_folder(tmp_path / "a") / "model.safetensors").write_bytes(b"nonsense")
    (save_folder(tmp_path / "b") / "config.json").write_text("{")
    for folder in (tmp_path / "a", tmp_path / "b"):
        with pytest.raises(BackendError, match="does not load"):
            load_policy(folder, max_context=64)


def test_no_folder_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="model folder"):
        load_policy(tmp_path / "nothing", max_context=64)
