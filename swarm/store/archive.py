"""Read-only access to the store while no engine runs: nothing is created, migrated, fenced or written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import ServerFailed, StoreUnavailable
from swarm.job import Job
from swarm.store import reading
from swarm.store.databases.database import cause, connect, where
from swarm.store.tables.schema import CHECKPOINTS, TRAININGS
from swarm.store.tables.trainings import find
from swarm.wire import EpisodeList, EpisodeRecord

T = TypeVar("T")


class Archive:
    """Episodes and checkpoints of a training in the database at `url`: of the job's, if it has one, else of the newest.

    A database that does not exist, or has no training yet, has none. Raises StoreUnavailable if it cannot be read.
    """

    def __init__(self, url: str, job: Job | None) -> None:
        self._url = url
        self._job = job

    async def episodes(self, limit: int) -> EpisodeList:
        """Return the newest episodes."""
        found = await self._read(lambda connection, training: reading.episodes(connection, training, limit))
        return found or EpisodeList(episodes=())

    async def episode(self, episode: str) -> EpisodeRecord | None:
        """Return an episode with its tokens, as far as they were not collected, or None."""
        return await self._read(lambda connection, training: reading.episode(connection, training, episode))

    async def checkpoints(self) -> tuple[str | None, Sequence[tuple[int, str]]]:
        """Return the training's job digest (None where there is no training), and its kept checkpoints by step."""
        return await self._read(_checkpoints) or (None, ())

    async def _read(self, query: Callable[[sa.Connection, int], T]) -> T | None:
        return await asyncio.to_thread(self._ask, query)

    def _ask(self, query: Callable[[sa.Connection, int], T]) -> T | None:
        engine = connect(self._url)
        file = engine.url.database if engine.dialect.name == "sqlite" else None
        if file is not None and not Path(file).exists():  # SQLite would make it
            return None
        try:
            with engine.connect() as connection:
                training = self._training(connection)
                return None if training is None else query(connection, training)
        except SQLAlchemyError as error:
            raise StoreUnavailable(
                f"the store {where(engine)} cannot be read: {cause(error)}", retry_after=1.0
            ) from error
        finally:
            engine.dispose()

    def _training(self, connection: sa.Connection) -> int | None:
        if not sa.inspect(connection).has_table(TRAININGS.name):
            return None
        with suppress(ServerFailed):  # it has more steps than are asked for: told at the start of the engine
            if self._job is not None and (found := find(connection, self._job)) is not None:
                return found.number
        return connection.execute(sa.select(sa.func.max(TRAININGS.c.id))).scalar()


def _checkpoints(connection: sa.Connection, training: int) -> tuple[str, Sequence[tuple[int, str]]]:
    digest = connection.execute(sa.select(TRAININGS.c.job_digest).where(TRAININGS.c.id == training)).scalar_one()
    saved = sa.select(CHECKPOINTS.c.step, CHECKPOINTS.c.name).where(CHECKPOINTS.c.training == training)
    return str(digest), [(int(row.step), str(row.name)) for row in connection.execute(saved)]
