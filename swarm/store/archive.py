"""Read-only access and erasing while no engine runs.

What is open in a training that is not running belongs to a life of the server that is over, and is fenced before
erasing, as the next boot would. What waits for its batch is dropped (`erased`), and the next boot plays its place again
where its turn is not over. Left are members of undecided teams, and episodes of a batch that is settled and in no
checkpoint: a boot learns it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import ServerFailed, StoreUnavailable
from swarm.job import Job
from swarm.store import reading
from swarm.store.database import connect, error_message, open_database, redacted_url
from swarm.store.retention import find_training
from swarm.store.tables import (
    EPISODES,
    NODES,
    TASK_LISTS,
    TRAININGS,
    Change,
    EpisodeClosed,
    EpisodeErased,
)
from swarm.store.writer import RowWriter, fence_open_episodes
from swarm.wire import EVALUATION_STREAM, EvaluationSummary

_E = EPISODES.c


def erase_archived(
    url: str, installation: str, mark: str, episodes: Sequence[str], running: str | None
) -> Mapping[str, bool]:
    """Erase the episodes whose owner has the mark, and return of each whether its tokens are gone. Blocks.

    Those of others are in no answer; those of the training that runs, by its digest, are left. Nothing may be booted
    meanwhile. Raises StoreUnavailable, or ServerFailed for a database that is not this installation's.
    """
    if not _exists(url):
        return {}
    engine = open_database(url, installation)
    try:
        with engine.begin() as connection:
            own = [row for row in _rows(connection, episodes) if mark in row.owner.split(":")]
            for training in {row.training for row in own if row.job_digest != running}:
                _erase(connection, training, [row.id for row in own if row.training == training])
            return {row.id: _is_erased(connection, row.serial) for row in own}
    except SQLAlchemyError as error:
        raise StoreUnavailable(
            f"nothing can be erased in the store {redacted_url(engine)}: {error_message(error)}", retry_after=1.0
        ) from error
    finally:
        engine.dispose()


def _exists(url: str) -> bool:
    """Return whether there is a database: SQLite would make it."""
    engine = connect(url)
    try:
        file = engine.url.database if engine.dialect.name == "sqlite" else None
        return file is None or Path(file).exists()
    finally:
        engine.dispose()


def _rows(connection: sa.Connection, episodes: Sequence[str]) -> Sequence[sa.Row[Any]]:
    query = sa.select(_E.id, _E.serial, _E.training, _E.owner, TRAININGS.c.job_digest)
    here = query.join(TRAININGS, TRAININGS.c.id == _E.training).where(_E.id.in_(episodes))
    return connection.execute(here).all()


def _erase(connection: sa.Connection, training: int, episodes: Sequence[str]) -> None:
    fence_open_episodes(connection, training)
    waiting = sa.select(_E.id, _E.epoch).where(_E.training == training, _E.id.in_(episodes))
    pooled = connection.execute(waiting.where(_E.kind == "train", _E.state == "ended")).all()
    writer = RowWriter(training, 1, reading.read_high_water_marks(connection, training))
    changes: list[Change] = [EpisodeClosed(row.id, "dropped", row.epoch, reason="erased") for row in pooled]
    writer.write(connection, [*changes, *map(EpisodeErased, episodes)])


def _is_erased(connection: sa.Connection, serial: int) -> bool:
    undecided = sa.select(_E.serial).where(_E.serial == serial, _E.state.in_(("open", "prepared")))
    tokens = sa.select(NODES.c.episode).where(NODES.c.episode == serial)
    return connection.execute(sa.union_all(undecided, tokens).limit(1)).first() is None


@dataclass(frozen=True, slots=True)
class VersionEvaluation:
    """All evaluation episodes that began under one policy version, and ended."""

    episodes: int
    tasks: int
    reward: float
    """Mean over the episodes."""
    success: float | None
    """Share that succeeded, of those that said."""


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """A training as the weights of one of its steps see it."""

    job: Job
    job_digest: str
    lists: Mapping[str, str]
    """By stream, the digest of its task list."""
    trained: int
    """Episodes of the steps up to this one."""
    evaluation: VersionEvaluation | None
    """Of these weights; None where nothing was measured."""


def summarize_training(connection: sa.Connection, training: int, step: int) -> TrainingSummary:
    columns = (TRAININGS.c.job, TRAININGS.c.job_digest)
    known = connection.execute(sa.select(*columns).where(TRAININGS.c.id == training)).one()
    lists = connection.execute(
        sa.select(TASK_LISTS.c.stream, TASK_LISTS.c.digest).where(TASK_LISTS.c.training == training)
    )
    learned = (_E.training == training, _E.step <= step, _E.state.in_(("in_step", "consumed")))
    trained = connection.execute(sa.select(sa.func.count()).select_from(EPISODES).where(*learned)).scalar_one()
    return TrainingSummary(
        Job.from_record(known.job),
        known.job_digest,
        {row.stream: row.digest for row in lists},
        int(trained),
        _evaluation(connection, training, step),
    )


def _evaluation(connection: sa.Connection, training: int, version: int) -> VersionEvaluation | None:
    measured: tuple[sa.ColumnElement[Any], ...] = (
        sa.func.count(_E.reward).label("episodes"),
        sa.func.count(sa.distinct(_E.task_id)).label("tasks"),
        sa.func.avg(_E.reward).label("reward"),
        sa.func.avg(sa.case((_E.success.is_(True), 1.0), (_E.success.is_(False), 0.0))).label("success"),
    )
    where = (
        _E.training == training,
        _E.kind == "eval",
        _E.stream == EVALUATION_STREAM,
        _E.state == "ended",
        _E.version == version,
    )
    row = connection.execute(sa.select(*measured).where(*where)).one()
    if not row.episodes:
        return None
    success = None if row.success is None else float(row.success)
    return VersionEvaluation(row.episodes, row.tasks, float(row.reward), success)


T = TypeVar("T")


class Archive(reading.TrainingReader):
    """Episodes and checkpoints of a training in the database at `url`: of the job's, if it has one, else of the newest.
    A database that does not exist, or has no training yet, has none. Raises StoreUnavailable if it cannot be read."""

    def __init__(self, url: str, job: Job | None) -> None:
        self._url = url
        self._job = job

    async def digest(self) -> str | None:
        return await self._read(_digest)

    async def checkpoints(self) -> tuple[Sequence[tuple[int, str]], Sequence[EvaluationSummary]]:
        return await self._read(lambda *of: (reading.checkpoints(*of), reading.evaluations(*of))) or ((), ())

    async def summarize(self, step: int) -> TrainingSummary | None:
        return await self._read(lambda connection, training: summarize_training(connection, training, step))

    async def _read(self, query: Callable[[sa.Connection, int], T]) -> T | None:
        return await asyncio.to_thread(self._query, query)

    def _query(self, query: Callable[[sa.Connection, int], T]) -> T | None:
        if not _exists(self._url):
            return None
        engine = connect(self._url)
        try:
            with engine.connect() as connection:
                training = self._training(connection)
                return None if training is None else query(connection, training)
        except SQLAlchemyError as error:
            raise StoreUnavailable(
                f"the store {redacted_url(engine)} cannot be read: {error_message(error)}", retry_after=1.0
            ) from error
        finally:
            engine.dispose()

    def _training(self, connection: sa.Connection) -> int | None:
        if not sa.inspect(connection).has_table(TRAININGS.name):
            return None
        with suppress(ServerFailed):  # it has more steps than are asked for: told at the start of the engine
            if self._job is not None and (found := find_training(connection, self._job)) is not None:
                return found.number
        return connection.execute(sa.select(sa.func.max(TRAININGS.c.id))).scalar()


def _digest(connection: sa.Connection, training: int) -> str:
    return str(connection.execute(sa.select(TRAININGS.c.job_digest).where(TRAININGS.c.id == training)).scalar_one())
