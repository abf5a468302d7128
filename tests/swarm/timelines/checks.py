"""What must hold of every view of a tree, whatever was done to it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from swarm.algorithms.rows import train_rows
from swarm.backends.local.micro_batch import PackedRows, sort_depth_first
from swarm.backends.protocols import TrainEpisode
from swarm.timelines import Drift, Node, linear_rows
from swarm.timelines.node import TrainRow
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


def trained(row: TrainRow) -> list[float]:
    return [logprob for logprob, mark in zip(row.logprobs, row.sampled, strict=True) if mark]


def check_rows(rows: Sequence[TrainRow], calls: Sequence[Served]) -> None:
    """Each call's sampled tokens are trained in exactly one row, after exactly the prompt the engine was shown."""
    named = sorted(name for row in rows for name in trained(row))
    assert named == sorted(name for call in calls for name in call.node.logprobs)
    holder = {name: row for row in rows for name in trained(row)}
    for call in calls:
        if not call.node.sampled:
            continue
        row = holder[call.node.logprobs[0]]
        start, end = len(call.prompt), len(call.prompt) + len(call.node.sampled)
        assert row.ids[:end] == call.prompt + call.node.sampled
        assert row.sampled[start:end] == (1,) * (end - start)
        assert row.logprobs[start:end] == call.node.logprobs
        assert row.versions[start:end] == call.node.versions
    whole = {call.prompt + call.node.sampled for call in calls}
    for row in rows:
        assert len(row.ids) == len(row.sampled) == len(row.logprobs) == len(row.versions)
        assert row.ids in whole
        unsampled = [n for n, mark in enumerate(row.sampled) if not mark]
        assert all(row.logprobs[n] == 0.0 and row.versions[n] == -1 for n in unsampled)


class _Prefixes:
    """Gives every sequence of ids a number, by the number of all but its last id; 0 is the empty one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def then(self, number: int, token: int) -> int:
        return self._numbers.setdefault((number, token), len(self._numbers) + 1)

    def along(self, ids: Sequence[int]) -> list[int]:
        """Return the numbers of all beginnings of `ids`, the empty one's first."""
        numbers = [0]
        for token in ids:
            numbers.append(self.then(numbers[-1], token))
        return numbers

    def __len__(self) -> int:
        return len(self._numbers)


def packed_rows(episodes: Sequence[Sequence[Node]]) -> PackedRows:
    made = [TrainEpisode(str(number), "group", 0.0, linear_rows(nodes)) for number, nodes in enumerate(episodes)]
    return PackedRows(sort_depth_first([row for own in train_rows(made) for row in own]))


def parents(packed: PackedRows) -> list[int]:
    """Return the index of the id before each id of a packed tree, -1 at a root."""
    found = []
    for segment in packed.tree.segments:
        before = packed.tree.segments[segment.parent].end - 1 if segment.parent >= 0 else -1
        found += [before, *range(segment.start, segment.end - 1)]
    return found


def check_packed(episodes: Sequence[Sequence[Served]]) -> None:
    """The learner's tree holds every prefix once, and trains each sampled token once, behind what the engine saw."""
    prefixes = _Prefixes()
    expected = {}
    for number, calls in enumerate(episodes):
        for call in calls:
            node, before = call.node, len(call.prompt)
            along = prefixes.along(call.prompt + node.sampled[:-1]) if node.sampled else []
            for place, name in enumerate(node.logprobs):
                expected[name] = (along[before + place], node.sampled[place], node.versions[place], number)
    if not expected:
        return
    packed = packed_rows([sorted((call.node for call in calls), key=lambda node: node.index) for calls in episodes])
    count = len(prefixes)
    paths: list[int] = []
    depths: list[int] = []
    before_each = parents(packed)
    for index, (token, parent) in enumerate(zip(packed.ids.tolist(), before_each, strict=True)):
        assert -1 <= parent < index
        paths.append(prefixes.then(paths[parent] if parent >= 0 else 0, token))
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    assert len(set(paths)) == len(paths) == count == len(prefixes)
    assert packed.position.tolist() == depths
    check_depth_first(before_each)
    places = iter(packed.places.tolist())
    entries = [
        (name, (paths[next(places)], token, version, row.episode))
        for row in packed.rows
        for token, name, version in zip(row.targets.tolist(), row.rollout.tolist(), row.versions.tolist(), strict=True)
    ]
    assert len(entries) == len(expected)
    assert dict(entries) == expected
    assert next(places, None) is None


def distinct_prefixes(episodes: Sequence[Sequence[Node]]) -> int:
    """Count by brute force what `tree_tokens` counts."""
    paths = [tuple(node.path_ids()) for nodes in episodes for node in nodes if node.trained]
    return len({path[:size] for path in paths for size in range(1, len(path) + 1)})


def check_depth_first(parents: Sequence[int]) -> None:
    """Every id's parent is the id before it, or one that is on the path of the id before it."""
    path: list[int] = []
    for index, parent in enumerate(parents):
        while path and path[-1] != parent:
            path.pop()
        assert path or parent == -1
        path.append(index)
