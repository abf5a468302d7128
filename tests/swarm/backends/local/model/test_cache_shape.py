"""What a model keeps of a token: measured on the model itself, and on its shapes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from swarm.backends.local.model.cache_shape import CacheShape, measure_cache_shape
from swarm.backends.protocols import BackendError
from tests.swarm.backends.local.families import REFUSED, SERVED

_EXPECTED = {
    "deepseek_v3": CacheShape(2, 4, 16, 4),
    "falcon": CacheShape(2, 1, 8, 8),
    "gpt_bigcode": CacheShape(2, 1, 8, 8),
    "llama": CacheShape(2, 2, 8, 8),
}


def _made(kind: str, fields: dict[str, Any]) -> Any:
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**fields)).eval()


@pytest.mark.parametrize("family", _EXPECTED)
def test_heads_and_widths_are_those_the_model_hands_to_its_cache(family: str) -> None:
    assert measure_cache_shape(_made(*SERVED[family])) == _EXPECTED[family]


@pytest.mark.parametrize("family", ["deepseek_v2", "falcon", "gemma3", "llama"])
def test_shapes_alone_tell_it_too(family: str) -> None:
    with torch.device("meta"):
        skeleton = _made(*SERVED[family])
    assert measure_cache_shape(skeleton) == measure_cache_shape(_made(*SERVED[family]))


@pytest.mark.parametrize("family", ["falcon-alibi", "jamba"])
def test_a_model_that_keeps_anything_else_is_named(family: str) -> None:
    kind, fields, _ = REFUSED[family]
    with pytest.raises(BackendError, match=rf"found that {kind} .*choose another model"):
        measure_cache_shape(_made(kind, fields))


def test_layers_that_keep_different_shapes_are_refused() -> None:
    model = _made(*SERVED["llama"])
    layer = model.model.layers[1].self_attn
    layer.k_proj, layer.v_proj = (torch.nn.Linear(32, 32, bias=False) for _ in range(2))
    layer.num_key_value_groups = 1
    with pytest.raises(BackendError, match=r"same shape in every layer, .*\[\(2, 8, 8\), \(4, 8, 8\)\]"):
        measure_cache_shape(model)
