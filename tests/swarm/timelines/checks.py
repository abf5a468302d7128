"""What must hold of every view of a tree, whatever was done to it."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.backends.protocols import TrainRow
from swarm.timelines import PackedTree
from tests.swarm.timelines.desk import Served


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


def check_packed(packed: PackedTree, episodes: Sequence[Sequence[Served]]) -> None:
    """The trie holds every prefix once, and trains each sampled token once, behind what the engine was shown."""
    prefixes = _Prefixes()
    expected = {}
    for number, calls in enumerate(episodes):
        for call in calls:
            node, before = call.node, len(call.prompt)
            along = prefixes.along(call.prompt + node.sampled)
            for place, name in enumerate(node.logprobs):
                expected[name] = (along[before + place], node.sampled[place], node.versions[place], number)
    count = len(prefixes)
    paths: list[int] = []
    depths: list[int] = []
    for index, (token, parent) in enumerate(zip(packed.ids, packed.parent, strict=True)):
        assert -1 <= parent < index
        paths.append(prefixes.then(paths[parent] if parent >= 0 else 0, token))
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    assert len(set(paths)) == len(paths) == count == len(prefixes)
    assert list(packed.position) == depths
    check_depth_first(packed.parent)
    columns = (packed.at, packed.targets, packed.logprobs, packed.versions, packed.episodes)
    entries = [
        (name, (paths[at], token, version, number)) for at, token, name, version, number in zip(*columns, strict=True)
    ]
    assert len(entries) == len(expected)
    assert dict(entries) == expected


def check_depth_first(parents: Sequence[int]) -> None:
    """Every id's parent is the id before it, or one that is on the path of the id before it."""
    path: list[int] = []
    for index, parent in enumerate(parents):
        while path and path[-1] != parent:
            path.pop()
        assert path or parent == -1
        path.append(index)
