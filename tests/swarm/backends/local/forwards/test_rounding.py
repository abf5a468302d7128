"""Rounding: a model computes in fp32 for a while, and is as it was afterwards, also where that fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from swarm.backends.local.forwards.rounding import beyond_rounding, in_fp32
from swarm.backends.local.model.adapters import add_adapter
from tests.swarm.backends.local.models import KINDS, make_model

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
    with in_fp32(model):
        found = _logits(model)
    assert found.dtype == torch.float32
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(_logits(model), before)
    assert torch.allclose(found, _logits(model.float()), atol=1e-5)


def test_a_forward_that_fails_leaves_the_model_as_it_was() -> None:
    model = _make("llama", 0)
    parameters = list(model.parameters())
    with pytest.raises(IndexError), in_fp32(model):
        model(input_ids=_IDS + 1000)
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert _logits(model).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_is_beyond_rounding(dtype: torch.dtype) -> None:
    model = make_model().to(dtype)
    assert beyond_rounding(model, lambda: _logits(model), _logits(model)) is None
    assert beyond_rounding(model, lambda: _logits(model), _logits(model) * torch.nan) is not None
