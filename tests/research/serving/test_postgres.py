"""A real server on PostgreSQL: killed and started again it has lost nothing, and the password is written nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from research.orchestration.server import DATABASE
from tests.research.orchestration.shown import CANCELLED, wait_for
from tests.research.serving.conftest import Pages, served_in
from tests.studies.conftest import postgres_url  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PASSWORD = "pa55word"


@pytest.fixture
def pages(own_home: Path, postgres_url: str) -> Iterator[Pages]:  # noqa: F811
    """The PostgreSQL of the tests asks for no password, and takes any; a database in the folder would be a mistake."""
    (own_home / "prefect" / "prefect.db").unlink(missing_ok=True)
    url = sa.make_url(postgres_url).set(drivername="postgresql+asyncpg", password=PASSWORD)
    with served_in(own_home, **{DATABASE: url.render_as_string(hide_password=False)}) as pages:
        pages.serve()
        yield pages


def test_what_a_server_on_postgresql_knew_is_there_after_it_was_killed(pages: Pages) -> None:
    run = pages.begin(**pages.asked)
    pages.until_trained(run)
    deployments = {each.id for each in pages.client.read_deployments()}
    before = pages.process()

    pages.kill_server()
    wait_for(lambda: pages.process() not in (None, before) and pages.serves())
    assert {each.id for each in pages.client.read_deployments()} == deployments
    assert pages.shown(run) == "Running"
    assert not list(pages.home.prefect.glob("*.db"))

    pages.press(run, "cancel")
    pages.until(run, "Cancelled")
    assert pages.study().stopped_reason == CANCELLED
    assert [each.id for each in pages.runs_of(pages.study().id)] == [run]
    shown = pages.ajet("up", "--json")
    assert PASSWORD not in shown.stdout + shown.stderr
    files = [file for file in pages.home.path.rglob("*") if file.is_file() and not file.is_symlink()]
    assert [file for file in files if PASSWORD.encode() in file.read_bytes()] == []
