"""The policy: a split forward that is the model's own, and models that cannot be served are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from swarm.backends.local.policy import Policy
from swarm.backends.protocols import BackendError
from tests.swarm.backends.local.models import KINDS, make_model


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
