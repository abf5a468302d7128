"""The probe: a model that does more than its structure tells keeps its own forward, and the log says why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from swarm.backends.local.model.policy import Policy
from tests.swarm.backends.local.models import KINDS, make_model


def _patch_mlp(model: Any) -> None:
    mlp = model.base_model.layers[1].mlp
    mlp.forward = lambda x: 1.02 * type(mlp).forward(mlp, x)


def _hook_attention(model: Any) -> None:
    def louder(module: object, inputs: object, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        return output[0] * 1.02, output[1]

    model.base_model.layers[0].self_attn.register_forward_hook(louder)


def _scale_one_layer(model: Any) -> None:
    model.base_model.layers[1].self_attn.scaling *= 1.1


def _shift_embeddings(model: Any) -> None:
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output * 1.1)


@pytest.mark.parametrize("change", [_patch_mlp, _hook_attention, _scale_one_layer, _shift_embeddings])
def test_a_model_that_was_changed_keeps_its_own_forward(
    change: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(make_model())
    change(policy.model)
    with caplog.at_level(logging.INFO):
        policy.fuse()
    assert not policy.fused
    assert "apart from those of the fused forward" in caplog.text


def test_an_unknown_architecture_keeps_its_own_forward(caplog: pytest.LogCaptureFixture) -> None:
    config = GPTNeoXConfig(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    policy = Policy(GPTNeoXForCausalLM(config).eval())
    with caplog.at_level(logging.INFO):
        policy.fuse()
    assert not policy.fused
    assert "its architecture is gpt_neox" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_known_model_passes(kind: str) -> None:
    policy = Policy(make_model(kind))
    policy.fuse()
    assert policy.fused


def test_a_model_of_nothing_but_zeros_keeps_its_own_forward() -> None:
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    policy = Policy(model)
    policy.fuse()
    assert not policy.fused  # equal logits of nothing prove nothing
