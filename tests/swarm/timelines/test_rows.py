"""Rows are whole paths and train every sampled token once, in the context it was sampled in, whatever agents do."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import FakeRenderer
from swarm.rendering.messages import Renderer
from swarm.timelines import Drift, Node, linear_rows, token_counts, tree_tokens, unmerged_rows
from swarm.timelines.node import TrainRow
from tests.swarm.timelines.agents import FAKE, FAKES, REAL, Agent
from tests.swarm.timelines.checks import EPISODES, SPANS, check_packed, check_rows, distinct_prefixes, grow, packed_rows
from tests.swarm.timelines.desk import Served
from tests.swarm.timelines.families import FAMILIES, Family, make_renderer


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


@given(EPISODES)
def test_rows_of_any_nodes_pack_into_one_tree(episodes: list[list[tuple[int, list[int], list[int]]]]) -> None:
    names = itertools.count(1)
    grown = [grow(spans, names) for spans in episodes]
    assert tree_tokens(grown) == distinct_prefixes(grown)
    check_packed(
        [[Served(node, tuple(node.path_ids())[: -len(node.sampled)], {}) for node in nodes] for nodes in grown]
    )


ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "merging.md").read_text()


def test_the_worked_example_prints_what_the_document_says() -> None:
    code, printed = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", TEXT, re.DOTALL)[0]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    assert out.getvalue() == printed


def test_the_table_of_ratios_is_the_benchmarks() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "merge_ratio.json").read_text())["workloads"]
    counted: dict[tuple[int, ...], tuple[float, float]] = {
        (row["P"], row["a"], row["o"], row["T"], row["n"]): (row["unmerged/linear"], row["unmerged/tree"])
        for row in figures
    }
    rows = re.findall(r"^\| ([\d,]+) \| (\d+)[^|]* \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", TEXT, re.M)
    assert len(rows) == 7
    for *sizes, linear, tree in rows:
        assert counted[tuple(int(size.replace(",", "")) for size in sizes)] == (float(linear), float(tree))


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
    return Counter(
        (row.ids[: place + 1], row.logprobs[place])
        for row in rows
        for place, trained in enumerate(row.sampled)
        if trained
    )


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


def test_a_judge_between_two_calls_is_context() -> None:
    first = Node(0, None, (1,), (2,), (-1.0,), (0,), "", Drift.START)
    judge = Node(1, first, (3,), (4,), (-2.0,), (0,), "", Drift.CLEAN, trained=False)
    last = Node(2, judge, (5,), (6,), (-3.0,), (0,), "", Drift.CLEAN)
    aside = Node(3, None, (7,), (8,), (-4.0,), (0,), "", Drift.START, trained=False)
    (row,) = linear_rows([first, judge, last, aside])
    assert (row.ids, row.sampled) == ((1, 2, 3, 4, 5, 6), (0, 1, 0, 0, 0, 1))
    assert row.versions == (-1, 0, -1, -1, -1, 0)
    assert [row.targets.tolist() for row in packed_rows([[first, judge, last, aside]]).rows] == [[2, 6]]


NUMBERS = st.lists(st.integers(0, 7 * 13 * 5 * 11 * 3 * 3 * 6 * 3 - 1), min_size=1, max_size=8)
GROUPS = st.lists(NUMBERS, min_size=1, max_size=2)


def check(family: Family, renderer: Renderer, group: list[list[int]]) -> None:
    names = itertools.count(1)
    agents = [Agent(family, renderer, names) for _ in group]
    for agent, numbers in zip(agents, group, strict=True):
        agent.play(numbers)
    episodes = [agent.desk.tree.nodes for agent in agents]
    linear, unmerged = 0, 0
    for agent in agents:
        nodes = agent.desk.tree.nodes
        rows, all_rows = linear_rows(nodes), unmerged_rows(nodes)
        check_rows(rows, agent.desk.calls)
        check_rows(all_rows, agent.desk.calls)
        counts = sum(len(row.ids) for row in rows), sum(len(row.ids) for row in all_rows)
        assert token_counts(nodes) == counts
        assert [node.index for node in nodes] == sorted(node.index for node in nodes)
        agent.check_fresh()
        linear, unmerged = linear + counts[0], unmerged + counts[1]
    check_packed([agent.desk.calls for agent in agents])
    assert tree_tokens(episodes) == distinct_prefixes(episodes) <= linear <= unmerged


@given(GROUPS, st.sampled_from(FAKES))
def test_every_view_trains_every_sampled_token_once(group: list[list[int]], renderer: type[FakeRenderer]) -> None:
    check(FAKE, renderer(), group)


@given(GROUPS, st.sampled_from(REAL))
def test_so_they_do_with_the_templates_of_all_families(group: list[list[int]], family: str) -> None:
    check(FAMILIES[family], make_renderer(family), group)
