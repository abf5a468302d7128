"""`ajet passive`: a front of this installation, from its start to a user's deletion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.installation.home import Home
from research.installation.server_process import start_swarm, stop_swarm
from research.servers.fronts import NoFront, running_front
from tests.research.cli.conftest import Ajet

DEADLINE_S = 180.0


@pytest.fixture
def front(home: Path) -> Iterator[None]:
    """A swarm server of this installation without a job, and a front before it."""
    server = start_swarm(home / "swarm", models=home / "models", port=0)
    command = [sys.executable, "-m", "research", "passive", "start", "--feedback-s", "5", "--port", "0"]
    process = subprocess.Popen(
        command, env={**os.environ, "AJET_HOME": str(home)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _until_it_runs(home, process)
        yield
    finally:
        pid = json.loads((home / "passive" / "front.json").read_text())["pid"]
        os.kill(pid, 15)
        ended = process.wait(20)
        stop_swarm(server)
        assert ended == 0


def _until_it_runs(home: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        try:
            running_front(Home(home, ""))
            return
        except NoFront:
            assert process.poll() is None
            time.sleep(0.05)
    raise AssertionError("the front did not start")


@pytest.mark.usefixtures("front")
def test_applications_are_let_in_and_users_deleted(ajet: Ajet) -> None:
    made = json.loads(ajet("passive", "key", "chat", "--json").out)
    assert made["key"].startswith("ajet-app-")
    assert json.loads(ajet("passive", "status", "--json").out)["applications"] == ["chat"]
    assert "chat" in ajet("passive", "status").out
    assert "0 episodes erased" in ajet("passive", "delete-user", "chat", "ann").out
    wrong = ajet("passive", "key", "No Name")
    assert (wrong.code, "name" in wrong.line) == (2, True)
    assert ajet("passive", "key", "chat", "--revoke").code == 0
    assert ajet("passive", "key", "chat", "--revoke").code == 2


@pytest.mark.parametrize("verb", [("status",), ("key", "chat"), ("delete-user", "chat", "ann")])
def test_without_a_front_one_line_says_how_to_start_one(ajet: Ajet, home: Path, verb: tuple[str, ...]) -> None:
    ended = ajet("passive", *verb)
    assert ended.code == 2
    assert "ajet passive start" in ended.line


def test_a_server_by_its_address_needs_its_token(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AJET_TOKEN", raising=False)
    ended = ajet("passive", "start", "--server", "http://127.0.0.1:1", "--judge", "self")
    assert (ended.code, "AJET_TOKEN" in ended.line) == (2, True)
