"""`ajet swarm top` and `status` beside a real server: one frame for scripts, a live screen, and a server that dies."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from research.cli import swarm
from research.cli.top import OlderServer, Watcher
from research.installation.servers import SwarmProcess
from swarm.client import NamedTask, SwarmClient
from swarm.errors import NotFound, Unreachable
from tests.research.cli.conftest import Ajet, client_of, own_server, server_of, small_job

DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installation whose server has done two of four steps, and has an episode open: nobody here goes on with it."""
    folder = tmp_path_factory.mktemp("watched")
    with own_server(folder, job=small_job(steps=4, episodes_per_step=2)) as running, client_of(folder) as client:
        for step in (1, 2):
            for reward in (0.0, float(step)):
                running.run(running.served.play("t", reward))
            running.run(running.served.until(step=step, state="ROLLING"))
        client.begin(NamedTask("t"), wait_s=60)
        yield folder


@pytest.fixture
def home(home: Path, installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AJET_HOME", str(installation))
    return installation


@pytest.fixture
def server(home: Path) -> SwarmProcess:
    return server_of(home)


@pytest.mark.usefixtures("server")
def test_one_frame_is_printed_where_no_terminal_is_and_its_data_for_a_script(ajet: Ajet) -> None:
    for asked in (["--once"], []):
        ended = ajet("swarm", "top", *asked)
        assert (ended.code, ended.err, "\x1b" in ended.out) == (0, "", False)
        assert ("2 of 4" in ended.out, "waits for  2 episodes (1 in play)" in ended.out) == (True, True)
        assert all(len(line) <= 80 for line in ended.out.splitlines())
    found = json.loads(ajet("swarm", "top", "--json").out)
    assert found["snapshot"]["status"]["step"] == 2
    assert [record["metrics"]["critic/rewards/mean"] for record in found["steps"]] == [0.5, 1.0]
    assert [owner["open"] for owner in found["snapshot"]["owners"]] == [1]


def test_status_is_twelve_lines_for_people_and_all_it_had_for_scripts(ajet: Ajet, server: SwarmProcess) -> None:
    shown = ajet("swarm", "status").out
    assert len(shown.splitlines()) == 12
    assert "1 at step 2, 0.5 at step 1" in shown
    found = json.loads(ajet("swarm", "status", "--json").out)
    assert (found["url"], found["pid"], found["step"]) == (server.url, server.pid, 2)
    assert found["metrics"]["critic/rewards/mean"] == 1.0


@pytest.mark.slow
def test_the_live_screen_is_drawn_again_and_q_ends_it(server: SwarmProcess) -> None:
    master, slave = pty.openpty()
    own = {"AJET_SERVER": server.url, "AJET_TOKEN": server.admin_token}
    environment = {**os.environ, **own, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    command = [sys.executable, "-m", "research", "swarm", "top"]
    live = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True, close_fds=True
    )
    os.close(slave)
    try:
        shown = read_until(master, lambda shown: shown.count(b"ajet swarm top") >= 2)
        os.write(master, b"xq")
        read_until(master, lambda _: live.poll() is not None)
        assert live.wait(DEADLINE_S) == 0
    finally:
        live.kill()
        live.wait()
        os.close(master)
    assert (b"2 of 4" in shown, b"Traceback" in shown) == (True, False)


def read_until(terminal: int, enough: Callable[[bytes], bool]) -> bytes:
    """Read what a process writes, as a terminal does."""
    shown, deadline = b"", time.monotonic() + DEADLINE_S
    while not enough(shown):
        assert time.monotonic() < deadline, shown[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            with suppress(OSError):  # how a terminal's end is told
                shown += os.read(terminal, 65536)
    return shown


def test_a_watcher_shows_what_was_while_a_server_does_not_answer(
    server: SwarmProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SwarmClient(server.url, server.admin_token) as client:
        now = [0.0]
        watcher = Watcher(server.url, client, lambda: now[0])
        first = watcher.look()

        def silent_server(**_: object) -> None:
            raise Unreachable("it does not answer")

        monkeypatch.setattr(client, "snapshot", silent_server)
        now[0] = 12.0
        silent = watcher.look()
        assert silent.silent_s == 12.0
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
    ajet("swarm", "top").refused("ajet swarm status")
    assert "2 of 4" in ajet("swarm", "status").out


def test_who_captures_a_start_is_told_that_it_boots_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "server.log").write_text("level=INFO event=warm_start step=40/400\n")
    monkeypatch.setattr(swarm, "TOLD_EVERY_S", 0.001)
    at: Any = SimpleNamespace(process=SimpleNamespace(folder=tmp_path))
    with swarm._told(at):
        said = capsys.readouterr().err
        assert "booting" in said
        while "warm_start step=40/400" not in said:
            said += capsys.readouterr().err
