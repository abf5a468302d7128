"""`ajet swarm top` and `status` beside a real server: one frame for scripts, a live screen, and a server that dies."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from research.cli.swarm.watching.frame import OlderServer, Watcher
from research.installation.server_process import SwarmProcess, find_swarm, start_swarm, stop_swarm
from swarm.client import NamedTask, SwarmClient
from swarm.errors import NotFound
from swarm.job import Job
from tests.research.cli.conftest import Ajet

DEADLINE_S = 180.0
JOB = Job.model_validate(
    {"backend": "fake", "steps": 4, "episodes_per_step": 2, "group_size": 2, "environment": "arith"}
)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installation whose server has done two of four steps, and has an episode open: nobody here goes on with it."""
    folder = tmp_path_factory.mktemp("watched")
    trained(start_swarm(folder / "swarm", models=folder / "models", port=0))
    yield folder
    if (found := find_swarm(folder / "swarm")) is not None:
        stop_swarm(found)


@pytest.fixture
def home(home: Path, installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AJET_HOME", str(installation))
    return installation


@pytest.fixture
def server(home: Path) -> SwarmProcess:
    """The server of this installation."""
    found = find_swarm(home / "swarm")
    assert found is not None
    return found


def trained(server: SwarmProcess) -> SwarmProcess:
    with SwarmClient(server.url, server.admin_token, owner="me") as client:
        client.ensure_training(JOB)
        for step in (1, 2):
            for reward in (0.0, float(step)):
                play(client, reward)
            until(client, step)
        client.begin(NamedTask("t"), wait_s=10)
    return server


def play(client: SwarmClient, reward: float) -> None:
    episode = client.begin(NamedTask("t"), wait_s=10)
    episode.chat([{"role": "user", "content": "hi"}])
    episode.end(reward, success=reward > 0)


def until(client: SwarmClient, step: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not (client.status().step == step and client.history(after=step - 1).steps):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("server")
def test_one_frame_is_printed_where_no_terminal_is_and_its_data_for_a_script(ajet: Ajet) -> None:
    for asked in (["--once"], []):
        ended = ajet("swarm", "top", *asked)
        assert (ended.code, ended.err) == (0, "")
        assert "2 of 4" in ended.out
        assert "waits for  2 episodes (1 in play)" in ended.out
        assert "\x1b" not in ended.out
        assert all(len(line) <= 80 for line in ended.out.splitlines())
    found = json.loads(ajet("swarm", "top", "--json").out)
    assert found["snapshot"]["status"]["step"] == 2
    assert [record["metrics"]["critic/rewards/mean"] for record in found["steps"]] == [0.5, 1.0]
    assert [owner["open"] for owner in found["snapshot"]["owners"]] == [1]


@pytest.mark.usefixtures("server")
def test_status_is_twelve_lines_for_people_and_all_it_had_for_scripts(ajet: Ajet, server: SwarmProcess) -> None:
    shown = ajet("swarm", "status").out
    assert len(shown.splitlines()) == 12
    assert "1 at step 2, 0.5 at step 1" in shown
    found = json.loads(ajet("swarm", "status", "--json").out)
    assert (found["url"], found["pid"], found["step"]) == (server.url, server.pid, 2)
    assert found["metrics"]["critic/rewards/mean"] == 1.0


@pytest.mark.usefixtures("server")
def test_the_live_screen_is_drawn_again_and_q_ends_it(home: Path) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "AJET_HOME": str(home), "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    command = [sys.executable, "-m", "research", "swarm", "top"]
    live = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True, close_fds=True
    )
    os.close(slave)
    try:
        shown = read_until(master, b"ajet swarm top", 2)
        os.write(master, b"xq")
        drain(master, live)
        assert live.wait(DEADLINE_S) == 0
    finally:
        live.kill()
        live.wait()
        os.close(master)
    assert b"2 of 4" in shown
    assert b"Traceback" not in shown


def read_until(terminal: int, text: bytes, times: int) -> bytes:
    shown, deadline = b"", time.monotonic() + DEADLINE_S
    while shown.count(text) < times:
        assert time.monotonic() < deadline, shown[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536)
    return shown


def drain(terminal: int, process: subprocess.Popen[bytes]) -> None:
    """Read what a process writes until it is over, as a terminal does."""
    deadline = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:  # how a terminal's end is told
                return


@pytest.fixture
def mortal(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SwarmProcess]:
    """A server of a test's own, trained alike, which may be killed and started again."""
    monkeypatch.setenv("AJET_HOME", str(tmp_path))
    yield trained(start_swarm(tmp_path / "swarm", models=tmp_path / "models", port=0))
    if (found := find_swarm(tmp_path / "swarm")) is not None:
        stop_swarm(found)


def test_the_history_outlives_a_server_that_is_killed(ajet: Ajet, tmp_path: Path, mortal: SwarmProcess) -> None:
    server = mortal
    with SwarmClient(server.url, server.admin_token) as client:
        before = client.history()
    process = psutil.Process(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    process.wait(DEADLINE_S)
    again = start_swarm(tmp_path / "swarm", models=tmp_path / "models", port=0)
    with SwarmClient(again.url, again.admin_token) as client:
        client.ensure_training(JOB)
        after = client.history()
        assert [record.step for record in after.steps] == [1, 2]
        for old, new in zip(before.steps, after.steps, strict=True):
            for name in ("critic/rewards/mean", "tokens/trained", "batch/groups"):
                assert new.metrics[name] == old.metrics[name]
    assert "2 of 4" in ajet("swarm", "top", "--once").out


def test_a_watcher_shows_what_was_while_a_server_does_not_answer(
    server: SwarmProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("research.cli.swarm.watching.frame.ANSWER_S", 0.3)
    with SwarmClient(server.url, server.admin_token) as client:
        watcher = Watcher(server.url, client)
        first = watcher.look()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            silent = watcher.look()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert silent.silent_s > 0
        assert (silent.snapshot, silent.steps) == (first.snapshot, first.steps)


def test_a_server_that_tells_no_snapshot_is_said_to_be_of_an_earlier_release(
    ajet: Ajet, server: SwarmProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SwarmClient(server.url, server.admin_token) as client, pytest.raises(NotFound):
        client._loop.run(client._client._transport.call("GET", "/a-path-it-does-not-know", server.admin_token))

    def snapshot(self: SwarmClient, *, within_s: float | None = None) -> None:
        raise NotFound("there is no GET /snapshot here")

    monkeypatch.setattr(SwarmClient, "snapshot", snapshot)
    with SwarmClient(server.url, server.admin_token) as client, pytest.raises(OlderServer, match="earlier release"):
        Watcher(server.url, client).look()
    ended = ajet("swarm", "top")
    assert (ended.code, "ajet swarm status" in ended.line) == (2, True)
    assert "2 of 4" in ajet("swarm", "status").out
