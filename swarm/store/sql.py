"""The SQL store: one training in a database, written by one thread and read by others.

`open_store` brings the schema up to date, finds the job's training or begins one (`swarm.store.tables.trainings`),
fences what was open when the server died, and returns the store with what to go on from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import ServerFailed, StoreUnavailable
from swarm.job import Job
from swarm.store import reading
from swarm.store.databases.database import cause, open_database, where
from swarm.store.tables.records import Change, Kept, Recovered
from swarm.store.tables.row_writer import RowWriter
from swarm.store.tables.schema import EPISODES
from swarm.store.tables.trainings import find_or_begin
from swarm.store.writer import Writer, WriteRequest
from swarm.wire import EpisodeList, EpisodeRecord

RESTARTED = "server_restarted"
"""Why episodes that were open at a restart are fenced."""

T = TypeVar("T")


def open_store(url: str, job: Job, installation: str) -> tuple[SqlStore, Recovered]:
    """Open the job's training in the database at `url`, for the server directory with that id. Blocks.

    Raises ServerFailed, in one line, if the database cannot be opened, is not this server's, or has trained the job
    further than it asks for.
    """
    engine = open_database(url, installation)
    try:
        with engine.begin() as connection:
            opened = find_or_begin(connection, job)
            fence(connection, opened.number)
            heads = reading.heads(connection, opened.number)
        kept = job.checkpoints_kept
        recovered = reading.recovered(engine, opened, kept)
        writer = Writer(engine, opened.number, RowWriter(opened.number, kept, heads), kept)
    except SQLAlchemyError as error:
        engine.dispose()
        raise ServerFailed(f"the store {where(engine)} cannot be read: {cause(error)}") from error
    except ServerFailed:
        engine.dispose()
        raise
    return SqlStore(engine, opened.number, writer), recovered


class SqlStore:
    """Implements `Store`."""

    def __init__(self, engine: sa.Engine, training: int, writer: Writer) -> None:
        self._engine = engine
        self._training = training
        self._writer = writer
        self._closed = False

    async def write(self, *changes: Change) -> None:
        """Write changes; return when they are committed, raise StoreUnavailable or StoreRefused if they were not."""
        if self._closed:
            raise StoreUnavailable("the store is closed: the engine was stopped", retry_after=1.0)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.put(WriteRequest(changes, done))
        await done

    def note(self, *changes: Change) -> None:
        """Write changes in order without waiting."""
        if not self._closed:
            self._writer.put(WriteRequest(changes))

    async def episodes(self, limit: int) -> EpisodeList:
        """Return the newest episodes; raise StoreUnavailable if the database cannot be read."""
        return await self._read(lambda connection: reading.episodes(connection, self._training, limit))

    async def episode(self, episode: str) -> EpisodeRecord | None:
        """Return an episode, or None; raise StoreUnavailable if the database cannot be read."""
        return await self._read(lambda connection: reading.episode(connection, self._training, episode))

    async def kept(self) -> Kept:
        """Return which episodes can be exported; raise StoreUnavailable if the database cannot be read."""
        return await self._read(lambda connection: reading.kept(connection, self._training))

    async def history(
        self, after: int, most: int, *, newest: bool = False
    ) -> Sequence[tuple[int, Mapping[str, float]]]:
        """Return the metrics of finished steps; raise StoreUnavailable if the database cannot be read."""
        return await self._read(lambda connection: reading.history(connection, self._training, after, most, newest))

    def failure(self) -> str | None:
        """Return why nothing is written any more before a restart, or None."""
        return self._writer.broken

    async def close(self) -> None:
        """Write what is left and let go of the database; safe to call twice."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._writer.stop)
            self._engine.dispose()

    async def _read(self, query: Callable[[sa.Connection], T]) -> T:
        try:
            return await asyncio.to_thread(self._ask, query)
        except SQLAlchemyError as error:
            raise StoreUnavailable(
                f"the store {where(self._engine)} cannot be read: {cause(error)}", retry_after=1.0
            ) from error

    def _ask(self, query: Callable[[sa.Connection], T]) -> T:
        with self._engine.connect() as connection:
            return query(connection)


def fence(connection: sa.Connection, training: int) -> None:
    """Close what was open, in the order of its beginning: nobody's lease outlives the server."""
    episodes = EPISODES.c
    heads = reading.heads(connection, training)
    open_ones = sa.select(episodes.serial).where(episodes.training == training, episodes.state == "open")
    serials = list(connection.execute(open_ones.order_by(episodes.serial)).scalars())
    fenced = sa.update(EPISODES).where(episodes.serial == sa.bindparam("which"))
    fenced = fenced.values(
        state="fenced", epoch=episodes.epoch + 1, reason=RESTARTED, closed=sa.bindparam("at"), closed_after=heads.step
    )
    rows = [{"which": serial, "at": heads.closed + place} for place, serial in enumerate(serials, start=1)]
    if rows:
        connection.execute(fenced, rows)
