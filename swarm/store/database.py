"""The database behind a store: connections, schema, durability, transient failures.

SQLite runs in WAL mode: a commit survives the death of the process at once, and a loss of power when made with `full`,
which makes all before it durable too. A thread of its own brings the write-ahead log over, so that no commit waits for
it; it stops the writer for WAITS_MS at most, and only where the log grew far too large. PostgreSQL is durable as its
server is configured. A hanging PostgreSQL is noticed by connect_timeout, keepalives and tcp_user_timeout,
statement_timeout, and ANSWER_S where its process stands still; what the store's URL sets itself stands.

Errors are told apart by the database's codes; what is not known to be permanent is tried again. One database serves one
server directory: the first to open it writes its id, any other is refused. Schema 0001 is brought to the newest in one
step.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateColumn

from swarm.errors import ServerFailed
from swarm.store.tables import FIRST, META, METADATA, NEWEST, SINCE_FIRST, TASK_LISTS, VERSION

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
        sa.event.listen(engine, "do_connect", _connect_bounded)
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
    if version not in (None, FIRST):
        raise ServerFailed(
            f"the store {redacted_url(connection.engine)} was written by another version of ajet: expected its "
            f"schema to be {NEWEST}, or {FIRST} to bring it over, found {version}; open it with that version, "
            "or give another --store"
        )
    if connection.dialect.name == "sqlite":  # of itself it begins no transaction before a change of tables
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    version = _version(connection)
    if version is None:
        METADATA.create_all(connection, checkfirst=False)
        connection.execute(sa.insert(VERSION).values(version_num=NEWEST))
    elif version == FIRST:
        TASK_LISTS.create(connection, checkfirst=False)
        for column in SINCE_FIRST:
            new = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {new}")
        connection.execute(sa.update(VERSION).values(version_num=NEWEST))
    connection.commit()


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION.name):
        return None
    version: str | None = connection.execute(sa.select(VERSION.c.version_num)).scalar_one_or_none()
    return version


def columns_of(connection: sa.Connection, table: sa.Table) -> list[sa.ColumnElement[Any]]:
    """Return a table's columns to select, by their keys; one that a store of an older version lacks is its default. Who
    only reads must not migrate."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    columns: list[sa.ColumnElement[Any]] = []
    for column in table.columns:
        given = column.server_default
        default = given.arg if isinstance(given, sa.DefaultClause) else sa.null()
        value = column if column.name in there else sa.type_coerce(default, column.type)
        columns.append(value.label(column.key))
    return columns


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
    if not isinstance(error, OperationalError | InterfaceError):
        return True
    return _is_refusal(error)


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
ANSWER_S = 60.0
"""Seconds without a byte after which a server is taken for gone: more than any statement may take."""
_LOOK_S = 1.0
OPTIONS: dict[str, str | int] = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "options": f"-c statement_timeout={STATEMENT_S}s",
}


def _connect_bounded(_dialect: object, _record: object, arguments: Any, fields: dict[str, Any]) -> Any:
    """Return a connection of psycopg, which a base install has not, on which silence is borne for ANSWER_S at most."""
    import psycopg

    class Bounded(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = _LOOK_S, *more: Any, **named: Any) -> Any:
            return super().wait(_limit_wait(gen, self), interval, *more, **named)

    return Bounded.connect(*arguments, **{**OPTIONS, **fields})


def _limit_wait(gen: Generator[Any, Any, Any], connection: Any) -> Generator[Any, Any, Any]:
    """Wait as psycopg does; raise OperationalError, with the connection closed, once it is silent for too long."""
    import psycopg

    until, ready = time.monotonic() + ANSWER_S, None
    while True:
        try:
            ready = yield gen.send(ready)
        except StopIteration as done:
            return done.value
        if ready:
            until = time.monotonic() + ANSWER_S
        elif time.monotonic() > until:
            connection.close()
            raise psycopg.OperationalError(f"it did not answer for {ANSWER_S:g} s")


log = logging.getLogger(__name__)

AUTOMATIC = "PRAGMA wal_autocheckpoint=0"
"""Told to the writer's connection: no commit brings the log over."""
USUAL_PAGES = 1000
"""Pages that were added to the log after which it is brought over: SQLite's own default."""
MOST_PAGES = 16_384
"""Pages of the log from which the writer waits meanwhile, so that the log begins anew."""
WAITS_MS = 50
"""Milliseconds for which a log that grew so far waits for writer and readers, before it is left as it is."""
_HEADER, _FRAME_HEADER = 32, 24
"""Bytes before all pages, and before each (https://www.sqlite.org/fileformat2.html#the_write_ahead_log)."""


class WalCheckpointer:
    """Runs from construction to `stop`, over the SQLite database of an engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self.checkpoints = 0
        """How often the log was brought over."""
        self._engine = engine
        self._log = Path(f"{engine.url.database}-wal")
        self._pages = 0  # in the log, when it was brought over last
        self._grown = threading.Event()
        self._stopping = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="store-log", daemon=True)
        self._thread.start()

    def notify_commit(self) -> None:
        self._grown.set()

    def stop(self) -> None:
        """End the thread. Blocks until the log that is being brought over is there."""
        self._stopping = True
        self._grown.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._grown.wait()
            self._grown.clear()
            if self._stopping:
                return
            pages = count_wal_pages(self._log)
            self._pages = min(self._pages, pages)  # it began anew
            if pages - self._pages >= USUAL_PAGES:
                self._checkpoint("RESTART" if pages >= MOST_PAGES else "PASSIVE")
                self._pages = pages

    def _checkpoint(self, how: str) -> None:
        """Bring the log over; what fails, or a long reading holds up, is tried again once the log has grown on."""
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={WAITS_MS}")
                connection.exec_driver_sql(f"PRAGMA wal_checkpoint({how})")
        except SQLAlchemyError as error:
            if not self._failing:
                log.warning("event=store_log_grows reason=%r", error_message(error))
            self._failing = True
        else:
            self._failing = False
            self.checkpoints += 1


def count_wal_pages(log: Path) -> int:
    """Return how many pages a write-ahead log holds, 0 where there is none. A log that began anew keeps its size; its
    pages are those that carry the salt of its header, which come first."""
    try:
        with log.open("rb") as file:
            header = file.read(_HEADER)
            salt, frame = header[16:24], _FRAME_HEADER + int.from_bytes(header[8:12])
            first, beyond = 0, (file.seek(0, 2) - _HEADER) // frame
            while first < beyond:
                middle = (first + beyond) // 2
                file.seek(_HEADER + middle * frame + 8)
                first, beyond = (middle + 1, beyond) if file.read(8) == salt else (first, middle)
            return first
    except FileNotFoundError:
        return 0
