"""Read-only access to the store while no engine runs: nothing is created, migrated, fenced or written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import ServerFailed, StoreUnavailable
from swarm.job import Job
from swarm.store import reading
from swarm.store.databases.database import cause, connect, where
from swarm.store.outline import Outline, outline
from swarm.store.tables.records import Kept
from swarm.store.tables.schema import TRAININGS
from swarm.store.tables.trainings import find
from swarm.wire import EpisodeList, EpisodeRecord, EvaluationSummary

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

    async def kept(self) -> Kept:
        """Return which episodes can be exported."""
        return await self._read(reading.kept) or Kept()

    async def history(
        self, after: int, most: int, *, newest: bool = False
    ) -> Sequence[tuple[int, Mapping[str, float]]]:
        """Return the metrics of finished steps above `after`, ascending, at most so many: the first, or the newest."""

        def told(connection: sa.Connection, training: int) -> Sequence[tuple[int, Mapping[str, float]]]:
            return reading.history(connection, training, after, most, newest)

        return await self._read(told) or ()

    async def digest(self) -> str | None:
        """Return the training's job digest, None where there is no training."""
        return await self._read(_digest)

    async def checkpoints(self) -> tuple[Sequence[tuple[int, str]], Sequence[EvaluationSummary]]:
        """Return the training's kept checkpoints by step, and how they were evaluated."""
        return await self._read(lambda *of: (reading.checkpoints(*of), reading.evaluations(*of))) or ((), ())

    async def outline(self, step: int) -> Outline | None:
        """Return what is known of the training and of its weights after `step`; None where there is no training."""
        return await self._read(lambda connection, training: outline(connection, training, step))

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


def _digest(connection: sa.Connection, training: int) -> str:
    return str(connection.execute(sa.select(TRAININGS.c.job_digest).where(TRAININGS.c.id == training)).scalar_one())
