"""Changes to write, and a store that is open for a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from swarm.errors import StoreRefused, StoreUnavailable
from swarm.job import Job
from swarm.store.changes import BatchScheduled, CallCaptured, Change, CheckpointSaved, EpisodeClosed
from swarm.store.reading import RecoveredState
from swarm.store.tables import EpisodeRow, Sample
from swarm.store.writer import Store, open_store
from swarm.timelines import Drift, Node

HERE = "installation-of-the-tests"


class FakeStore(Store):
    """`changes` holds all that was written, in order. `hold()` makes writes wait; `fail` makes them raise. `broken` is
    what it says of itself, and makes every write be refused for good."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.fail: str | None = None
        self.broken: str | None = None
        self._released = asyncio.Event()
        self._released.set()
        self.hold, self.release = self._released.clear, self._released.set

    async def write(self, *changes: Change) -> None:
        await self._released.wait()
        if self.broken is not None:
            raise StoreRefused(self.broken)
        if self.fail is not None:
            raise StoreUnavailable(self.fail)
        self.changes += changes

    def note(self, *changes: Change) -> None:
        self.changes += changes

    async def _read(self, query: Callable[..., Any]) -> None:
        return None

    async def close(self) -> None:
        """Nothing to let go of."""


def job(**fields: Any) -> Job:
    return Job.model_validate({"backend": "fake", **fields})


@contextlib.asynccontextmanager
async def opened(url: str, wanted: Job | None = None) -> AsyncIterator[tuple[Store, RecoveredState]]:
    store, recovered = open_store(url, wanted or job(), HERE)
    try:
        yield store, recovered
    finally:
        await store.close()


async def reopened(url: str, wanted: Job | None = None) -> RecoveredState:
    async with opened(url, wanted) as (_, recovered):
        return replace(recovered, replay=dict(recovered.replay))


def execute(url: str, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        found = connection.execute(sa.text(statement), values)
        rows = [tuple(row) for row in found] if found.returns_rows else []
    engine.dispose()
    return rows


def shape(engine: sa.Engine) -> dict[str, Any]:
    found = sa.inspect(engine)
    with engine.connect() as connection:
        version = connection.execute(sa.text("select version_num from alembic_version")).scalars().all()
    return {"version": version} | {
        table: {
            "columns": [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in found.get_columns(table)],
            "key": found.get_pk_constraint(table)["constrained_columns"],
            "indexes": sorted(str((i["name"], i["column_names"], i["unique"])) for i in found.get_indexes(table)),
            "unique": sorted(str(u["column_names"]) for u in found.get_unique_constraints(table)),
        }
        for table in sorted(found.get_table_names())
    }


def node(index: int = 0, parent: Node | None = None, size: int = 3) -> Node:
    ids = tuple(range(index * 100, index * 100 + size))
    drift = Drift.START if parent is None else Drift.CLEAN
    logprobs, trained = tuple(-0.1 * (1 + i) for i in ids), index % 3 != 1
    return Node(index, parent, ids, ids[::-1], logprobs, (index,) * size, "", drift, trained)


def began(episode: str, **fields: Any) -> EpisodeRow:
    plain = {"task_id": "t", "stream": "default", "kind": "train", "owner": "o", "group": "t#1", "version": 0}
    return EpisodeRow(episode, **{**plain, **fields})


def played(episode: str, calls: int = 2, **fields: Any) -> Iterator[Change]:
    yield began(episode, **fields)
    last = None
    for index in range(calls):
        last = node(index, last)
        yield CallCaptured(episode, last)


def sample(episode: str, reward: float = 1.0, group: str | None = "t#1", **fields: Any) -> Sample:
    plain = {"task_id": "t", "stream": "default", "owner": "o", "success": reward > 0, "weight": 1.0, "nodes": ()}
    return Sample(episode=episode, reward=reward, group=group or "", **{**plain, **fields})


def ended(episode: str, reward: float = 1.0, group: str | None = "t#1", **fields: Any) -> EpisodeClosed:
    return EpisodeClosed(episode, "ended", sample=sample(episode, reward, group, **fields))


async def train_step(store: Store, step: int, *, consumed: bool = True) -> None:
    await store.write(*played(f"e{step}"), ended(f"e{step}"))
    await store.write(BatchScheduled(step, (f"e{step}",)))
    if consumed:
        await store.write(CheckpointSaved(step, f"step-{step}"))


def facts(value: Node) -> tuple[Any, ...]:
    """Return all that must come back of a node (its text is not kept)."""
    parent = None if value.parent is None else value.parent.index
    tokens = (value.context, value.sampled, value.logprobs, value.versions)
    return (value.index, parent, *tokens, value.drift, value.trained)
