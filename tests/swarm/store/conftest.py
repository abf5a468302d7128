"""A database of its own for each test: SQLite always, PostgreSQL where AJET_TEST_POSTGRES_URL names a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

SERVER = os.environ.get("AJET_TEST_POSTGRES_URL", "")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/store.sqlite3"
        return
    if not SERVER:
        pytest.skip("no PostgreSQL named in AJET_TEST_POSTGRES_URL (.ci/run starts one)")
    name = f"ajet_{uuid4().hex}"
    engine = sa.create_engine(SERVER, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"create database {name}"))
    yield sa.make_url(SERVER).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(sa.text(f"drop database {name} with (force)"))
    engine.dispose()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.sqlite3"
