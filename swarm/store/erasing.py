"""Erasing in trainings that are not running: what a running one does by its own store is done in the database itself.

What is open there belongs to a life of the server that is over, and is fenced first, as the next boot would. What waits
for its batch is dropped (`erased`), and the next boot finds what it would after a server that dropped it and died: the
place is played again where its turn is not over. Left are members of undecided teams, and episodes of a batch that is
settled and in no checkpoint: a boot learns it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import StoreUnavailable
from swarm.store import reading
from swarm.store.databases.database import cause, connect, open_database, where
from swarm.store.sql import fence
from swarm.store.tables.records import Change, Closed, Erased
from swarm.store.tables.row_writer import RowWriter
from swarm.store.tables.schema import EPISODES, NODES, TRAININGS

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
            return {row.id: _gone(connection, row.serial) for row in own}
    except SQLAlchemyError as error:
        raise StoreUnavailable(
            f"nothing can be erased in the store {where(engine)}: {cause(error)}", retry_after=1.0
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
    fence(connection, training)
    waiting = sa.select(_E.id, _E.epoch).where(_E.training == training, _E.id.in_(episodes))
    pooled = connection.execute(waiting.where(_E.kind == "train", _E.state == "ended")).all()
    writer = RowWriter(training, 1, reading.heads(connection, training))
    changes: list[Change] = [Closed(row.id, "dropped", row.epoch, reason="erased") for row in pooled]
    writer.write(connection, [*changes, *map(Erased, episodes)])


def _gone(connection: sa.Connection, serial: int) -> bool:
    undecided = sa.select(_E.serial).where(_E.serial == serial, _E.state.in_(("open", "prepared")))
    tokens = sa.select(NODES.c.episode).where(NODES.c.episode == serial)
    return connection.execute(sa.union_all(undecided, tokens).limit(1)).first() is None
