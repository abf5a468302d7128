"""The database: its schema is made, brought over or refused, one server has it, and one that hangs is noticed."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from swarm.errors import ServerFailed, StoreUnavailable
from swarm.store import database
from swarm.store.database import check_store, connect, migrate, open_database
from swarm.store.tables import METADATA
from tests.swarm.store.support import HERE, began, opened, played, shape

NEWEST = "0010"


def test_a_store_that_lacks_advantages_alone_is_brought_over_with_its_rows(url: str) -> None:
    engine = open_database(url, HERE)
    now = shape(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("alter table steps drop column advantages"))
        connection.execute(sa.text("insert into steps values (1, 2, 3, '{}')"))
        connection.execute(sa.text("update alembic_version set version_num = '0009'"))
    with engine.connect() as connection:
        migrate(connection)
        assert tuple(connection.execute(sa.text("select * from steps")).one()) == (1, 2, 3, "{}", None)
    assert shape(engine) == now
    engine.dispose()


def as_first(url: str) -> sa.Engine:
    """Return a store as 0.1.0 made it, with a row in each table that has got columns since."""
    engine = open_database(url, HERE)
    with engine.begin() as connection:
        connection.execute(sa.text("drop table task_lists"))
        for table, columns in {
            "episodes": "turn call_rewards code", "nodes": "trained cut", "steps": "metrics advantages",
            "checkpoints": "episodes reward success", "streams": "turn unfinished",
        }.items():  # fmt: skip
            for column in columns.split():
                connection.execute(sa.text(f"alter table {table} drop column {column}"))
        connection.execute(sa.text("insert into steps values (1, 2, 3)"))
        connection.execute(sa.text("insert into checkpoints values (1, 2, 'x')"))
        connection.execute(sa.text("insert into streams values (1, 'default', null, 4, 5, 6.0)"))
        blob = "x''" if engine.dialect.name == "sqlite" else "''"
        connection.execute(sa.text(f"insert into nodes values (1, 0, null, '', {blob}, {blob}, {blob}, {blob})"))
        connection.execute(sa.text("update alembic_version set version_num = '0001'"))
    return engine


def test_a_store_of_the_first_schema_is_brought_over_with_all_its_rows(url: str) -> None:
    engine = as_first(url)
    with engine.connect() as connection:
        migrate(connection)
        for asked, found in {
            "trained, cut from nodes": (True, False),
            "episodes, metrics from steps": (3, None),
            "name, episodes, reward, success from checkpoints": ("x", None, None, None),
            "cursor, turn, unfinished from streams": (4, 0, "[]"),
        }.items():
            assert tuple(connection.execute(sa.text(f"select {asked}")).one()) == found
    brought = shape(engine)
    with engine.begin() as connection:
        METADATA.drop_all(connection)
    with engine.connect() as connection:
        migrate(connection)
    assert brought == shape(engine)
    engine.dispose()


@pytest.mark.parametrize("version", ["0002", "0003", "0004", "0005", "0007", "0008", "9999"])
def test_a_store_of_any_other_schema_is_refused_in_one_line_and_left_as_it_is(url: str, version: str) -> None:
    engine = open_database(url, HERE)
    with engine.begin() as connection:
        connection.execute(sa.text(f"update alembic_version set version_num = '{version}'"))
    before = shape(engine)
    with pytest.raises(
        ServerFailed, match=rf"another version.* {NEWEST}, or 0001 or 0009 .*found {version}; "
    ) as refusal:
        check_store(url, HERE)
    assert "\n" not in str(refusal.value)
    assert shape(engine) == before
    engine.dispose()


@pytest.mark.parametrize("first", [False, True])
def test_of_many_that_open_a_store_at_once_one_makes_it(url: str, first: bool) -> None:
    engine = as_first(url) if first else connect(url)

    def opened(_: int) -> None:
        with engine.connect() as connection:
            migrate(connection)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(opened, range(4)))
    assert shape(engine)["version"] == [NEWEST]
    engine.dispose()


def test_a_database_serves_one_installation(url: str) -> None:
    check_store(url, HERE)
    check_store(url, HERE)
    with pytest.raises(ServerFailed, match="another directory") as refusal:
        check_store(url, "another-one")
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
        check_store(wrong.replace("FOLDER", str(tmp_path)), HERE)
    assert "\n" not in str(refusal.value)


def test_no_message_shows_a_password() -> None:
    with pytest.raises(ServerFailed) as refusal:
        check_store("postgresql+psycopg://ajet:geheim@127.0.0.1:1/none?connect_timeout=1", HERE)
    assert "geheim" not in str(refusal.value)


@pytest.mark.parametrize("at", ["ALTER TABLE checkpoints ADD COLUMN reward", "UPDATE alembic_version"])
def test_what_is_cut_short_changes_nothing_and_is_done_the_next_time(url: str, at: str) -> None:
    engine = as_first(url)
    before = shape(engine)

    def cut(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(at):
            raise OSError(28, "No space left on device")

    sa.event.listen(engine, "before_cursor_execute", cut)
    with pytest.raises(OSError, match="No space left"), engine.connect() as connection:
        migrate(connection)
    sa.event.remove(engine, "before_cursor_execute", cut)
    assert shape(engine) == before
    with engine.connect() as connection:
        migrate(connection)
    assert shape(engine)["version"] == [NEWEST]
    engine.dispose()


SOON_S = 10.0


def test_an_address_where_nobody_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database.OPTIONS, "connect_timeout", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://postgres@127.0.0.1:{silent.getsockname()[1]}/none"
        began_at = time.monotonic()
        with pytest.raises(ServerFailed, match=r"cannot be opened: .*timeout"):
            check_store(url, HERE)
        assert time.monotonic() - began_at < SOON_S


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_a_statement_that_does_not_come_to_an_end_passes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database.OPTIONS, "options", "-c statement_timeout=200ms")
    async with opened(url) as (store, _):
        await store.write(*played("a"))
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text("lock table episodes in access exclusive mode"))
            with pytest.raises(StoreUnavailable, match="statement timeout"):
                await store.write(began("b"))
        engine.dispose()
        await store.write(began("b"))
        assert store.broken is None
