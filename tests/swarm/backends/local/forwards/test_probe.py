"""The probe: a model that does more than its structure tells keeps its own forward, and the log says why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from swarm.backends.local.forwards.projections import _Added
from swarm.backends.local.forwards.rounding import in_fp32
from swarm.backends.local.model.adapters import add_adapter
from swarm.backends.local.model.policy import Policy
from tests.swarm.backends.local.models import KINDS, SPECIAL, WORDS, make_model, make_real_vocabulary


def _patch_mlp(model: Any, factor: float) -> None:
    mlp = model.base_model.layers[1].mlp
    mlp.forward = lambda x: factor * type(mlp).forward(mlp, x)


def _hook_attention(model: Any, factor: float) -> None:
    def louder(module: object, inputs: object, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        return output[0] * factor, output[1]

    model.base_model.layers[0].self_attn.register_forward_hook(louder)


def _scale_one_layer(model: Any, factor: float) -> None:
    model.base_model.layers[1].self_attn.scaling *= factor


def _shift_embeddings(model: Any, factor: float) -> None:
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output * factor)


_CHANGES = (_patch_mlp, _hook_attention, _scale_one_layer, _shift_embeddings)


@pytest.mark.parametrize("change", _CHANGES)
def test_a_model_that_was_changed_keeps_its_own_forward(
    change: Callable[[Any, float], None], caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(make_model())
    change(policy.model, 1.02)
    policy.fuse()
    assert not policy.fused
    assert "its logits and those of the fused forward are not the same" in caplog.text


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


def _fixed_tolerance(model: Any, ids: Sequence[int]) -> float:
    """Return how far bfloat16 is from fp32 on some ids, as a part of the greatest logit."""
    rows = torch.tensor([ids])
    with torch.no_grad():
        own = model(input_ids=rows, use_cache=False).logits.float()
        with in_fp32(model):
            exact = model(input_ids=rows, use_cache=False).logits
    return float((own - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("text", [WORDS, ()])
def test_special_tokens_on_which_bfloat16_goes_astray_cost_no_fused_forward(text: Sequence[int]) -> None:
    model = make_real_vocabulary(torch.bfloat16)
    assert _fixed_tolerance(model, range(SPECIAL)) > 0.1, "no fixed tolerance would do"
    assert _fixed_tolerance(model, WORDS) < 0.05
    policy = Policy(model, text=text)
    policy.fuse()
    assert policy.fused
    assert policy.unfused is None


@pytest.mark.parametrize("change", _CHANGES)
def test_a_wrong_forward_is_found_in_bfloat16_too(
    change: Callable[[Any, float], None], caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(make_real_vocabulary(torch.bfloat16), text=WORDS)
    change(policy.model, 1.2)
    for _ in range(2):
        policy.fuse()
    assert not policy.fused
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "event=no_fused_forward cost=" in warning.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_that_would_be_served_wrongly_is_found_though_it_adds_nothing_yet(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model().to(dtype)
    add_adapter(model, rank=4, alpha=8.0, seed=0)
    monkeypatch.setattr(_Added, "add_to", lambda *_: None)
    policy = Policy(model, text=WORDS[:20])
    policy.fuse()
    assert "not the same" in (policy.unfused or "")
    assert not any(weight.any() for name, weight in model.named_parameters() if "lora_B" in name)


def test_a_model_of_nothing_but_zeros_keeps_its_own_forward() -> None:
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    policy = Policy(model)
    policy.fuse()
    assert not policy.fused  # equal logits of nothing prove nothing
