"""Reading and erasing while no engine runs; a store of 0.1.0 is brought over first.

What is open in a training that is not running belongs to a life of the server that is over, and is fenced before
erasing, as the next boot would. What waits for its batch is dropped (`erased`), and the next boot plays its place again
where its turn is not over. Left are members of undecided teams, and episodes of a batch that is settled and in no
checkpoint: a boot learns it again.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import InvalidRequest, ServerFailed, StoreUnavailable, to_invalid_request
from swarm.job import Job
from swarm.models import MeasuredSuccess
from swarm.store import reading
from swarm.store.changes import Change, EpisodeClosed, EpisodeErased, RowWriter
from swarm.store.database import connect, error_message, migrate, open_database, redacted_url
from swarm.store.retention import find_training, read_evaluations, read_trainings
from swarm.store.tables import EPISODES, NODES, TASK_LISTS, TRAININGS
from swarm.store.writer import fence_open_episodes
from swarm.wire import EVALUATION_STREAM, EvaluationSummary

T = TypeVar("T")
_E = EPISODES.c


@contextmanager
def _using(engine: sa.Engine, what: str) -> Iterator[None]:
    """Let go of the engine at the end; StoreUnavailable says `what` of the store where it fails."""
    try:
        yield
    except SQLAlchemyError as error:
        message = f"{what.format(redacted_url(engine))}: {error_message(error)}"
        raise StoreUnavailable(message, retry_after=1.0) from error
    finally:
        engine.dispose()


def _exists(url: str) -> bool:
    """Return whether there is a database: SQLite would make it, but where it only reads."""
    engine = connect(url)
    file = engine.url.database if engine.dialect.name == "sqlite" else None
    engine.dispose()
    return file is None or file.startswith("file:") or Path(file).exists()


def erase_archived(
    url: str, installation: str, mark: str, episodes: Sequence[str], running: str | None
) -> Mapping[str, bool]:
    """Erase the episodes whose owner has the mark, and return of each whether its tokens are gone. Blocks. Those of
    others are in no answer; those of the training that runs, by its digest, are left. Nothing may be booted meanwhile.
    Raises StoreUnavailable, or ServerFailed for a database that is not this installation's."""
    if not _exists(url):
        return {}
    engine = open_database(url, installation)
    with _using(engine, "nothing can be erased in the store {}"), engine.begin() as connection:
        query = sa.select(_E.episode.label("name"), _E.serial, _E.training, _E.owner, TRAININGS.c.job_digest)
        these = query.join(TRAININGS, TRAININGS.c.id == _E.training).where(_E.episode.in_(episodes))
        own = [row for row in connection.execute(these).all() if mark in row.owner.split(":")]
        for training in {row.training for row in own if row.job_digest != running}:
            fence_open_episodes(connection, training)
            names = [row.name for row in own if row.training == training]
            pooled = sa.select(_E.episode, _E.fencing_token).where(
                _E.training == training, _E.episode.in_(names), _E.kind == "train", _E.state == "ended"
            )
            changes: list[Change] = [
                EpisodeClosed(name, "dropped", token, reason="erased") for name, token in connection.execute(pooled)
            ]
            writer = RowWriter(training, 1, reading.read_high_water_marks(connection, training))
            writer.write(connection, [*changes, *map(EpisodeErased, names)])
        serials = [row.serial for row in own]
        undecided = sa.select(_E.serial).where(_E.serial.in_(serials), _E.state.in_(("open", "prepared")))
        tokens = sa.select(NODES.c.episode).where(NODES.c.episode.in_(serials))
        left = set(connection.execute(sa.union(undecided, tokens)).scalars())
        return {row.name: row.serial not in left for row in own}


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """A training as the weights of one of its steps see it."""

    job: Job
    job_digest: str
    lists: Mapping[str, str]
    """By stream, the digest of its task list."""
    trained: int
    """Episodes of the steps up to this one."""
    evaluation: MeasuredSuccess | None
    """Of these weights; None where nothing was measured."""


class Archive(reading.EpisodeReader):
    """Episodes and checkpoints of a training in the database at `url`: of the job's, if it has one, else of the newest.
    A database that does not exist, or has no training yet, has none. Raises StoreUnavailable if it cannot be read."""

    def __init__(self, url: str, job: Job | None) -> None:
        self._url = url
        self._job = job

    async def digest(self) -> str | None:
        def read(connection: sa.Connection, training: int) -> str:
            query = sa.select(TRAININGS.c.job_digest).where(TRAININGS.c.id == training)
            return str(connection.execute(query).scalar_one())

        return await self._read(read)

    async def checkpoints(self) -> tuple[Sequence[tuple[int, str]], Sequence[EvaluationSummary]]:
        return await self._read(lambda *of: (reading.checkpoints(*of), read_evaluations(*of))) or ((), ())

    async def summarize(self, step: int) -> TrainingSummary | None:
        def summarize(connection: sa.Connection, training: int) -> TrainingSummary:
            columns = (TRAININGS.c.job, TRAININGS.c.job_digest)
            row = connection.execute(sa.select(*columns).where(TRAININGS.c.id == training)).one()
            lists = sa.select(TASK_LISTS.c.stream, TASK_LISTS.c.digest).where(TASK_LISTS.c.training == training)
            learned = (_E.training == training, _E.step <= step, _E.state.in_(("in_step", "consumed")))
            trained = connection.execute(sa.select(sa.func.count()).select_from(EPISODES).where(*learned)).scalar_one()
            measured: tuple[sa.ColumnElement[Any], ...] = (
                sa.func.count(_E.reward).label("episodes"),
                sa.func.count(sa.distinct(_E.task_id)).label("tasks"),
                sa.func.avg(_E.reward).label("reward"),
                sa.func.avg(sa.case((_E.success.is_(True), 1.0), (_E.success.is_(False), 0.0))).label("success"),
            )
            evaluated = (_E.kind == "eval", _E.stream == EVALUATION_STREAM, _E.state == "ended", _E.version == step)
            query = sa.select(*measured).where(_E.training == training, *evaluated)
            evaluation = dict(connection.execute(query).mappings().one())
            digests = {listed.stream: listed.digest for listed in connection.execute(lists)}
            try:
                job = Job.from_record(row.job)
            except ValidationError as error:
                wrong = f"expected a training of a job that this version of ajet reads; {to_invalid_request(error)}"
                raise InvalidRequest(wrong) from None
            known = MeasuredSuccess.model_validate(evaluation) if evaluation["episodes"] else None
            return TrainingSummary(job, row.job_digest, digests, int(trained), known)

        return await self._read(summarize)

    async def _read(self, query: Callable[[sa.Connection, int], T]) -> T | None:
        def read() -> T | None:
            if not _exists(self._url):
                return None
            engine = connect(self._url)
            with _using(engine, "the store {} cannot be read"), engine.connect() as connection:
                if not sa.inspect(connection).has_table(TRAININGS.name):
                    return None
                migrate(connection)
                training, its = connection.execute(sa.select(sa.func.max(TRAININGS.c.id))).scalar(), None
                with suppress(ServerFailed):  # it has more steps than are asked for: told at the start of the engine
                    its = None if self._job is None else find_training(read_trainings(connection), self._job)
                if its is not None:
                    training = its.number
                return None if training is None else query(connection, training)

        return await asyncio.to_thread(read)
