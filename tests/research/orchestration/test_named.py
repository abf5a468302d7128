"""A server that the environment names, and why one of ours does not come up: one line each, and no password in it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from research.orchestration.named import DATABASE, PrefectUnavailable, named_server, why_not_up
from tests.research.orchestration.shown import http_server

AUTH = "admin:pa55word"


@pytest.fixture
def guarded() -> Iterator[str]:
    """An address where Prefect's server seems to be: health for anybody, the rest for those who are let in."""
    entry = f"Basic {base64.b64encode(AUTH.encode()).decode()}"

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        return 200 if asked.path == "/api/health" or asked.headers["Authorization"] == entry else 401, b""

    with http_server(answer) as port:
        yield f"http://127.0.0.1:{port}"


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
    assert "PREFECT_API_AUTH_STRING says (401)" in wrong


@pytest.mark.parametrize(
    ("address", "named"),
    [
        *((wrong, "http://HOST:4200/api") for wrong in ("127.0.0.1:4200", "nonsense", "http://", "file:///etc")),
        ("http://host:none/api", "http://HOST:4200/api"),
        ("http://127.0.0.1:9/api", "PREFECT_API_URL"),
        (f"http://{AUTH}@127.0.0.1:9/api", "PREFECT_API_AUTH_STRING=USER:PASSWORD"),
    ],
)
def test_what_is_no_address_answers_nothing_or_has_a_password_in_it_is_refused(address: str, named: str) -> None:
    assert named in refusal(PREFECT_API_URL=address)


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
