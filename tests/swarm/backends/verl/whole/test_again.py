"""A process that trains again, with a Ray of its own each time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_a_second_ray_of_a_process_names_all_that_its_threads_ask_for_apart() -> None:
    command = [sys.executable, "-m", "tests.swarm.backends.verl.whole.again"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == {"asked": 8, "named": 8}
