"""Nobody sees a page who did not sign in here, and no other site's page can reach one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvicorn
from starlette.testclient import TestClient

from research.ui.access import CSP, MOST_BODY, Role
from research.ui.app import PageServer, make_app
from research.ui.pages.addresses import PAGES
from research.ui.site import Site
from tests.research.ui.conftest import HOST

SignIn = Callable[..., TestClient]


@pytest.fixture
def stranger(site: Site) -> TestClient:
    return TestClient(make_app(site, PAGES, [HOST]), base_url=f"http://{HOST}")


@pytest.mark.parametrize("address", ["/", "/runs", "/s/x/report.html", "/help", "/compare?c=1"])
def test_a_stranger_is_sent_to_sign_in_and_comes_back_to_what_was_asked(stranger: TestClient, address: str) -> None:
    found = stranger.get(address, follow_redirects=False)
    assert found.status_code == 303
    assert found.headers["location"].startswith("/sign-in?next=")
    assert found.text == ""


def test_a_stranger_can_neither_listen_nor_do_anything(stranger: TestClient) -> None:
    assert stranger.get("/live").status_code == 401
    assert stranger.post("/do/stop", data={"study": "x"}).status_code == 401


def test_a_wrong_key_opens_nothing(stranger: TestClient) -> None:
    assert stranger.post("/sign-in", data={"key": "wrong"}).status_code == 401
    assert stranger.get("/", follow_redirects=False).status_code == 303


@pytest.mark.parametrize("asked", ["https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example", "x"])
def test_signing_in_leads_to_no_other_site(site: Site, stranger: TestClient, asked: str) -> None:
    form = {"key": site.access.owner_key, "next": asked}
    assert stranger.post("/sign-in", data=form, follow_redirects=False).headers["location"] == "/"


@pytest.mark.parametrize("host", ["elsewhere.example", "127.0.0.1", "127.0.0.1:1", ""])
def test_a_host_that_is_not_ours_is_refused(stranger: TestClient, host: str) -> None:
    assert stranger.get("/sign-in", headers={"host": host}).status_code == 421


def test_a_second_host_is_refused(stranger: TestClient) -> None:
    assert stranger.get("/sign-in", headers=[("host", HOST), ("host", "elsewhere.example")]).status_code == 421


@pytest.mark.parametrize(
    "headers", [{"origin": "http://elsewhere.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_another_sites_form_is_refused(signed_in: SignIn, headers: dict[str, str]) -> None:
    assert signed_in().post("/do/build", data={"study": "x"}, headers=headers).status_code == 403


def test_a_form_without_its_sessions_token_does_nothing(signed_in: SignIn, site: Site, study: str) -> None:
    before = site.state(study).head_hash
    assert signed_in().post("/do/note", data={"study": study, "text": "hello"}).status_code == 403
    assert site.state(study).head_hash == before


def test_a_form_that_is_too_long_is_refused(signed_in: SignIn) -> None:
    assert signed_in().post("/do/note", data={"text": "x" * MOST_BODY}).status_code == 413


@pytest.mark.parametrize(
    "address", ["/", "/help", "/sign-in", "/static/ui.css", "/static/live.js", "/s/none", "/nowhere"]
)
def test_every_answer_is_held_to_the_policy(signed_in: SignIn, address: str) -> None:
    found = signed_in().get(address)
    assert found.headers["content-security-policy"] == CSP
    assert found.headers["x-content-type-options"] == "nosniff"


def test_a_cookie_is_for_these_pages_alone(site: Site, stranger: TestClient) -> None:
    found = stranger.post("/sign-in", data={"key": site.access.owner_key}, follow_redirects=False)
    words = found.headers["set-cookie"].lower()
    assert "httponly" in words
    assert "samesite=strict" in words


@pytest.mark.parametrize(("role", "action"), [("viewer", "comment"), ("viewer", "sign"), ("reviewer", "stop")])
def test_who_may_not_is_refused(signed_in: SignIn, site: Site, study: str, role: Role, action: str) -> None:
    client = signed_in(role)
    csrf = site.access.csrf(client.cookies["ajet"])
    form = {
        "csrf": csrf,
        "study": study,
        "about": "study",
        "text": "no",
        "typed": study,
        "seen": site.state(study).head_hash,
    }
    assert client.post(f"/do/{action}", data=form).status_code == 403


def test_signing_out_ends_the_session(signed_in: SignIn) -> None:
    client = signed_in()
    session = client.cookies["ajet"]
    client.post("/sign-out")
    client.cookies.set("ajet", session)
    assert client.get("/", follow_redirects=False).status_code == 303


@pytest.mark.parametrize("other", ['x={"a":1}', "a b=1", "[x]=1"])
def test_cookies_of_other_servers_on_this_host_sign_nobody_out(signed_in: SignIn, other: str) -> None:
    client = signed_in()
    cookie = f"{other}; ajet={client.cookies['ajet']}"
    client.cookies.clear()
    assert client.get("/help", headers={"cookie": cookie}, follow_redirects=False).status_code == 200


def test_a_file_of_keys_that_cannot_be_read_is_said_under_the_policy(signed_in: SignIn, site: Site) -> None:
    client = signed_in()
    site.access.add("ann", "viewer")
    (site.home.path / "ui/keys.json").write_text("{")
    found = client.get("/")
    assert found.status_code == 503
    assert "keys.json" in found.text
    assert found.headers["content-security-policy"] == CSP


def test_a_database_that_was_replaced_takes_nothing(signed_in: SignIn, site: Site, study: str) -> None:
    client, file = signed_in(), site.home.path / "ajet.db"
    csrf = site.access.csrf(client.cookies["ajet"])
    file.rename(file.with_name("elsewhere.db"))
    form = {"csrf": csrf, "study": study, "about": "study", "text": "lost", "seen": site.state(study).head_hash}
    assert client.post("/do/comment", data=form).status_code == 422
    assert client.get("/").status_code == 422
    file.with_name("elsewhere.db").rename(file)
    assert client.post("/do/comment", data=form, follow_redirects=False).status_code == 303


def test_behind_a_proxy_open_pages_are_let_go_before_their_server_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, closed = make_app(site, PAGES, [HOST]), list[str]()
    monkeypatch.setattr(app.state.hub, "close", lambda: closed.append("closed"))
    server = PageServer(uvicorn.Config(app, proxy_headers=True, lifespan="off"))
    server.config.load()
    server.servers, server.lifespan = [], server.config.lifespan_class(server.config)
    asyncio.run(server.shutdown())
    assert closed
