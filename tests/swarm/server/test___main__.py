"""The server as a process: where it says it is, who may read what, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.server.__main__ import main
from swarm.store.database import check_store

pytestmark = pytest.mark.slow

DEADLINE_S = 180.0


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "swarm.server", "--directory", str(folder), *options]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Start a server that must not start; return its one line."""

    def refuse(folder: Path, *options: str) -> str:
        assert main(["--directory", str(folder), *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert not folder.is_dir() or not (folder / "server.json").exists()
        return line

    return refuse


@contextlib.contextmanager
def running(
    folder: Path, *options: str, start: Callable[..., list[str]] = command
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(start(folder, *options), stderr=subprocess.PIPE, text=True)
    try:
        yield process, address(folder / "server.json", process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def address(path: Path, process: subprocess.Popen[str]) -> str:
    """Return the url once the process wrote it; a killed server's file may still be there."""
    until = time.monotonic() + DEADLINE_S
    while (listening := written(path)).get("pid") != process.pid:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)
    return str(listening["url"])


def written(path: Path) -> dict[str, Any]:
    """Return what the file says, nothing where it is gone: a starting server removes the old one."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


def asked(url: str, key: str | None = None, body: Any = None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=120) as response:
        return dict(json.loads(response.read()))


def train(folder: Path, url: str, **fields: Any) -> dict[str, str]:
    tokens = dict(json.loads((folder / "tokens.json").read_text()))
    asked(f"{url}/job", tokens["admin"], {"backend": "fake", **fields})
    asked(f"{url}/engine/start", tokens["admin"], {})
    rolling(url, tokens["viewer"])
    return tokens


def rolling(url: str, key: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while asked(f"{url}/status", key)["state"] != "ROLLING":
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_signal_ends_a_training_cleanly(tmp_path: Path) -> None:
    with running(tmp_path) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert asked(f"{url}/health") == {"status": "ok"}
        assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600
        tokens = train(tmp_path, url, tracking={"directory": str(tmp_path / "metrics"), "run_id": "r1"})
        lease = asked(f"{url}/episodes", tokens["client"], {"task_id": "t"})
        process.terminate()
        _, log = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, log
    assert not (tmp_path / "server.json").exists()
    (run,) = (tmp_path / "metrics").glob("wandb/offline-run-*/run-r1.wandb")
    inspected = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)],
        capture_output=True, text=True, check=True, timeout=400,
    )  # fmt: skip
    assert json.loads(inspected.stdout.splitlines()[-1])["type"] == "exit"
    secrets = [*tokens.values(), lease["api_key"], lease["lease_token"]]
    assert not any(secret in log for secret in secrets)
    assert "from=ROLLING to=OFFLINE" in log


FULL_DISK = """
import sys
from swarm.server import __main__
from swarm.training import trackers

def full(tracker):
    raise OSError("no space left on device")

trackers.TrackerThread.finish = full
sys.exit(__main__.main(["--directory", sys.argv[1]]))
"""


def test_metrics_that_cannot_be_finished_are_said_and_the_exit_code_is_1(tmp_path: Path) -> None:
    def start(folder: Path) -> list[str]:
        return [sys.executable, "-c", FULL_DISK, str(folder)]

    with running(tmp_path, start=start) as (process, url):
        train(tmp_path, url)
        process.terminate()
        _, log = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "last metrics may be" in log.splitlines()[-1]
    assert not (tmp_path / "server.json").exists()


def test_a_signal_while_a_model_is_made_does_not_wait_for_it(tmp_path: Path) -> None:
    with running(tmp_path) as (process, url):
        admin = json.loads((tmp_path / "tokens.json").read_text())["admin"]
        asked(f"{url}/job", admin, {"backend": "local", "model": {"kind": "tiny", "warm_start_steps": 20000}})
        assert asked(f"{url}/engine/start", admin, {})["state"] == "BOOTING"
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert not (tmp_path / "server.json").exists()


def test_an_address_that_is_not_loopback_needs_a_token_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "--token-file" in refused(tmp_path, "--host", "0.0.0.0")
    weak = tmp_path / "weak"
    weak.touch(0o600)
    weak.write_text("short")
    assert "at least 32" in refused(tmp_path, "--host", "0.0.0.0", "--token-file", str(weak))
    weak.write_text("x" * 40)
    weak.chmod(0o644)
    assert "chmod 600" in refused(tmp_path, "--host", "0.0.0.0", "--token-file", str(weak))
    assert "cannot read" in refused(tmp_path, "--token-file", str(tmp_path / "none"))


def test_the_token_of_a_token_file_is_an_admin_and_a_port_in_use_is_replaced_and_said(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("s" * 40 + "\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path / "d", "--token-file", str(file), "--port", str(port)) as (process, url):
            assert asked(f"{url}/status", "s" * 40)["state"] == "OFFLINE"
            assert not url.endswith(f":{port}")
            process.terminate()
            _, log = process.communicate(timeout=DEADLINE_S)
    assert {str(port), url.rpartition(":")[2]} <= set(re.findall(r"\d+", log))


def test_one_directory_has_one_server_and_a_killed_one_leaves_it_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path) as (process, _):
        assert main(["--directory", str(tmp_path)]) == 2
        assert "another server runs" in capsys.readouterr().err
        os.kill(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
        assert (tmp_path / "server.json").exists()
        with running(tmp_path) as (second, url):
            assert json.loads((tmp_path / "server.json").read_text())["pid"] == second.pid
            assert asked(f"{url}/health") == {"status": "ok"}


def test_a_server_that_was_stopped_takes_its_job_up_again_unless_it_is_to_be_idle(tmp_path: Path) -> None:
    for wanted in ([], [], ["--idle"]):
        with running(tmp_path, *wanted) as (process, url):
            admin = json.loads((tmp_path / "tokens.json").read_text())["admin"]
            if wanted:
                assert asked(f"{url}/status", admin)["state"] == "OFFLINE"
            elif not (tmp_path / "engine.json").exists():
                asked(f"{url}/job", admin, {"backend": "fake", "steps": 3})
                asked(f"{url}/engine/start", admin, {})
            if not wanted:
                rolling(url, admin)
                assert asked(f"{url}/status", admin)["steps"] == 3
            process.terminate()
            process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    assert (tmp_path / "engine.json").exists()  # who looks in idly takes nothing away


def test_a_store_that_is_not_this_directorys_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    store = f"sqlite:///{tmp_path}/shared.sqlite3"
    check_store(store, "another installation")
    assert "another directory" in refused(tmp_path / "d", "--store", store)
    assert "SQLAlchemy" in refused(tmp_path / "d", "--store", "nonsense")


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "file").touch()
    assert "cannot write" in refused(tmp_path / "file" / "below")
    assert "cannot bind" in refused(tmp_path, "--port", "99999")
