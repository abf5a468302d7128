"""A client finds the servers of its machine, and gives up what is its own alone."""

from __future__ import annotations

import fcntl
import signal
import time
from pathlib import Path

import pytest

from swarm.client import AsyncSwarmClient, NamedTask, SwarmClient
from swarm.client.transport import server_folder
from swarm.errors import Unreachable
from swarm.server.__main__ import _lock_directory
from swarm.wire import ServerState
from tests.swarm.server.support import job, serving
from tests.swarm.server.test___main__ import running


async def test_a_secret_gives_up_the_episodes_of_its_client_alone(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, job()) as served,
        AsyncSwarmClient(served.url, served.admin, owner="same") as one,
        AsyncSwarmClient(served.url, served.admin, owner="same") as other,
    ):
        mine, theirs = await one.begin(NamedTask("a")), await other.begin(NamedTask("a"))
        guessed = await served.post("/owners/release", served.admin, {"secret": one.owner.rpartition(":")[2] * 4})
        assert guessed.body == {"episodes": 0}
        told = await served.post("/owners/release", served.admin, {"secret": one._secret})
        assert told.body == {"episodes": 1}
        await theirs.heartbeat()
        states = {episode.id: episode.state for episode in (await one.episodes()).episodes}
        assert states == {mine.id: "fenced", theirs.id: "open"}


@pytest.mark.slow
def test_a_server_that_was_killed_is_not_there_though_its_record_is(tmp_path: Path) -> None:
    folder = server_folder(tmp_path, "speaker")
    with running(folder, "--port", "0") as (process, url):
        with SwarmClient.from_home("speaker", home=tmp_path, role="client") as client:
            assert client.status().state is ServerState.OFFLINE
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (folder / "server.json").exists(), "what is left of it, with an address that anybody may take"
    for kind in (SwarmClient, AsyncSwarmClient):
        with pytest.raises(Unreachable, match=f"{url}.*--name speaker`"):
            kind.from_home("speaker", home=tmp_path)


@pytest.mark.slow
def test_a_server_that_is_stopped_in_its_tracks_is_there(tmp_path: Path) -> None:
    with running(server_folder(tmp_path), "--port", "0") as (process, url):
        process.send_signal(signal.SIGSTOP)
        with SwarmClient.from_home(home=tmp_path) as client:
            assert client.url == url
        process.send_signal(signal.SIGCONT)


def test_a_server_starts_though_a_client_looks_for_it_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server.lock").touch()
    with (tmp_path / "server.lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))  # while the server tries again
        _lock_directory(tmp_path).release()
