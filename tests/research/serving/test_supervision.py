"""Whether an installation has a worker, which any number of commands ask at once, and how that one ends."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from research.errors import NotReady
from research.installation.home import Home
from research.orchestration import supervision
from research.orchestration.server import record_process
from research.orchestration.supervision import (
    LEAVING_S,
    PAGES,
    WORKER,
    announce_pages,
    become_supervisor,
    end_worker,
    flow_run_process,
    is_flow_run_alive,
    pages_address,
    pages_line,
    require_worker,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate({"AJET_HOME": str(tmp_path)}).prepare()


def test_only_a_worker_is_one(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "ASKING_S", 0.0)
    with pytest.raises(NotReady, match="ajet up --work"):
        require_worker(home)
    with become_supervisor(home):
        require_worker(home)
        with pytest.raises(NotReady), become_supervisor(home):
            pass
    with pytest.raises(NotReady):
        require_worker(home)


def test_whoever_only_asks_is_no_worker_for_others_that_ask_nor_for_one_that_begins(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, flock = threading.Event(), fcntl.flock
    begun: list[bool] = []

    def asking(lock: int, how: int) -> None:
        """Take the lock as whoever asks does; meanwhile somebody else asks, and somebody begins to work."""
        flock(lock, how)
        if not asks.is_set() and how & fcntl.LOCK_SH:
            asks.set()
            with pytest.raises(NotReady):
                require_worker(home)
            worker.start()

    def work() -> None:
        with become_supervisor(home):
            begun.append(True)

    worker = threading.Thread(target=work)
    monkeypatch.setattr(fcntl, "flock", asking)
    with pytest.raises(NotReady):
        require_worker(home)
    worker.join(60.0)
    assert begun == [True]


def test_a_worker_that_its_parent_has_not_reaped_is_not_waited_for(home: Home) -> None:
    waits = "import sys; print('here', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        record_process(home.prefect / WORKER, process.pid)
        began = time.monotonic()
        assert end_worker(home)
        assert time.monotonic() - began < LEAVING_S  # it was a zombie by then
        assert not end_worker(home), "nobody is left"


_WORKER = """
import signal, subprocess, sys
sitting = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *told: (sitting.kill(), sys.exit()))
print(sitting.pid, flush=True)
signal.pause()
"""
"""Ends as Prefect's worker of type process does: asked to, it kills what it started."""


def test_the_sittings_of_a_worker_whose_supervisor_was_killed_live_on_under_the_next(home: Home) -> None:
    home.prefect.mkdir()
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    assert worker.stdout is not None
    sitting = psutil.Process(int(worker.stdout.readline()))
    record_process(home.prefect / WORKER, worker.pid)
    try:
        with become_supervisor(home):
            worker.wait(60.0)
            assert sitting.is_running()
            assert sitting.status() != psutil.STATUS_ZOMBIE
    finally:
        sitting.kill()


def test_a_second_process_of_a_flow_run_does_not_make_the_first_one_nobodys(home: Home) -> None:
    run = uuid4()
    (home.prefect / "sittings").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as first:
        record_process(home.prefect / "sittings" / f"{run}.json", first.pid)
        with flow_run_process(home, run):
            pass
        alive = is_flow_run_alive(home, run)
        first.kill()
    assert alive
    with flow_run_process(home, run):
        assert is_flow_run_alive(home, run)
    assert not is_flow_run_alive(home, run)


def test_pages_are_found_while_somebody_serves_them_and_without_a_key(home: Home) -> None:
    assert (pages_address(home), pages_line(home)) == ("", "review it: ajet ui")
    with announce_pages(home, "http://127.0.0.1:8760"):
        assert pages_address(home) == "http://127.0.0.1:8760/"
        assert pages_line(home, "lr-1").endswith("http://127.0.0.1:8760/s/lr-1")
        with announce_pages(home, "http://127.0.0.1:8761"):
            assert pages_address(home).startswith("http://127.0.0.1:8761")
    assert not (home.path / PAGES).exists()


def test_pages_of_a_process_that_died_count_as_none(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        record_process(home.path / PAGES, process.pid, url="http://127.0.0.1:8760")
    assert pages_address(home) == ""
