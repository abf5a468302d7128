"""The database behind a store: connections, its tables, and whose it is.

SQLite runs in WAL mode. A commit survives the death of the process at once; it survives a loss of power when it was
made with `full`, which makes all before it durable too. PostgreSQL's commits are durable as its server is configured
(by default: at once); one that hangs is noticed (`swarm.store.databases.postgresql`).

One database serves one server directory: the first to open it writes its id there, any other is refused.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as sa_event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateColumn

from swarm.errors import ServerFailed
from swarm.store.tables.schema import FIRST, META, METADATA, NEWEST, SINCE_FIRST, TASK_LISTS, VERSION

_LOCK = 0x616A6574
"""Number of PostgreSQL's lock under which the tables are made or changed."""
PRAGMAS = [
    "busy_timeout=10000",
    "journal_mode=WAL",
    "synchronous=NORMAL",
    "journal_size_limit=67108864",  # a log that grew during a long reading is cut again
]
"""What each new SQLite connection is told."""


def connect(url: str) -> sa.Engine:
    """Return an engine for an SQLAlchemy URL; raise ServerFailed for one that is none, or lacks its driver."""
    file = url.startswith("sqlite")  # opening one costs little, and no connection outlives its use
    try:
        engine = sa.create_engine(url, poolclass=NullPool if file else None, pool_pre_ping=not file)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise ServerFailed(
            f"the store's URL must be one SQLAlchemy reads, such as sqlite:///PATH or postgresql+psycopg://HOST/NAME; "
            f"found one it refuses: {cause(error)}"
        ) from None
    if engine.dialect.name == "sqlite":
        sa_event.listen(engine, "connect", _prepare)
    if engine.dialect.driver == "psycopg":
        from swarm.store.databases.postgresql import watch  # its driver is there for those who name it

        watch(engine)
    return engine


def open_database(url: str, installation: str) -> sa.Engine:
    """Return an engine for a database that has this version's tables and is claimed for an installation.

    Raises ServerFailed, in one line, if that cannot be: not reachable, of another version, or another's.
    """
    engine = connect(url)
    try:
        with engine.connect() as connection:
            migrate(connection)
            _claim(connection, installation)
    except SQLAlchemyError as error:
        engine.dispose()
        raise ServerFailed(f"the store {where(engine)} cannot be opened: {cause(error)}") from error
    except ServerFailed:
        engine.dispose()
        raise
    return engine


def check(url: str, installation: str) -> None:
    """Open and close the database; raise ServerFailed, in one line, if a server of this installation cannot."""
    open_database(url, installation).dispose()


def migrate(connection: sa.Connection) -> None:
    """Make the tables of an empty database, and bring those of 0.1.0 over; raise ServerFailed for any other's.

    All or nothing, and one process at a time: who comes second finds it done.
    """
    if (found := _version(connection)) == NEWEST:
        return
    if found not in (None, FIRST):
        raise ServerFailed(
            f"the store {where(connection.engine)} was written by another version of ajet: expected its schema to be "
            f"{NEWEST}, or {FIRST} to bring it over, found {found}; open it with that version, or give another --store"
        )
    if connection.dialect.name == "sqlite":  # of itself it begins no transaction before a change of tables
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    found = _version(connection)
    if found is None:
        METADATA.create_all(connection, checkfirst=False)
        connection.execute(sa.insert(VERSION).values(version_num=NEWEST))
    elif found == FIRST:
        TASK_LISTS.create(connection, checkfirst=False)
        for column in SINCE_FIRST:
            new = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {new}")
        connection.execute(sa.update(VERSION).values(version_num=NEWEST))
    connection.commit()


def _version(connection: sa.Connection) -> str | None:
    """Return the version of the schema; None where there is none."""
    if not sa.inspect(connection).has_table(VERSION.name):
        return None
    found: str | None = connection.execute(sa.select(VERSION.c.version_num)).scalar_one_or_none()
    return found


def columns_of(connection: sa.Connection, table: sa.Table) -> list[sa.ColumnElement[Any]]:
    """Return a table's columns to select; one that a store of an older version lacks is its default.

    Who only reads must not migrate.
    """
    there = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    return [column if column.name in there else _default(column) for column in table.columns]


def _default(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    given = column.server_default
    value = given.arg if isinstance(given, sa.DefaultClause) else sa.null()
    return sa.type_coerce(value, column.type).label(column.name)


def where(engine: sa.Engine) -> str:
    """Return the database's address without its password."""
    return engine.url.render_as_string(hide_password=True)


def cause(error: Exception) -> str:
    """Return what the database itself said, in one line."""
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(origin).split()).rstrip(".") or type(origin).__name__


def _claim(connection: sa.Connection, installation: str) -> None:
    query = sa.select(META.c.value).where(META.c.key == "installation")
    owner = connection.execute(query).scalar()
    if owner is None:
        connection.execute(sa.insert(META).values(key="installation", value=installation))
        connection.commit()
    elif owner != installation:
        raise ServerFailed(
            f"the store {where(connection.engine)} belongs to the server of another directory: expected installation "
            f"{installation[:12]}, found {owner[:12]}; give another --store, or run in that directory"
        )


def _prepare(connection: Any, _record: object) -> None:
    with closing(connection.cursor()) as cursor:
        for pragma in PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
