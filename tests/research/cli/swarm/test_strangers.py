"""Commands at an address where no swarm server answers, or one of another version, end with one line."""

from __future__ import annotations

import json
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from research.installation.servers import SwarmProcess
from swarm.job import Job
from swarm.wire import ServerState, Status
from tests.research.cli.conftest import Ajet

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

    content: ClassVar[bytes] = b"<html><body>It works!</body></html>"
    kind: ClassVar[str] = "text/html"
    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        known = self.answers.get(self.path.partition("?")[0])
        sent = self.content if known is None else json.dumps(known).encode()
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
    role = urlsafe_b64encode(b'{"role": "client"}').decode()
    monkeypatch.setenv("AJET_TOKEN", f"t.{role}.{'t' * 40}")
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"<html><body>It works!</body></html>", "text/html"), (b'{"hello": "world"}', "application/json"),
        (b"[]", "application/json"), (b"null", "application/json"), (b"[" * 200_000, "application/json"),
        (b"\xff\xfe\x00", "application/octet-stream"),
    ],
    ids=["pages", "another", "list", "null", "deep", "bytes"],
)  # fmt: skip
def test_something_else_answers(
    ajet: Ajet, stranger: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], content: bytes, kind: str
) -> None:
    monkeypatch.setattr(_Stranger, "content", content)
    monkeypatch.setattr(_Stranger, "kind", kind)
    ended = ajet(*command, "--server", stranger)
    assert (ended.refused(stranger) != "", ended.out) == (True, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_of_another_version_has_a_job_or_a_snapshot_that_is_not_understood(
    ajet: Ajet, stranger: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    answers = {"/status": SERVING, "/job": NEWER_JOB, "/streams": {"streams": []}, "/snapshot": {"at": "noon"}}
    monkeypatch.setattr(_Stranger, "answers", answers)
    names = ("GET /snapshot",) if command in ("status", "top") else ("GET /job", "another version")
    ajet(*COMMANDS[command], "--server", stranger).refused(*names)


def test_one_of_this_installation(
    ajet: Ajet, home: Path, stranger: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its process is there, and is not said to be busy."""
    monkeypatch.setattr(_Stranger, "answers", {"/status": {"state": "SINGING"}, "/job": NEWER_JOB})
    found = SwarmProcess(stranger, psutil.Process().pid, "a" * 40, home / "swarm", "c" * 40)
    (home / "swarm").mkdir(parents=True)
    monkeypatch.setattr("research.installation.servers.find_swarm", lambda _: found)
    monkeypatch.setattr("research.installation.servers.find_swarm", lambda _: found)
    monkeypatch.setattr("research.cli.swarm_admin.find_swarm", lambda _: found)
    assert "busy" not in ajet("swarm", "status").refused("state: expected 'OFFLINE'")
    (row,) = json.loads(ajet("swarm", "list", "--json").out)
    assert row["state"] == "not understood"
    ajet("swarm", "export-model", str(tmp_path / "out")).refused("GET /job")
    assert not (tmp_path / "out").exists()
