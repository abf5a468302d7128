"""A server that the environment names, and why one of ours does not come up: one line each, and no password in it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from research.orchestration.named import DATABASE, PrefectUnavailable, named_server, why_not_up

AUTH = "admin:pa55word"


@pytest.fixture
def guarded() -> Iterator[str]:
    """An address where Prefect's server seems to be: health for anybody, the rest for those who are let in."""

    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            entry = f"Basic {base64.b64encode(AUTH.encode()).decode()}"
            admitted = self.path == "/api/health" or self.headers["Authorization"] == entry
            self.send_response(200 if admitted else 401)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Guarded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def refusal(**environment: str) -> str:
    with pytest.raises(PrefectUnavailable) as refused:
        named_server(environment)
    said = str(refused.value)
    assert "\n" not in said
    assert "pa55word" not in said
    return said


@pytest.mark.parametrize("end", ["", "/", "/api", "/api/"])
def test_whoever_has_the_key_is_let_in_and_whoever_has_not_is_told_so(guarded: str, end: str) -> None:
    assert named_server({"PREFECT_API_URL": guarded + end, "PREFECT_API_AUTH_STRING": AUTH}) == guarded
    assert "refuses whoever names" in refusal(PREFECT_API_URL=guarded + end)
    wrong = refusal(PREFECT_API_URL=guarded + end, PREFECT_API_AUTH_STRING="admin:pa55word-of-before")
    assert "refuses what PREFECT_API_AUTH_STRING says (401)" in wrong


@pytest.mark.parametrize("address", ["127.0.0.1:4200", "nonsense", "http://", "http://host:none/api", "file:///etc"])
def test_what_is_no_address_is_refused(address: str) -> None:
    assert "such as http://HOST:4200/api in PREFECT_API_URL" in refusal(PREFECT_API_URL=address)


def test_a_password_in_the_address_is_refused_and_not_said() -> None:
    said = refusal(PREFECT_API_URL=f"http://{AUTH}@127.0.0.1:9/api")
    assert "PREFECT_API_AUTH_STRING=USER:PASSWORD" in said


def test_nothing_is_named_where_the_environment_says_nothing() -> None:
    assert named_server({}) is None
    assert named_server({"PREFECT_API_URL": ""}) is None


LOG = """
Traceback (most recent call last):
  File "x.py", line 1, in start
ValueError: of an earlier start
"""
RAISED = "asyncpg.exceptions.InvalidPasswordError: password authentication failed for pa55word%2F and pa55word/"


def test_why_a_server_does_not_come_up_is_the_last_error_since_it_was_started_without_the_password(
    tmp_path: Path,
) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG + RAISED + "\nERROR:    Application startup failed. Exiting.\n")
    url = "postgresql+asyncpg://me:pa55word%2F@db.example:5432/prefect?sslpassword=pa55word"
    said = why_not_up(log, len(LOG), {DATABASE: url})
    assert "asyncpg.exceptions.InvalidPasswordError: " in said
    assert "for *** and ***" in said
    assert "postgresql+asyncpg://me:***@db.example:5432/prefect can be" in said
    assert "pa55word" not in said
    assert why_not_up(log, log.stat().st_size, {}) == f"found no answer; see its log: {log}"


@pytest.mark.parametrize("url", ["nonsense-pa55word", "mysql://a:pa55word@h/x"])
def test_a_database_that_cannot_be_one_is_not_said_either(tmp_path: Path, url: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"sqlalchemy.exc.ArgumentError: Could not parse {url}\n")
    assert "pa55word" not in why_not_up(log, 0, {DATABASE: url})
