"""A process that trains again, with a Ray of its own each time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_a_second_ray_of_a_process_names_all_that_is_asked_apart_and_none_begins_by_the_way() -> None:
    command = [sys.executable, "-m", "tests.swarm.backends.verl.whole.again"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said == {"asked": 8, "named": 8, "waited": "RaySystemError", "begun": False}
