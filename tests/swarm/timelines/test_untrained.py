"""Calls that are not trained: context where a trained call goes on from them, and in no view otherwise."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.backends.protocols import TrainRow
from swarm.timelines import Drift, Node, linear_rows, token_counts, tree_tokens, unmerged_rows
from tests.swarm.timelines.checks import SPANS, distinct_prefixes, grow, packed_rows

MARKED = st.lists(st.tuples(SPANS, st.booleans()), max_size=7)


def marked(drawn: Sequence[tuple[tuple[int, list[int], list[int]], bool]]) -> list[Node]:
    """Make an episode of calls some of which are not trained; each sampled token has a log-prob of its own."""
    names = itertools.count(1)
    plain = grow([span for span, _ in drawn], names)
    nodes: list[Node] = []
    for node, (_, trained) in zip(plain, drawn, strict=True):
        parent = None if node.parent is None else nodes[node.parent.index]
        nodes.append(replace(node, parent=parent, trained=trained))
    return nodes


def entries(rows: Sequence[TrainRow]) -> Counter[tuple[tuple[int, ...], float]]:
    """Return what is trained: the ids before a token and its own, with its log-prob."""
    return Counter(
        (row.ids[: place + 1], row.logprobs[place])
        for row in rows
        for place, trained in enumerate(row.sampled)
        if trained
    )


@settings(max_examples=300)
@given(MARKED)
def test_every_view_trains_the_trained_calls_and_no_other(
    drawn: list[tuple[tuple[int, list[int], list[int]], bool]],
) -> None:
    nodes = marked(drawn)
    expected = Counter(
        (tuple(path[: len(path) - len(node.sampled) + place + 1]), node.logprobs[place])
        for node in nodes
        if node.trained
        for path in [node.path_ids()]
        for place in range(len(node.sampled))
    )
    assert entries(linear_rows(nodes)) == entries(unmerged_rows(nodes)) == expected
    assert tree_tokens([nodes]) == distinct_prefixes([nodes])
    packed = packed_rows([nodes]).rows if expected else []
    trained = Counter(logprob for row in packed for logprob in row.rollout.tolist())
    assert trained == Counter(logprob for _, logprob in expected.elements())


@given(MARKED)
def test_no_row_is_there_for_nothing(drawn: list[tuple[tuple[int, list[int], list[int]], bool]]) -> None:
    nodes = marked(drawn)
    rows, alone = linear_rows(nodes), unmerged_rows(nodes)
    assert all(any(row.sampled) for row in (*rows, *alone))
    assert token_counts(nodes) == (sum(len(row.ids) for row in rows), sum(len(row.ids) for row in alone))
    assert tree_tokens([nodes]) <= sum(len(row.ids) for row in rows)


def test_a_judge_between_two_calls_is_context() -> None:
    first = Node(0, None, (1,), (2,), (-1.0,), (0,), "", Drift.START)
    judge = Node(1, first, (3,), (4,), (-2.0,), (0,), "", Drift.CLEAN, trained=False)
    last = Node(2, judge, (5,), (6,), (-3.0,), (0,), "", Drift.CLEAN)
    aside = Node(3, None, (7,), (8,), (-4.0,), (0,), "", Drift.START, trained=False)
    (row,) = linear_rows([first, judge, last, aside])
    assert (row.ids, row.sampled) == ((1, 2, 3, 4, 5, 6), (0, 1, 0, 0, 0, 1))
    assert row.versions == (-1, 0, -1, -1, -1, 0)
    assert [row.targets.tolist() for row in packed_rows([[first, judge, last, aside]]).rows] == [[2, 6]]
