"""SQLite's log is brought into the database beside the writer, and stays small."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.store import Captured
from swarm.store.databases import wal
from swarm.store.databases.database import connect
from swarm.store.databases.wal import LogMover, pages_in
from tests.swarm.server.support import eventually
from tests.swarm.store.support import began, node, opened


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


@settings(max_examples=25)
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
        assert go_on.wait(20)
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
