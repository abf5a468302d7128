"""A packed tree holds every shared prefix once; random conversations are in test_agents."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.timelines import Drift, Node, packed_tree, tree_tokens
from tests.swarm.timelines.checks import check_packed
from tests.swarm.timelines.desk import Served

SPANS = st.tuples(
    st.integers(0, 5), st.lists(st.integers(0, 1), max_size=4), st.lists(st.integers(0, 1), min_size=1, max_size=3)
)
EPISODES = st.lists(st.lists(SPANS, min_size=1, max_size=5), min_size=1, max_size=3)


def grow(spans: list[tuple[int, list[int], list[int]]], names: itertools.count[int]) -> list[Node]:
    """Make an episode: each call goes on from an earlier one, or (0) begins anew."""
    nodes: list[Node] = []
    for index, (base, context, sampled) in enumerate(spans):
        parent = nodes[base % len(nodes)] if base and nodes else None
        before = tuple(context) if parent is not None else (0, *context)
        logprobs = tuple(-float(next(names)) for _ in sampled)
        nodes.append(Node(index, parent, before, tuple(sampled), logprobs, (index,) * len(sampled), "", Drift.START))
    return nodes


@settings(max_examples=200, deadline=None)
@given(EPISODES)
def test_any_nodes_pack(episodes: list[list[tuple[int, list[int], list[int]]]]) -> None:
    names = itertools.count(1)
    grown = [grow(spans, names) for spans in episodes]
    packed = packed_tree(grown)
    assert len(packed.ids) == tree_tokens(grown)
    served = [[Served(node, tuple(node.path_ids())[: -len(node.sampled)], {}) for node in nodes] for nodes in grown]
    check_packed(packed, served)


def test_the_same_token_sampled_in_two_episodes_is_one_id_and_trained_twice() -> None:
    first, second = (Node(0, None, (7, 8), (9,), (logprob,), (3,), "", Drift.START) for logprob in (-1.0, -2.0))
    packed = packed_tree([[first], [second]])
    assert (packed.ids, packed.parent, packed.position) == ((7, 8, 9), (-1, 0, 1), (0, 1, 2))
    assert (packed.at, packed.targets, packed.versions) == ((1, 1), (9, 9), (3, 3))
    assert (packed.logprobs, packed.episodes) == ((-1.0, -2.0), (0, 1))


def test_a_sampled_id_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt before the sampled ids of call 4"):
        packed_tree([[Node(4, None, (), (1,), (-1.0,), (0,), "", Drift.START)]])


def test_no_calls_make_an_empty_tree() -> None:
    assert packed_tree([]).ids == packed_tree([[]]).at == ()
