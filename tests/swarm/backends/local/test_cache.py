"""The key-value cache: its shape by model, the history of its rows, and which slot a prompt gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local import kv_cache
from swarm.rendering.messages import BackendError
from tests.swarm.backends.local.models import REFUSED, SERVED

_KEPT = kv_cache.CacheShape(layers=2, heads=2, key_width=3, value_width=5)
_POSITIONS = 40


def test_as_many_rows_are_made_as_fit_in_the_bytes_and_too_few_for_one_are_refused_with_those_needed() -> None:
    row = kv_cache.slot_bytes(_KEPT, torch.float32, _POSITIONS)
    cache = kv_cache.SlotCache(_KEPT, 1, _POSITIONS, torch.float32, torch.device("cpu"))
    assert row == sum(held.numel() * held.element_size() for held in cache._memory)
    for dtype, limit, rows in (
        (torch.float32, 3 * row + 1, 3),
        (torch.float32, 99 * row, 64),
        (torch.bfloat16, row, 2),
    ):
        assert kv_cache.count_slots(_KEPT, dtype, _POSITIONS, limit, 64) == rows
    with pytest.raises(BackendError, match=rf"{row:,} bytes.*allows {row - 1:,}: set kv_cache_bytes to {row:,}"):
        kv_cache.count_slots(_KEPT, torch.float32, _POSITIONS, row - 1, 64)


_EXPECTED = {
    "deepseek_v3": kv_cache.CacheShape(2, 4, 16, 4),
    "falcon": kv_cache.CacheShape(2, 1, 8, 8),
    "gpt_bigcode": kv_cache.CacheShape(2, 1, 8, 8),
    "llama": kv_cache.CacheShape(2, 2, 8, 8),
}


def _made(kind: str, fields: dict[str, Any]) -> Any:
    return transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[kind](**fields)).eval()


@pytest.mark.parametrize("family", [*_EXPECTED, "deepseek_v2", "gemma3"])
def test_heads_and_widths_are_those_the_model_hands_to_its_cache_and_shapes_alone_tell_them(family: str) -> None:
    with torch.device("meta"):
        skeleton = _made(*SERVED[family])
    found = kv_cache.measure_cache_shape(_made(*SERVED[family]))
    assert found == kv_cache.measure_cache_shape(skeleton) == _EXPECTED.get(family, found)


@pytest.mark.parametrize("family", ["falcon-alibi", "jamba"])
def test_a_model_that_keeps_anything_else_is_named(family: str) -> None:
    kind, fields, _ = REFUSED[family]
    with pytest.raises(BackendError, match=rf"found that {kind} .*choose another model"):
        kv_cache.measure_cache_shape(_made(kind, fields))


def test_layers_that_keep_different_shapes_are_refused() -> None:
    model = _made(*SERVED["llama"])
    layer = model.model.layers[1].self_attn
    layer.k_proj, layer.v_proj = (torch.nn.Linear(32, 32, bias=False) for _ in range(2))
    layer.num_key_value_groups = 1
    with pytest.raises(BackendError, match=r"\[\(2, 8, 8\), \(4, 8, 8\)\]"):
        kv_cache.measure_cache_shape(model)


_SLOTS, _SLOT_POSITIONS = 3, 24
_prompts = st.lists(st.integers(0, 1), min_size=1, max_size=_SLOT_POSITIONS - 1)


@given(st.lists(st.tuples(_prompts, st.integers(0, 99)), max_size=40))
def test_a_placement_s_cached_prefix_is_what_the_slot_or_its_donor_holds(steps: list[tuple[list[int], int]]) -> None:
    table = kv_cache.SlotTable(_SLOTS, _SLOT_POSITIONS)
    held: dict[int, list[int]] = {}
    busy: list[int] = []
    for prompt, choice in steps:
        if table.busy.all() or (busy and choice % 3 == 0):
            table.release(busy.pop(choice % len(busy)))
        assert table.busy.sum() == len(busy)
        placement = table.place(prompt)
        assert placement.slot not in busy
        assert placement.cached < len(prompt)
        source = placement.slot if placement.donor is None else placement.donor
        assert held.get(source, [])[: placement.cached] == prompt[: placement.cached]
        busy.append(placement.slot)
        table.mark_valid(np.array([placement.slot]), np.array([len(prompt)]))
        held[placement.slot] = prompt


def test_a_sibling_is_told_of_the_oldest_row_that_will_hold_its_prompt_and_borrows_what_that_has() -> None:
    table = kv_cache.SlotTable(4, 200)
    prompt = list(range(100))
    leader, second, third = (table.place([*prompt, tail]).slot for tail in (900, 901, 902))
    assert table.find_leader(leader) is None
    assert table.find_leader(second) == (leader, 100)
    assert table.find_leader(third) == (leader, 100)
    table.mark_valid(np.array([leader]), np.array([60]))
    assert table.borrow(second) == kv_cache.SlotAssignment(second, 60, leader)
    assert table.borrow(second) is None
    table.mark_valid(np.array([leader]), np.array([101]))
    assert table.borrow(third) == kv_cache.SlotAssignment(third, 100, leader)
    assert table.find_leader(third) is None
