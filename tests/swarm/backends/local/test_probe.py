"""The probe, rounding and recomputation: a model that does more than its structure tells keeps its own forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from swarm.backends.local.fused_forward import _FusedAdapters, compute_in_fp32
from swarm.backends.local.policy import Policy, add_adapter, recompute_layers
from swarm.rendering.messages import BackendError
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


_CHANGES: tuple[Callable[[Any, float], object], ...] = (
    _patch_mlp, _hook_attention, _scale_one_layer,
    lambda model, factor: model.get_input_embeddings().register_forward_hook(lambda _, __, output: output * factor),
)  # fmt: skip
changes = pytest.mark.parametrize("change", _CHANGES)


def _fixed_tolerance(model: Any, ids: Sequence[int]) -> float:
    rows = torch.tensor([ids])
    with torch.no_grad():
        own = model(input_ids=rows, use_cache=False).logits.float()
        with compute_in_fp32(model):
            exact = model(input_ids=rows, use_cache=False).logits
    return float((own - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("text", [WORDS, ()])
def test_special_tokens_on_which_bfloat16_goes_astray_cost_no_fused_forward(text: Sequence[int]) -> None:
    model = make_real_vocabulary(torch.bfloat16)
    assert _fixed_tolerance(model, range(SPECIAL)) > 0.1
    assert _fixed_tolerance(model, WORDS) < 0.05
    policy = Policy(model, text=text)
    policy.fuse()
    assert policy.fused
    assert policy.unfused is None


@changes
def test_bfloat16_hides_no_wrong_forward(change: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(make_real_vocabulary(torch.bfloat16), text=WORDS)
    change(policy.model, 1.2)
    for _ in range(2):
        policy.fuse()
    assert not policy.fused
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "event=no_fused_forward cost=" in warning.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_that_would_be_served_wrongly_is_found(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _make("llama", 4).to(dtype)
    monkeypatch.setattr(_FusedAdapters, "add_to", lambda *_: None)
    policy = Policy(model, text=WORDS[:20])
    policy.fuse()
    assert "not the same" in (policy.unfused or "")
    assert not any(weight.any() for name, weight in model.named_parameters() if "lora_B" in name)


_IDS = torch.tensor([[3, 1, 4, 1, 5]])


def _make(kind: str, rank: int) -> Any:
    model = make_model(kind)
    if rank:
        add_adapter(model, rank=rank, alpha=4.0, seed=0)
    return model.to(torch.bfloat16)


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    logits: Tensor = model(input_ids=_IDS, use_cache=False).logits
    return logits


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_its_modules_compute_as_a_model_of_the_same_weights_in_fp32(kind: str, rank: int) -> None:
    model = _make(kind, rank)
    parameters, before = list(model.parameters()), _logits(model)
    with compute_in_fp32(model):
        found = _logits(model)
    assert found.dtype == torch.float32
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(_logits(model), before)
    assert torch.allclose(found, _logits(model.float()), atol=1e-5)


def test_a_forward_that_fails_leaves_the_model_as_it_was() -> None:
    model = _make("llama", 0)
    parameters = list(model.parameters())
    with pytest.raises(IndexError), compute_in_fp32(model):
        model(input_ids=_IDS + 1000)
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert _logits(model).dtype == torch.bfloat16


_LONG = torch.arange(40).view(2, 20)


def _gradients(model: Any) -> tuple[Tensor, int]:
    """The gradient, and the bytes that the forward kept for it beyond the weights."""
    kept: dict[int, int] = {}
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(value: Tensor) -> Tensor:
        memory = value.untyped_storage()
        if memory.data_ptr() not in own:
            kept[memory.data_ptr()] = memory.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = model(input_ids=_LONG, use_cache=False).logits.float().log_softmax(-1)[..., 0].sum()
    torch.autograd.backward(loss)
    flat = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    return flat, sum(kept.values())


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_equal_and_less_is_kept_for_it(kind: str, rank: int) -> None:
    plain, thrifty = (_make(kind, rank).float() for _ in range(2))
    recompute_layers(thrifty)
    assert not thrifty.training
    expected, much = _gradients(plain)
    found, little = _gradients(thrifty)
    assert torch.equal(found, expected)
    assert expected.abs().max() > 0
    assert little < much / 2


def test_a_model_whose_layers_cannot_is_named() -> None:
    with pytest.raises(BackendError, match="Linear"):
        recompute_layers(nn.Linear(2, 2))
