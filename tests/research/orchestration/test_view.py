"""Prefect beside a study: the study neither waits for it nor ends with it, and is shown from planning to its end."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient

from research.installation.home import Home
from research.orchestration import handover as module
from research.orchestration.handover import PrefectView
from research.orchestration.projection import ControllerSession
from research.orchestration.server import AUTH, PrefectServer, PrefectUnavailable, client_environment
from studies import EventLog
from tests.research.bench import STUDY, Bench
from tests.research.orchestration.shown import PATIENCE_S, shown_in, state_of, wait_for


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait(self, part: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(part in line for line in self.lines), PATIENCE_S), self.lines


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Look often, and leave no setting of Prefect's in this process."""
    monkeypatch.setattr(module, "REFRESH_S", 0.05)
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    for name, value in client_environment(tmp_path).items():
        if name != AUTH:  # a server that is used here is one of the run's
            monkeypatch.setenv(name, value)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.slow
def test_a_study_begins_before_the_server_answers_and_ends_without_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(module.server, "ensure_server", lambda folder: never.wait())
    monkeypatch.setattr(module, "_LEAVING_S", 0.01)
    monkeypatch.setattr(module, "_CLOSING_S", 0.02)
    said = Heard()
    with PrefectView(bench.home, bench.loop().state(), said, said) as view:
        assert bench.drive(bench.loop()).status == "concluded"
    assert view.url is None
    (line,) = said.lines
    assert "waiting for Prefect" in line
    never.set()


def test_a_disk_that_is_full_for_a_while_ends_no_view(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[int]()

    def ensure(folder: Path) -> PrefectServer:
        looks.append(len(looks))
        raise OSError(errno.ENOSPC, "full") if len(looks) == 1 else PrefectUnavailable("not yet")

    monkeypatch.setattr(module.server, "ensure_server", ensure)

    def say(line: str) -> None:
        Path("/dev/full").write_text(line)

    with PrefectView(bench.home, bench.loop().state(), say, say):
        wait_for(lambda: len(looks) > 2)


def test_an_address_where_nobody_answers_costs_the_view_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "nonsense")
    warned = Heard()
    with PrefectView(bench.home, bench.loop().state(), warned, warned):
        assert bench.drive(bench.loop()).status == "concluded"
    (line,) = warned.lines
    assert "PREFECT_API_URL" in line
    assert "without Prefect's view" in line


@pytest.mark.slow
def test_a_server_that_is_gone_is_said_once_and_shows_the_end_when_it_is_back(
    bench: Bench, server: PrefectServer, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, gone, warned = ControllerSession.refresh, threading.Event(), Heard()

    def refresh_unless_gone(self: ControllerSession, notes: list[str]) -> None:
        if gone.is_set():
            raise httpx.ConnectError("gone")
        refresh(self, notes)

    monkeypatch.setattr(ControllerSession, "refresh", refresh_unless_gone)
    monkeypatch.setenv("PREFECT_API_URL", server.api)
    note, loop = bench.home.study(STUDY) / "prefect.json", bench.loop()
    with PrefectView(bench.home, loop.state(), Heard(), warned):
        wait_for(note.exists)
        flow_run = shown_in(note)
        loop.tick()
        gone.set()
        warned.wait("is interrupted (")
        assert bench.drive(loop).status == "concluded"
        assert len(warned.lines) == 1
        gone.clear()
        warned.wait("is back")
    assert state_of(client.read_flow_run(flow_run)).is_completed()


@pytest.mark.slow
def test_a_refusal_while_planning_is_a_flow_run_that_failed(
    tmp_path: Path, server: PrefectServer, client: SyncPrefectClient
) -> None:
    environment = {**os.environ, "AJET_HOME": str(tmp_path / "home"), "PREFECT_API_URL": server.api}
    command = [sys.executable, "-m", "research", "research", "larger group", "--budget", "20s"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2
    assert "use --budget" in ended.stderr
    (study,) = EventLog(Home.locate({"AJET_HOME": str(tmp_path / "home")}).database).studies()
    (shown,) = [run for run in client.read_flow_runs(limit=200) if run.name.startswith(study)]
    assert state_of(shown).is_failed()
    assert "use --budget" in str(state_of(shown).message)
