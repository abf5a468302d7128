"""Episode records for the tests of exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from swarm.wire import CallRecord, EpisodeRecord, TokenSpan


def call(index: int, parent: int | None, context: Sequence[int], sampled: Sequence[int]) -> CallRecord:
    logprobs = tuple(-0.25 * (1 + place) for place in range(len(sampled)))
    return CallRecord(
        index=index,
        parent=parent,
        drift="start" if parent is None else "clean",
        context=TokenSpan(ids=tuple(context), texts=()),
        sampled=TokenSpan(ids=tuple(sampled), texts=(), logprobs=logprobs, versions=(3,) * len(sampled)),
    )


def episode(*calls: CallRecord, **fields: Any) -> EpisodeRecord:
    known = {"id": "e", "task_id": "t", "stream": "s", "kind": "train", "owner": "o", "state": "ended"}
    told = {"group": "t#1", "reward": 0.5, "success": True}
    tokens = sum(len(one.sampled.ids) for one in calls)
    return EpisodeRecord(**{**known, **told, **fields}, calls=len(calls), tokens=tokens, record=calls)


@st.composite
def records(draw: st.DrawFn) -> EpisodeRecord:
    """Any tree of calls."""
    ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=4)
    calls: list[CallRecord] = []
    for index in range(draw(st.integers(0, 6))):
        parent = draw(st.sampled_from([None, *range(index)]))
        calls.append(call(index, parent, draw(ids), draw(ids)))
    return episode(*calls)
