"""The key-value cache: a row's history is what was written to it, wherever the row has moved."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swarm.backends.local.generating.cache import SlotCache
from swarm.backends.local.model.cache_shape import CacheShape, slot_bytes, slots_within
from swarm.backends.protocols import BackendError

_KEPT = CacheShape(layers=2, heads=2, key_width=3, value_width=5)
_POSITIONS = 40


def _cache(slots: int = 5) -> SlotCache:
    return SlotCache(_KEPT, slots, _POSITIONS, torch.float32, torch.device("cpu"))


def _write(cache: SlotCache, rows: list[int], positions: list[list[int]], layer: int = 1) -> tuple[torch.Tensor, ...]:
    """Write random keys and values; return them, and the history that came back."""
    end = max(max(places) for places in positions) + 1
    cache.bind(np.array(rows), torch.tensor(positions), end)
    keys, values = (torch.randn(len(rows), 2, len(positions[0]), width) for width in (3, 5))
    return keys, values, *cache.update(keys, values, layer)


@pytest.mark.parametrize("rows", [[1, 2, 3], [3, 0, 4], [2]])
def test_a_row_s_history_is_what_was_written_to_it(rows: list[int]) -> None:
    cache = _cache()
    places = [[0, 1, 2]] * len(rows)
    first_keys, first_values, *_ = _write(cache, rows, places)
    keys, values, seen_keys, seen_values = _write(cache, rows, [[3]] * len(rows))
    assert (seen_keys.shape, seen_values.shape) == ((len(rows), 2, 16, 3), (len(rows), 2, 16, 5))
    assert torch.equal(seen_keys[:, :, :4], torch.cat([first_keys, keys], 2))
    assert torch.equal(seen_values[:, :, :4], torch.cat([first_values, values], 2))


def test_neighbouring_rows_are_read_without_a_copy() -> None:
    cache = _cache()
    _, _, keys, values = _write(cache, [1, 2, 3], [[0]] * 3)
    _, _, again, _ = _write(cache, [1, 2, 3], [[1]] * 3)
    assert again.data_ptr() == keys.data_ptr()
    assert keys.flatten(0, 1).data_ptr() == keys.data_ptr()
    assert values.flatten(0, 1).data_ptr() == values.data_ptr()


def test_the_mask_admits_each_position_and_those_before_it() -> None:
    mask = _cache().bind(np.array([0, 1]), torch.tensor([[0, 1], [17, _POSITIONS]]), 18)
    assert mask.shape == (2, 1, 2, 32)
    admitted = (mask == 0).sum(-1)[:, 0].tolist()
    assert admitted == [[1, 2], [18, 32]]
    assert set(mask.unique().tolist()) == {0.0, -torch.inf}


def test_rows_change_places_with_what_they_hold() -> None:
    cache = _cache()
    keys, values, *_ = _write(cache, [0, 4], [[0, 1]] * 2)
    cache.exchange(0, 4, 2)
    _, _, seen_keys, seen_values = _write(cache, [0, 4], [[2]] * 2)
    assert torch.equal(seen_keys[:, :, :2], keys.flip(0))
    assert torch.equal(seen_values[:, :, :2], values.flip(0))


def test_as_many_rows_are_made_as_fit_in_the_bytes() -> None:
    row = slot_bytes(_KEPT, torch.float32, _POSITIONS)
    assert row == sum(held.numel() * held.element_size() for held in _cache(slots=1)._memory)
    assert slots_within(_KEPT, torch.float32, _POSITIONS, 3 * row + 1, 64) == 3
    assert slots_within(_KEPT, torch.float32, _POSITIONS, 99 * row, 64) == 64
    assert slots_within(_KEPT, torch.bfloat16, _POSITIONS, 3 * row, 64) == 6


def test_a_bound_too_small_for_one_sequence_is_refused_with_the_bytes_needed() -> None:
    row = slot_bytes(_KEPT, torch.float32, _POSITIONS)
    with pytest.raises(BackendError, match=rf"{row:,} bytes.*allows {row - 1:,}: set kv_cache_bytes to {row:,}"):
        slots_within(_KEPT, torch.float32, _POSITIONS, row - 1, 64)
