"""Gradient checkpointing: the same gradient from less memory, and nothing at all where no gradient is wanted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from swarm.backends.local.forwards import recompute
from swarm.backends.local.forwards.recompute import recompute_layers
from swarm.backends.local.model.adapters import add_adapter
from swarm.backends.protocols import BackendError
from tests.swarm.backends.local.models import KINDS, make_model

_IDS = torch.arange(40).view(2, 20)


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
        loss = model(input_ids=_IDS, use_cache=False).logits.float().log_softmax(-1)[..., 0].sum()
    torch.autograd.backward(loss)
    flat = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    return flat, sum(kept.values())


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_equal_and_less_is_kept_for_it(kind: str, rank: int) -> None:
    plain, thrifty = make_model(kind), make_model(kind)
    for model in (plain, thrifty):
        if rank:
            add_adapter(model, rank=rank, alpha=4.0, seed=0)
    recompute_layers(thrifty)
    assert not thrifty.training
    expected, much = _gradients(plain)
    found, little = _gradients(thrifty)
    assert torch.equal(found, expected)
    assert expected.abs().max() > 0
    assert little < much / 2


def test_without_gradients_and_with_a_cache_a_layer_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain = make_model(), make_model()
    recompute_layers(model)
    calls: list[object] = []

    def watched(*inputs: Any, **named: Any) -> Any:
        calls.append(inputs)
        return checkpoint(*inputs, **named)

    monkeypatch.setattr(recompute, "checkpoint", watched)
    expected = plain(input_ids=_IDS, use_cache=False).logits
    with torch.inference_mode():
        assert torch.equal(model(input_ids=_IDS, use_cache=False).logits, expected)
    cached = model(input_ids=_IDS, use_cache=True)
    assert cached.past_key_values.get_seq_length() == _IDS.shape[1]
    assert calls == []
    assert torch.equal(model(input_ids=_IDS, use_cache=False).logits, expected)
    assert len(calls) == model.config.num_hidden_layers


def test_a_copy_computes_with_its_own_layers() -> None:
    model = make_model()
    recompute_layers(model)
    twin = copy.deepcopy(model)
    before = twin(input_ids=_IDS, use_cache=False).logits.detach()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert torch.equal(twin(input_ids=_IDS, use_cache=False).logits, before)


def test_a_model_whose_layers_cannot_is_named() -> None:
    with pytest.raises(BackendError, match="Linear has no layers that can"):
        recompute_layers(nn.Linear(2, 2))
