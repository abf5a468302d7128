"""A packed tree of rows holds every shared prefix once, and each row's path through it is the row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.backends.algorithms.rows import Row, train_rows
from swarm.backends.local.learning.trees import Branch, PackedRows, bounded, depth_first
from swarm.timelines import tree_tokens
from tests.swarm.backends.local.forests import batch_of, grow_groups, row
from tests.swarm.timelines.checks import parents

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=9)
ROWS = st.lists(IDS, min_size=1, max_size=8)


def prefixes(rows: list[Row]) -> set[tuple[int, ...]]:
    return {tuple(each.ids[: n + 1].tolist()) for each in rows for n in range(len(each.ids))}


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_every_place_is_reached_through_its_own_row(drawn: list[list[int]]) -> None:
    packed = PackedRows(depth_first([row(ids) for ids in drawn]))
    before = parents(packed)
    places = iter(packed.places.tolist())
    for each in packed.rows:
        for place in each.places.tolist():
            index, path = next(places), []
            assert packed.position[index] == place
            while index >= 0:
                path.append(int(packed.ids[index]))
                index = before[index]
            assert path[::-1] == each.ids[: place + 1].tolist()
    assert next(places, None) is None


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_every_shared_prefix_is_there_once(drawn: list[list[int]]) -> None:
    rows = [row(ids) for ids in drawn]
    packed = PackedRows(depth_first(rows))
    assert packed.tokens == len(prefixes(rows))
    assert sorted(map(id, packed.rows)) == sorted(map(id, rows))


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_segments_lie_side_by_side_with_all_their_descendants_behind_them(drawn: list[list[int]]) -> None:
    segments = PackedRows(depth_first([row(ids) for ids in drawn])).tree.segments
    assert [each.start for each in segments] == [0, *(each.end for each in segments[:-1])]
    for number, segment in enumerate(segments):
        assert segment.start < segment.end <= segment.below
        assert segment.parent < number
        below = {number}
        for later, each in enumerate(segments):
            if each.parent in below:
                below.add(later)
        assert max(segments[each].end for each in below) == segment.below
        assert sum(segments[each].end - segments[each].start for each in below) == segment.below - segment.start


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(1, 20))
def test_no_tree_is_over_the_budget_but_a_single_row(drawn: list[list[int]], tokens: int) -> None:
    rows = [row(ids) for ids in drawn]
    trees = list(bounded(depth_first(rows), tokens))
    for tree in trees:
        packed = PackedRows(tree)
        assert packed.tokens == sum(branch.added for branch in tree) == len(prefixes(list(packed.rows)))
        assert packed.tokens <= tokens or len(tree) == 1
    assert sorted(id(branch.row) for tree in trees for branch in tree) == sorted(map(id, rows))


def test_neighbours_that_share_most_stay_together() -> None:
    rows = [row(ids) for ids in ([1, 1, 1, 1], [2, 2, 2, 2], [1, 1, 1, 3], [2, 2, 2, 4])]
    trees = [PackedRows(tree) for tree in bounded(depth_first(rows), 5)]
    assert [tree.ids.tolist() for tree in trees] == [[1, 1, 1, 1, 3], [2, 2, 2, 2, 4]]


def test_a_row_that_is_the_beginning_of_another_adds_no_segment() -> None:
    packed = PackedRows(depth_first([row([4, 5, 6]), row([4]), row([4, 5, 6]), row([4, 5])]))
    assert packed.ids.tolist() == [4, 5, 6]
    assert [(each.start, each.end, each.below, each.parent) for each in packed.tree.segments] == [(0, 3, 3, -1)]
    assert packed.places.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_tree_of_the_calls_but_for_last_ids_that_predict_nothing(seed: int) -> None:
    grown = grow_groups(seed, vocabulary=6)
    rows = [each for own in train_rows(batch_of(grown).episodes) for each in own]
    calls = {tuple(node.path_ids()) for _, nodes in grown for node in nodes}
    inner = {call[:length] for call in calls for length in range(len(call))}
    assert PackedRows(depth_first(rows)).tokens == tree_tokens([nodes for _, nodes in grown]) - len(calls - inner)


def test_a_branch_says_how_many_ids_it_adds() -> None:
    assert Branch(row([1, 2, 3]), 2).added == 1
    assert torch.equal(
        PackedRows([Branch(row([1, 2, 3]), 0), Branch(row([1, 2, 4]), 2)]).ids, torch.tensor([1, 2, 3, 4])
    )


def test_the_way_to_the_longest_row_comes_first_so_that_it_stands_in_one_piece() -> None:
    packed = PackedRows(depth_first([row([1, 0]), row([1, 2, 0]), row([1, 2, 3, 4, 5]), row([1, 2, 3, 0])]))
    assert packed.ids.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert [(run.start, run.end, run.below, run.seen) for run in packed.tree.runs] == [
        (0, 5, 8, None),
        (5, 6, 6, slice(0, 3)),
        (6, 7, 7, slice(0, 2)),
        (7, 8, 8, slice(0, 1)),
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_rows_makes_no_other_tree(order: tuple[int, ...]) -> None:
    ids = [[1, 2, 3], [1, 2], [9, 1]]
    assert PackedRows(depth_first([row(ids[n]) for n in order])).ids.tolist() == [1, 2, 3, 9, 1]
