"""Ending whoever looks after a worker: it is waited for until it has ended, whether or not its parent has noticed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from research.installation.home import Home
from research.orchestration.server import record
from research.serving.containers.contained import ENVIRONMENT
from research.serving.supervision import LEAVING_S, WORKER, end_worker, working

WAITS = "import sys; print('here', flush=True); sys.stdin.read()"


def test_one_that_its_parent_has_not_reaped_is_not_waited_for(tmp_path: Path) -> None:
    home = Home.locate({"AJET_HOME": str(tmp_path)})
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        record(home.prefect / WORKER, process.pid)
        began = time.monotonic()
        assert end_worker(home)
        assert time.monotonic() - began < LEAVING_S, "it was a zombie by then"
        assert not end_worker(home), "nobody is left"


def test_keys_of_a_worker_of_containers_that_was_killed_are_removed_by_whoever_comes_next(tmp_path: Path) -> None:
    home = Home.locate({"AJET_HOME": str(tmp_path)}).prepare()
    keys = home.prefect / ENVIRONMENT
    home.prefect.mkdir(parents=True, exist_ok=True)
    keys.write_text("{}")
    assert not end_worker(home)
    assert not keys.exists()
    keys.write_text("{}")
    with working(home):
        assert not keys.exists()
