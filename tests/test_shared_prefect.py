"""All workers of a run of the tests share one Prefect server, and none is left when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
CONFTEST = """
import json, subprocess, sys
from research.orchestration import server
from tests.shared_prefect import EndsPrefect

def answers(folder, port):  # as fast as a server can be that says it is well, and where it has its state
    (folder / "api" / "health").mkdir(parents=True, exist_ok=True)
    (folder / "api" / "admin").mkdir(exist_ok=True)
    (folder / "api" / "admin" / "settings").write_text(json.dumps({"home": str(folder)}))
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)

server._launch = answers

def pytest_configure(config):
    config.pluginmanager.register(EndsPrefect())
"""
TEST = """
import os
from pathlib import Path
from tests.shared_prefect import shared_folder, shared_server

def test_it(pytestconfig):
    assert shared_server(pytestconfig).url
    told = (shared_folder(pytestconfig) / "server.json").read_text()
    Path({folder!r}, os.environ["PYTEST_XDIST_WORKER"]).write_text(told)
"""


def test_two_workers_are_served_by_one_server_that_ends_with_the_run(tmp_path: Path) -> None:
    tests, told = tmp_path / "tests", tmp_path / "told"
    tests.mkdir()
    told.mkdir()
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "test_it.py").write_text(TEST.format(folder=str(told)))
    (tests / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "each", str(tests)]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, env=alone)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = (json.loads(path.read_text()) for path in told.iterdir())
    assert first == second
    assert not lives(first["pid"])


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
