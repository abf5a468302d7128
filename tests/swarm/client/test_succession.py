"""A client finds the servers of its machine, and takes over from a killed client, never from one that lives."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swarm.client import AsyncSwarmClient, NamedTask, SwarmClient
from swarm.client.identity import ClientIdentity, server_folder
from swarm.errors import EngineUnavailable, Forbidden, InvalidKey, SwarmError, Unreachable
from swarm.server.__main__ import _lock_directory
from swarm.wire import ServerState, fingerprint
from tests.swarm.server.support import job, serving
from tests.swarm.server.test___main__ import running

URL = "http://127.0.0.1:9"
HOLDER = """
import asyncio, sys
from pathlib import Path
from swarm.client.identity import ClientIdentity

async def release(secret): raise AssertionError(secret)
held = ClientIdentity(sys.argv[1], "other", Path(sys.argv[2]))
asyncio.run(held.enter(release))
print(held.owner, flush=True)
sys.stdin.read()
"""


class Released:
    def __init__(self, refusal: SwarmError | None = None) -> None:
        self.names: list[str] = []
        self._refusal = refusal

    async def __call__(self, secret: str) -> None:
        self.names.append(fingerprint(secret))
        if self._refusal is not None:
            raise self._refusal


def holder(folder: Path, url: str = URL) -> tuple[subprocess.Popen[str], str]:
    """Start a client process; return it with the fingerprint its owner's name ends with."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip().rpartition(":")[2]


def dead(folder: Path, url: str = URL) -> str:
    process, name = holder(folder, url)
    process.kill()
    process.wait()
    return name


def records(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def take_over(folder: Path, refusal: SwarmError | None = None) -> list[str]:
    mine, released = ClientIdentity(URL, "mine", folder), Released(refusal)
    await mine.enter(released)
    mine.leave()
    return released.names


async def test_a_record_for_which_the_disk_had_no_room_is_made_with_the_next_episode(tmp_path: Path) -> None:
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    mine = ClientIdentity(URL, "mine", tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        await mine.enter(Released())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert records(tmp_path) == []
    await mine.enter(Released())
    assert [record.suffix for record in records(tmp_path)] == [".lock"]
    mine.leave()


@pytest.mark.slow
async def test_only_the_dead_are_taken_over_from_and_once(tmp_path: Path) -> None:
    alive, _ = holder(tmp_path)
    doomed, name = holder(tmp_path)
    dead(tmp_path, "http://127.0.0.1:8")
    alive.send_signal(signal.SIGSTOP)  # it is not heard of, and lives
    assert await take_over(tmp_path) == []
    doomed.kill()
    doomed.wait()
    assert [await take_over(tmp_path) for _ in range(2)] == [[name], []]
    alive.kill()
    alive.wait()


@pytest.mark.parametrize(("refusal", "again"), [
    (EngineUnavailable("boots"), True), (InvalidKey("a wrong token"), True), (Forbidden("a door"), False),
])  # fmt: skip
@pytest.mark.slow
async def test_a_server_that_is_deaf_is_told_by_the_next_one(tmp_path: Path, refusal: SwarmError, again: bool) -> None:
    name = dead(tmp_path)
    await take_over(tmp_path, refusal)
    assert await take_over(tmp_path) == ([name] if again else [])


@pytest.mark.slow
async def test_a_record_of_another_boot_or_machine_is_left_alone(tmp_path: Path) -> None:
    dead(tmp_path)
    (record,) = records(tmp_path)
    record.write_text(json.dumps({**json.loads(record.read_text()), "boot": "another"}))
    assert await take_over(tmp_path) == []


async def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    await take_over(tmp_path)
    assert records(tmp_path) == []


async def test_a_secret_gives_up_the_episodes_of_its_client_alone(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, job()) as served,
        AsyncSwarmClient(served.url, served.admin, owner="same") as one,
        AsyncSwarmClient(served.url, served.admin, owner="same") as other,
    ):
        mine, theirs = await one.begin(NamedTask("a")), await other.begin(NamedTask("a"))
        guessed = await served.post("/owners/release", served.admin, {"secret": one.owner.rpartition(":")[2] * 4})
        assert guessed.body == {"episodes": 0}
        told = await served.post("/owners/release", served.admin, {"secret": one._identity.secret})
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


def test_a_server_starts_though_a_client_looks_for_it_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server.lock").touch()
    with (tmp_path / "server.lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))  # while the server tries again
        _lock_directory(tmp_path).release()
