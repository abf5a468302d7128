"""Rows are whole paths, and train every sampled token exactly once; random conversations are in test_agents."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings

from swarm.timelines import Drift, Node, linear_rows, token_counts, tree_tokens, unmerged_rows
from tests.swarm.timelines.checks import EPISODES, check_packed, distinct_prefixes, grow, packed_rows
from tests.swarm.timelines.desk import Served


def call(parent: Node | None, context: str, sampled: str, *, numbers: itertools.count[int]) -> Node:
    index = next(numbers)
    ids = tuple(sampled.encode())
    return Node(
        index, parent, tuple(context.encode()), ids, (-float(index),) * len(ids), (index,) * len(ids), "", Drift.START
    )


@pytest.fixture
def forked() -> list[Node]:
    """A conversation of two calls, whose second prompt was answered twice, and a conversation of its own."""
    numbers = itertools.count()
    root = call(None, "ab", "c", numbers=numbers)
    left = call(root, "d", "ef", numbers=numbers)
    right = call(root, "d", "e", numbers=numbers)
    return [root, left, right, call(None, "x", "", numbers=numbers)]


def test_linear_rows_take_one_path_per_leaf_and_train_a_shared_call_in_the_first(forked: list[Node]) -> None:
    rows = linear_rows(forked)
    assert [bytes(row.ids) for row in rows] == [b"abcdef", b"abcde", b"x"]
    assert [row.sampled for row in rows] == [(0, 0, 1, 0, 1, 1), (0, 0, 0, 0, 1), (0,)]
    assert rows[0].logprobs == (0.0, 0.0, 0.0, 0.0, -1.0, -1.0)
    assert rows[1].versions == (-1, -1, -1, -1, 2)


def test_unmerged_rows_take_one_path_per_call(forked: list[Node]) -> None:
    rows = unmerged_rows(forked)
    assert [bytes(row.ids) for row in rows] == [b"abc", b"abcdef", b"abcde", b"x"]
    assert [sum(row.sampled) for row in rows] == [1, 2, 1, 0]


def test_counts_are_the_lengths_of_the_rows_and_of_the_packed_tree(forked: list[Node]) -> None:
    assert token_counts(forked) == (12, 15)
    assert tree_tokens([forked]) == 7
    assert tree_tokens([forked, forked[:1]]) == 7


def test_no_calls_give_no_rows() -> None:
    assert linear_rows([]) == unmerged_rows([]) == ()
    assert token_counts([]) == (0, 0)
    assert tree_tokens([]) == tree_tokens([[]]) == 0


@settings(max_examples=200, deadline=None)
@given(EPISODES)
def test_rows_of_any_nodes_pack_into_one_tree(episodes: list[list[tuple[int, list[int], list[int]]]]) -> None:
    names = itertools.count(1)
    grown = [grow(spans, names) for spans in episodes]
    assert tree_tokens(grown) == distinct_prefixes(grown)
    check_packed(
        [[Served(node, tuple(node.path_ids())[: -len(node.sampled)], {}) for node in nodes] for nodes in grown]
    )


def test_the_same_token_sampled_in_two_episodes_is_one_id_and_trained_twice() -> None:
    first, second = (Node(0, None, (7, 8), (9,), (logprob,), (3,), "", Drift.START) for logprob in (-1.0, -2.0))
    packed = packed_rows([[first], [second]])
    assert (packed.ids.tolist(), packed.position.tolist(), packed.places.tolist()) == ([7, 8], [0, 1], [1, 1])
    assert [row.targets.tolist() for row in packed.rows] == [[9], [9]]
    assert [(row.rollout.item(), row.episode) for row in packed.rows] == [(-1.0, 0), (-2.0, 1)]
