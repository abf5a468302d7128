"""A client finds the servers that run on its machine, and none that did."""

from __future__ import annotations

import fcntl
import signal
import time
from pathlib import Path

import pytest

from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.client.home import folder_of
from swarm.errors import Unreachable
from swarm.server.__main__ import _claimed
from swarm.wire import ServerState
from tests.swarm.server.test_main import running


def test_a_server_that_was_killed_is_not_there_though_its_record_is(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "speaker")
    with running(folder, "--port", "0") as (process, url):
        with SwarmClient.from_home("speaker", home=tmp_path, role="client") as client:
            assert client.status().state is ServerState.OFFLINE
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (folder / "server.json").exists(), "what is left of it, with an address that anybody may take"
    for kind in (SwarmClient, AsyncSwarmClient):
        with pytest.raises(Unreachable, match=f"{url}.*--name speaker`"):
            kind.from_home("speaker", home=tmp_path)


def test_a_server_that_is_stopped_in_its_tracks_is_there(tmp_path: Path) -> None:
    with running(folder_of(tmp_path), "--port", "0") as (process, url):
        process.send_signal(signal.SIGSTOP)
        with SwarmClient.from_home(home=tmp_path) as client:
            assert client.asynchronous().url == url
        process.send_signal(signal.SIGCONT)


def test_a_server_starts_though_a_client_looks_for_it_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.lock").touch()
    with (tmp_path / "server.lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))  # while the server tries again
        _claimed(tmp_path).release()
