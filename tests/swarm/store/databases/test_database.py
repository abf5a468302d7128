"""The database: migrations make the schema, a newer one is refused, one server has it; SQLite's log stays small."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ServerFailed
from swarm.store import Captured
from swarm.store.databases import wal
from swarm.store.databases.database import _config, check, connect, migrate, open_database
from swarm.store.databases.wal import LogMover, pages_in
from swarm.store.tables.schema import METADATA
from tests.swarm.server.support import eventually
from tests.swarm.store.support import HERE, began, node, opened


def shape(engine: sa.Engine) -> dict[str, Any]:
    """Return all that a database knows of its tables but the version's own."""
    found = sa.inspect(engine)
    return {
        table: {
            "columns": [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in found.get_columns(table)],
            "key": found.get_pk_constraint(table)["constrained_columns"],
            "indexes": sorted(str((i["name"], i["column_names"], i["unique"])) for i in found.get_indexes(table)),
            "unique": sorted(str(u["column_names"]) for u in found.get_unique_constraints(table)),
        }
        for table in sorted(found.get_table_names())
        if table != "alembic_version"
    }


def test_the_migrations_make_exactly_the_schema(url: str, tmp_path: Path) -> None:
    engine = open_database(url, HERE)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), METADATA) == []
    migrated = shape(engine)
    with engine.begin() as connection:
        METADATA.drop_all(connection)
        METADATA.create_all(connection)
    assert shape(engine) == migrated
    assert "episodes_whole" in str(migrated["episodes"]["indexes"])
    engine.dispose()


def test_a_migrated_store_is_not_migrated_again(url: str) -> None:
    engine = open_database(url, HERE)
    with engine.begin() as connection:
        connection.execute(sa.text("drop table events"))
        migrate(connection)
    assert "events" not in sa.inspect(engine).get_table_names()
    engine.dispose()


def test_a_store_of_a_newer_version_is_refused_in_one_line(url: str) -> None:
    engine = open_database(url, HERE)
    with engine.begin() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '9999'"))
    engine.dispose()
    with pytest.raises(ServerFailed, match=r"newer version.*at most \d{4}, found 9999") as refusal:
        check(url, HERE)
    assert "\n" not in str(refusal.value)


def test_a_database_serves_one_installation(url: str) -> None:
    check(url, HERE)
    check(url, HERE)
    with pytest.raises(ServerFailed, match="another directory") as refusal:
        check(url, "another-one")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nonsense", "SQLAlchemy"), ("oracle://x/y", "SQLAlchemy"), ("sqlite:///FOLDER/file", "not a database"),
        ("sqlite:////nowhere/at/all/store.sqlite3", "unable to open"),
    ],
)  # fmt: skip
def test_a_wrong_url_or_file_is_said_in_one_line(wrong: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something else entirely" * 100)
    with pytest.raises(ServerFailed, match=said) as refusal:
        check(wrong.replace("FOLDER", str(tmp_path)), HERE)
    assert "\n" not in str(refusal.value)


def test_no_message_shows_a_password() -> None:
    with pytest.raises(ServerFailed) as refusal:
        check("postgresql+psycopg://ajet:geheim@127.0.0.1:1/none?connect_timeout=1", HERE)
    assert "geheim" not in str(refusal.value)


def test_sqlite_writes_ahead_and_syncs_at_checkpoints(sqlite_url: str) -> None:
    with connect(sqlite_url).connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 1


def test_a_migration_that_is_cut_short_leaves_a_store_that_the_next_one_brings_over(url: str) -> None:
    engine = connect(url)
    with engine.connect() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0004")
        connection.commit()

    def cut(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("ALTER TABLE checkpoints ADD COLUMN reward"):
            raise OSError(28, "No space left on device")

    sa.event.listen(engine, "before_cursor_execute", cut)
    with pytest.raises(OSError, match="No space left"), engine.connect() as connection:
        migrate(connection)
    sa.event.remove(engine, "before_cursor_execute", cut)
    with engine.connect() as connection:
        migrate(connection)
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    path = tmp_path / "some.sqlite3"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode=wal")
        connection.execute(wal.AUTOMATIC)
        connection.execute("create table t (x blob)")
        yield path, connection


def grow(connection: sqlite3.Connection, pages: int) -> None:
    connection.execute("insert into t values (zeroblob(?))", (4096 * pages,))


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


@given(st.lists(st.integers(-1, 30), max_size=12))
def test_the_pages_of_a_log_are_those_that_sqlite_counts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "some.sqlite3"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode=wal")
        connection.execute(wal.AUTOMATIC)
        connection.execute("create table t (x blob)")
        for pages in steps:
            if pages < 0:  # brought over: the log begins anew with the next commit, and its file stays as it is
                connection.execute("pragma wal_checkpoint(RESTART)")
            grow(connection, max(0, pages))
            found = pages_in(log_of(path))
            assert found == connection.execute("pragma wal_checkpoint(PASSIVE)").fetchone()[1]


def test_no_log_has_no_pages(tmp_path: Path) -> None:
    assert pages_in(tmp_path / "none") == 0
    (tmp_path / "empty").touch()
    assert pages_in(tmp_path / "empty") == 0


@pytest.mark.slow
async def test_the_log_of_a_store_stays_small_and_all_is_there(sqlite_url: str) -> None:
    log = log_of(Path(sa.make_url(sqlite_url).database or ""))
    async with opened(sqlite_url) as (store, _):
        await store.write(began("e"))

        async def pages_after_another(place: int) -> int:
            await store.write(Captured("e", node(place, size=20_000)))  # some 60 pages
            return pages_in(log)

        places = itertools.count()
        for _ in range(60):
            await pages_after_another(next(places))
        await eventually(lambda: pages_after_another(next(places)), lambda pages: pages < wal.USUAL_PAGES)
        record = await store.episode("e")
        assert record is not None
        assert len(record.record) == next(places)


async def test_no_commit_waits_until_the_log_is_brought_over(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    move = LogMover._move

    def held(self: LogMover, how: str) -> None:
        assert go_on.wait(120)
        move(self, how)

    monkeypatch.setattr(LogMover, "_move", held)
    log = log_of(Path(sa.make_url(sqlite_url).database or ""))
    async with opened(sqlite_url) as (store, _):
        await store.write(began("e"))
        try:
            for place in range(60):
                await store.write(Captured("e", node(place, size=20_000)))
            assert pages_in(log) > 2 * wal.USUAL_PAGES, "some commit brought the log over by itself"
        finally:
            go_on.set()


def test_the_writer_goes_on_while_a_long_reading_keeps_a_log_that_grew_far(
    database: tuple[Path, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "USUAL_PAGES", 10)
    monkeypatch.setattr(wal, "MOST_PAGES", 100)
    path, connection = database
    connection.execute("pragma busy_timeout=2000")  # a commit that waits longer is refused
    mover = LogMover(connect(f"sqlite:///{path}"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        grow(connection, 1)
        reader.execute("begin")
        reader.execute("select count(*) from t").fetchone()
        grow(connection, 200)

        async def grown() -> int:
            grow(connection, 20)
            mover.committed()
            return mover.moved

        asyncio.run(eventually(grown, lambda moved: moved >= 3))
        reader.execute("commit")
    mover.stop()


def test_a_log_that_a_reading_keeps_begins_anew_once_it_is_over(
    database: tuple[Path, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "USUAL_PAGES", 10)
    monkeypatch.setattr(wal, "MOST_PAGES", 100)
    path, connection = database
    mover = LogMover(connect(f"sqlite:///{path}"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        grow(connection, 1)
        reader.execute("begin")
        reader.execute("select count(*) from t").fetchone()
        grow(connection, 200)
        mover.committed()
        reader.execute("commit")
    grow(connection, 20)
    mover.committed()
    asyncio.run(eventually(lambda: mover.moved > 0, bool))
    mover.stop()
    grow(connection, 1)
    assert pages_in(log_of(path)) < 30
