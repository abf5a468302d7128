"""The database behind a store: connections, schema, durability, transient failures.

SQLite runs in WAL mode: a commit survives the death of the process at once, and a loss of power when made with `full`,
which makes all before it durable too. PostgreSQL is durable as its server is configured. One that hangs is noticed by
connect_timeout, keepalives and tcp_user_timeout, and statement_timeout; what the store's URL sets itself stands.

Errors are told apart by the database's codes; what is not known to be permanent is tried again. One database serves one
server directory: the first to open it writes its id, any other is refused. Schemas 0001 and 0009 are brought
to the newest in one step.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateColumn

from swarm.errors import ServerFailed
from swarm.store.tables import BEFORE, FIRST, META, METADATA, NEWEST, SINCE_FIRST, STEPS, TASK_LISTS, VERSION

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
            f"found one it refuses: {error_message(error)}"
        ) from None
    if engine.dialect.name == "sqlite":

        @sa.event.listens_for(engine, "connect")
        def set_pragmas(connection: Any, _record: object) -> None:
            with closing(connection.cursor()) as cursor:
                for pragma in PRAGMAS:
                    cursor.execute(f"PRAGMA {pragma}")

    if engine.dialect.driver == "psycopg":

        @sa.event.listens_for(engine, "do_connect")
        def set_bounds(_dialect: object, _record: object, _arguments: object, fields: dict[str, Any]) -> None:
            for name, value in OPTIONS.items():
                fields.setdefault(name, value)

    return engine


def open_database(url: str, installation: str) -> sa.Engine:
    """Return an engine for a database that has this version's tables and is claimed for an installation. Raises
    ServerFailed, in one line, if that cannot be: not reachable, of another version, or another's."""
    engine = connect(url)
    with opening(engine, "cannot be opened"), engine.connect() as connection:
        migrate(connection)
        owner = connection.execute(sa.select(META.c.value).where(META.c.key == "installation")).scalar()
        if owner is None:
            connection.execute(sa.insert(META).values(key="installation", value=installation))
            connection.commit()
        elif owner != installation:
            raise ServerFailed(
                f"the store {redacted_url(engine)} belongs to the server of another directory: expected installation "
                f"{installation[:12]}, found {owner[:12]}; give another --store, or run in that directory"
            )
    return engine


@contextmanager
def opening(engine: sa.Engine, what: str) -> Iterator[None]:
    """Let go of an engine with which something fails; ServerFailed says `what` of the database."""
    try:
        yield
    except SQLAlchemyError as error:
        engine.dispose()
        raise ServerFailed(f"the store {redacted_url(engine)} {what}: {error_message(error)}") from error
    except ServerFailed:
        engine.dispose()
        raise


def check_store(url: str, installation: str) -> None:
    """Open and close the database; raise ServerFailed, in one line, if a server of this installation cannot."""
    open_database(url, installation).dispose()


def migrate(connection: sa.Connection) -> None:
    """Make the tables of an empty database, and bring those of 0.1.0 over; raise ServerFailed for any other's. All or
    nothing, and one process at a time: who comes second finds it done."""
    if (version := _version(connection)) == NEWEST:
        return
    if version not in (None, FIRST, BEFORE):
        raise ServerFailed(
            f"the store {redacted_url(connection.engine)} was written by another version of ajet: expected its "
            f"schema to be {NEWEST}, or {FIRST} or {BEFORE} to bring it over, found {version}; open it with that "
            "version, or give another --store"
        )
    if connection.dialect.name == "sqlite":  # of itself it begins no transaction before a change of tables
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    version = _version(connection)
    if version is None:
        METADATA.create_all(connection, checkfirst=False)
        connection.execute(sa.insert(VERSION).values(version_num=NEWEST))
    elif version in (FIRST, BEFORE):
        if version == FIRST:
            TASK_LISTS.create(connection, checkfirst=False)
        for column in SINCE_FIRST if version == FIRST else (STEPS.c.advantages,):
            new = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {new}")
        connection.execute(sa.update(VERSION).values(version_num=NEWEST))
    connection.commit()


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION.name):
        return None
    version: str | None = connection.execute(sa.select(VERSION.c.version_num)).scalar_one_or_none()
    return version


def redacted_url(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def error_message(error: Exception) -> str:
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(origin).split()).rstrip(".") or type(origin).__name__


_SQLITE = {
    sqlite3.SQLITE_ERROR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOTADB,
}  # fmt: skip
"""No such table or column, no right to write, a file that is no database."""
_POSTGRESQL = ("0A", "25006", "28", "3D000", "42")
"""Beginnings of its codes: not supported, read-only, authorisation, no such database, schema and rights. (22 and 23,
data and constraints, are of these changes alone.)"""
_AT_THE_DOOR = "authentication failed", "pg_hba.conf", "does not exist", "permission denied", "not permitted to log in"
"""What PostgreSQL says while a connection is made, which comes without a code."""


def is_permanent(error: Exception) -> bool:
    """Return whether the same again can never succeed as things are."""
    return not isinstance(error, OperationalError | InterfaceError) or _is_refusal(error)


def is_database_failure(error: Exception) -> bool:
    """Return whether the database refuses whatever comes, for good, and not these changes alone."""
    return isinstance(error, DBAPIError) and _is_refusal(error)


def _is_refusal(error: DBAPIError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_POSTGRESQL)
    return any(said in str(error.orig) for said in _AT_THE_DOOR)


CONNECT_S = 10
STATEMENT_S = 50
OPTIONS: dict[str, str | int] = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "options": f"-c statement_timeout={STATEMENT_S}s",
}
"""What bounds psycopg's connections, unless the store's URL says otherwise."""
