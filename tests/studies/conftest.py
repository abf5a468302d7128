from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from studies import EventLog, StudyState
from tests.studies.asked_on import Inquiry, flown
from tests.studies.synthetic import Synthetic, Ticking


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyState, Path]:
    synthetic = Synthetic(tmp_path_factory.mktemp("finished"))
    return synthetic.whole(), synthetic.folder


@pytest.fixture(scope="session")
def inquiry(tmp_path_factory: pytest.TempPathFactory) -> Inquiry:
    """A simulated inquiry of three rounds, concluded, without a report; to be read and copied, not changed."""
    return flown(tmp_path_factory.mktemp("inquiry"))


@pytest.fixture(scope="session")
def told(inquiry: Inquiry, tmp_path_factory: pytest.TempPathFactory) -> Inquiry:
    return inquiry.reported(tmp_path_factory.mktemp("told") / inquiry.folder.name)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    """An event log in a file of its own, with a clock that moves a step each time it is read."""
    with closing(EventLog(f"sqlite:///{tmp_path / 'events.db'}", clock=Ticking())) as opened:
        yield opened


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A database of its own on the PostgreSQL that AJET_TEST_POSTGRES_URL names."""
    server = os.environ.get("AJET_TEST_POSTGRES_URL", "")
    if not server:
        pytest.skip("no PostgreSQL named in AJET_TEST_POSTGRES_URL (.ci/run starts one)")
    name = f"ajet_{uuid4().hex}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"create database {name}"))
    yield sa.make_url(server).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(sa.text(f"drop database {name} with (force)"))
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'events.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures empty where only the text of a report is tested: drawing them takes most of its time."""
    from studies.report import plots

    monkeypatch.setattr(plots, "render_cached", lambda *_: '<svg xmlns="http://www.w3.org/2000/svg"></svg>')
