"""The policy: a split forward that is the model's own, and models that cannot be served are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from swarm.backends.local.policy import Policy, add_adapter, frozen_copy, trained
from tests.swarm.backends.local.models import KINDS, make_model

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def _logits_of(model: Any, ids: Tensor = IDS) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_head_give_the_model_s_own_logits(kind: str) -> None:
    policy = Policy(make_model(kind))
    features = policy.features(IDS, use_cache=False)
    assert features.shape[-1] == policy.config.hidden_size
    assert torch.allclose(policy.head(features[0]), _logits_of(policy.model)[0], atol=1e-6)


@pytest.mark.parametrize("cap", [1e4, 30.0])
def test_a_soft_cap_of_logits_is_seen_however_little_it_shows(cap: float) -> None:
    config = transformers.Gemma2Config(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=cap,
        initializer_range=1e-3,
    )  # fmt: skip
    policy = Policy(transformers.Gemma2ForCausalLM(config).eval())
    ids = torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(1e6)
    found = policy.head(policy.features(ids, use_cache=False))
    assert torch.equal(found, _logits_of(policy.model, ids))
    assert found.abs().max() <= cap


def _adapted(kind: str = "llama", seed: int = 0) -> Any:
    model = make_model(kind)
    add_adapter(model, rank=3, alpha=6.0, seed=seed)
    return model


@torch.no_grad()
def _disturb(model: Any) -> None:
    for weight in trained(model).values():
        weight.add_(0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_linear_layer_but_the_head_gets_one_and_nothing_else_learns(kind: str) -> None:
    plain, model = make_model(kind), _adapted(kind)
    layers = {n for n, m in plain.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    assert {name.split(".lora_")[0] for name in trained(model)} == layers
    assert all(name.split(".lora_")[1] in ("A.default.weight", "B.default.weight") for name in trained(model))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_adapter_changes_no_logit_and_the_split_forward_is_kept(kind: str) -> None:
    policy = Policy(_adapted(kind))
    assert torch.equal(_logits_of(policy.model), _logits_of(make_model(kind)))
    _disturb(policy.model)
    features = policy.features(IDS, use_cache=False)
    assert features.shape[-1] == policy.config.hidden_size
    assert torch.allclose(policy.head(features[0]), _logits_of(policy.model)[0], atol=1e-5)
    assert not torch.allclose(_logits_of(policy.model), _logits_of(make_model(kind)), atol=1e-2)


def test_the_seed_alone_decides_the_adapter() -> None:
    before = torch.get_rng_state()
    first, again, other = _adapted(seed=1), _adapted(seed=1), _adapted(seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weight, trained(again)[name]) for name, weight in trained(first).items())
    assert any(not torch.equal(weight, trained(other)[name]) for name, weight in trained(first).items())


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_of_an_adapted_model_is_its_base_over_the_same_memory(kind: str) -> None:
    model = _adapted(kind)
    reference = frozen_copy(model)
    _disturb(model)
    assert torch.equal(_logits_of(reference), _logits_of(make_model(kind)))
    assert {weight.data_ptr() for weight in reference.parameters()} < {w.data_ptr() for w in model.parameters()}
    assert len(dict(reference.named_parameters())) == len(dict(make_model(kind).named_parameters()))


def test_the_reference_of_a_whole_model_is_a_copy_that_nothing_moves() -> None:
    model = make_model()
    before, reference = _logits_of(model), frozen_copy(model)
    _disturb(model)
    assert torch.equal(_logits_of(reference), before)
    assert not torch.equal(_logits_of(model), before)
    assert not trained(reference)
