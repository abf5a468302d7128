"""The policy: a split forward that is the model's own, and models that cannot be served are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM

from swarm.backends.local.model.policy import Policy
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


@pytest.mark.parametrize("cap", [1e4, 30.0])
def test_a_soft_cap_of_logits_is_seen_however_little_it_shows(cap: float) -> None:
    config = Gemma2Config(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=cap,
        initializer_range=1e-3,
    )  # fmt: skip
    policy = Policy(Gemma2ForCausalLM(config).eval())
    ids = torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(1e6)
    found = policy.head(policy.features(ids, use_cache=False))
    assert torch.equal(found, _own(policy, ids))
    assert found.abs().max() <= cap
