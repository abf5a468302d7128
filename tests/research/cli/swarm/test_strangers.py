"""Commands at an address where no swarm server answers, or one of another version, end with one line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from research.installation.server_process import SwarmProcess
from swarm.job import Job
from swarm.wire import ServerState, Status
from tests.research.cli.conftest import Ajet

pytestmark = pytest.mark.slow

SERVING = Status(state=ServerState.ROLLING, group_size=2, steps=3).model_dump(mode="json")
NEWER_JOB = {**Job(environment="arith").value(), "schema": 10_000, "later": {"a": 1}}
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("swarm", "status"),
    "top": ("swarm", "top", "--once"),
    "shares": ("swarm", "shares"),
    "run": ("client", "run", "--environment", "arith"),
    "debug": ("client", "debug", "--environment", "arith"),
}


class _Stranger(BaseHTTPRequestHandler):
    """Answers each path as it is told to, and all others with one thing."""

    content: ClassVar[str | bytes] = b"<html><body>It works!</body></html>"
    kind: ClassVar[str] = "text/html"
    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        known = self.answers.get(self.path.partition("?")[0])
        body = self.content if known is None else json.dumps(known)
        sent = body.encode() if isinstance(body, str) else body
        self.send_response(200)
        self.send_header("Content-Type", self.kind if known is None else "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stranger)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AJET_TOKEN", "t" * 40)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def refused(ajet: Ajet, *command: str) -> str:
    ended = ajet(*command)
    assert (ended.code, ended.out) == (2, ""), ended
    return ended.line


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"<html><body>It works!</body></html>", "text/html"),
        (b'{"hello": "world"}', "application/json"),
        (b"[]", "application/json"),
        (b"null", "application/json"),
        (b"[" * 200_000, "application/json"),
        (b"\xff\xfe\x00", "application/octet-stream"),
    ],
    ids=["pages", "another", "list", "null", "deep", "bytes"],
)
def test_something_else_answers(
    ajet: Ajet, home: Path, stranger: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...],
    content: bytes, kind: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(_Stranger, "content", content)
    monkeypatch.setattr(_Stranger, "kind", kind)
    assert stranger in refused(ajet, *command, "--server", stranger)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("status", "top")])
def test_a_server_of_another_version_has_a_job_that_is_not_understood(
    ajet: Ajet, home: Path, stranger: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    answers = {"/status": SERVING, "/job": NEWER_JOB, "/streams": {"streams": []}}
    monkeypatch.setattr(_Stranger, "answers", answers)
    said = refused(ajet, *COMMANDS[command], "--server", stranger)
    assert ("GET /job" in said, "another version" in said) == (True, True)


def test_a_server_of_another_version_tells_a_snapshot_that_is_not_understood(
    ajet: Ajet, home: Path, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Stranger, "answers", {"/status": SERVING, "/snapshot": {"at": "noon"}})
    for name in ("status", "top"):
        assert "GET /snapshot" in refused(ajet, *COMMANDS[name], "--server", stranger)


def test_one_of_this_installation(
    ajet: Ajet, home: Path, stranger: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its process is there, and is not said to be busy."""
    monkeypatch.setattr(_Stranger, "answers", {"/status": {"state": "SINGING"}, "/job": NEWER_JOB})
    found = SwarmProcess(stranger, psutil.Process().pid, "a" * 40, home / "swarm", "c" * 40)
    (home / "swarm").mkdir(parents=True)
    monkeypatch.setattr("research.servers.running.find_swarm", lambda _: found)
    monkeypatch.setattr("research.servers.names.find_swarm", lambda _: found)
    monkeypatch.setattr("research.cli.swarm.export_model.find_swarm", lambda _: found)
    said = refused(ajet, "swarm", "status")
    assert "state: expected 'OFFLINE'" in said
    assert "busy" not in said
    (row,) = json.loads(ajet("swarm", "list", "--json").out)
    assert row["state"] == "not understood"
    assert "GET /job" in refused(ajet, "swarm", "export-model", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
