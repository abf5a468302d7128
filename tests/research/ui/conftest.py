"""A home with studies of the gallery, and somebody who is signed in at its pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from research.installation.home import Home
from research.ui.access import Access, Person, Role
from research.ui.app import make_app
from research.ui.pages.addresses import PAGES
from research.ui.site import Site, View
from studies import EventLog
from studies.proof.export import read_export

GALLERY = Path(__file__).parents[3] / "studies" / "gallery"
HOST = "127.0.0.1:8760"


def add_gallery_study(home: Home, log: EventLog, name: str) -> str:
    """Put a study of the gallery into a home as if it had been made there; return its id."""
    study, rows, _ = read_export(GALLERY / name)
    columns = ", ".join(rows[0])
    with log.transaction("write") as connection:
        values = ", ".join(f":{column}" for column in rows[0])
        connection.execute(sa.text(f"insert into events ({columns}) values ({values})"), rows)
    shutil.copytree(GALLERY / name, home.study(study))
    return study


def make_home(folder: Path) -> Home:
    return Home(folder / "home", f"sqlite:///{folder / 'home' / 'ajet.db'}").prepare()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path)


@pytest.fixture
def site(home: Home) -> Iterator[Site]:
    log = EventLog(home.database)
    made = Site(home, log, Access(home.path / "ui/keys.json"))
    yield made
    made.close()
    log.close()


@pytest.fixture
def study(site: Site) -> str:
    return add_gallery_study(site.home, site.log, "learning-rate-in-guess")


@pytest.fixture
def signed_in(site: Site) -> Iterator[Callable[[Role], TestClient]]:
    """Return a function that gives a browser in which somebody of a role is signed in."""
    opened: list[TestClient] = []

    def sign_in(role: Role = "owner") -> TestClient:
        client = TestClient(make_app(site, PAGES, [HOST]), base_url=f"http://{HOST}", raise_server_exceptions=False)
        opened.append(client.__enter__())
        key = site.access.owner_key if role == "owner" else site.access.add(f"a-{role}", role)
        assert client.post("/sign-in", data={"key": key}).status_code == 200
        return client

    yield sign_in
    for client in opened:
        client.close()


def view_of(role: Role = "owner", **path: str) -> View:
    return View(Person("ann", role), path)
