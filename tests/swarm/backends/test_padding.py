"""Filling a batch up: its own episodes stay as they are, and what is added is nothing three times over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.padding import padded
from swarm.backends.protocols import Batch, TrainEpisode, TrainRow

ROW = TrainRow((5, 6, 7), (0, 1, 1), (0.0, -0.1, -0.2), (-1, 3, 3))


def batch(size: int, row: TrainRow = ROW) -> Batch:
    return Batch(4, tuple(TrainEpisode(f"e{i}", f"g{i // 2}", float(i), (row,)) for i in range(size)))


@given(st.integers(0, 40), st.integers(1, 20))
def test_a_padded_batch_divides_and_begins_with_the_batch(size: int, multiple: int) -> None:
    full = padded(batch(size), multiple)
    assert len(full.episodes) % multiple == 0
    assert len(full.episodes) - size < multiple
    assert full.episodes[:size] == batch(size).episodes
    assert full.step == 4
    names = [episode.episode_id for episode in full.episodes]
    assert len(set(names)) == len(names)


@given(st.integers(1, 40), st.integers(1, 20))
def test_what_is_added_weighs_nothing_samples_nothing_and_is_in_nobodys_group(size: int, multiple: int) -> None:
    added = padded(batch(size), multiple).episodes[size:]
    groups = [episode.group for episode in added]
    assert len(set(groups)) == len(groups)
    assert not set(groups) & {episode.group for episode in batch(size).episodes}
    for episode in added:
        assert episode.weight == 0
        assert [sum(row.sampled) for row in episode.rows] == [0]


def test_a_filling_row_is_long_enough_whatever_the_batch_holds() -> None:
    short = TrainRow((9,), (0,), (0.0,), (-1,))
    [_, filler] = padded(batch(1, short), 2).episodes
    assert filler.rows[0].ids == (9, 9)


def test_a_multiple_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="found 0"):
        padded(batch(3), 0)
