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

pytestmark = pytest.mark.slow

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
        until = time.monotonic() + DEADLINE_S
        while not runs(home):
            assert (process.poll(), time.monotonic() < until) == (None, True)
            time.sleep(0.05)
        yield
    finally:
        pid = json.loads((home / "passive" / "front.json").read_text())["pid"]
        os.kill(pid, 15)
        ended = process.wait(20)
        stop_swarm(server)
        assert ended == 0


def runs(home: Path) -> bool:
    try:
        return bool(running_front(Home(home, "")))
    except NoFront:
        return False


@pytest.mark.usefixtures("front")
def test_applications_are_let_in_and_users_deleted(ajet: Ajet) -> None:
    assert ajet("passive", "key", "chat", "--json").data["key"].startswith("ajet-app-")
    assert ajet("passive", "status", "--json").data["applications"] == ["chat"]
    assert "chat" in ajet("passive", "status").out
    assert "0 episodes erased" in ajet("passive", "delete-user", "chat", "ann").out
    ajet("passive", "key", "No Name").refused("name")
    assert ajet("passive", "key", "chat", "--revoke").code == 0
    assert ajet("passive", "key", "chat", "--revoke").code == 2
