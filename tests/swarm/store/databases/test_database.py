"""The database: migrations make the schema, a newer one is refused, and it serves one server directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from swarm.errors import ServerFailed
from swarm.store.databases.database import _config, check, connect, migrate, open_database
from swarm.store.tables.schema import METADATA
from tests.swarm.store.support import HERE


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
    with pytest.raises(ServerFailed, match=r"newer version of ajet: expected .* at most \d{4}, found 9999") as refusal:
        check(url, HERE)
    assert "\n" not in str(refusal.value)


def test_a_database_serves_one_installation(url: str) -> None:
    check(url, HERE)
    check(url, HERE)
    with pytest.raises(ServerFailed, match="belongs to the server of another directory") as refusal:
        check(url, "another-one")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nonsense", "must be one SQLAlchemy reads"),
        ("oracle://x/y", "must be one SQLAlchemy reads"),
        ("sqlite:////nowhere/at/all/store.sqlite3", "cannot be opened: unable to open database file"),
    ],
)
def test_a_wrong_url_is_said_in_one_line(wrong: str, said: str) -> None:
    with pytest.raises(ServerFailed, match=said) as refusal:
        check(wrong, HERE)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_no_database_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3").write_text("something else entirely" * 100)
    with pytest.raises(ServerFailed, match="cannot be opened: file is not a database"):
        check(f"sqlite:///{tmp_path}/store.sqlite3", HERE)


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
