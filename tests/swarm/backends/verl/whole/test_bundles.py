"""Ranks and replicas that share GPUs, placed for real by a Ray that has two of them on paper."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_a_pair_sees_one_gpu_and_the_same_and_no_other_pair_does() -> None:
    command = [sys.executable, "-m", "tests.swarm.backends.verl.whole.bundled"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert sorted(said["ranks"]) == ["0", "1"]
    assert said["ranks"] == said["replicas"]
    assert said["refused"].startswith("verl.colocated: expected 1 GPUs that are free in the Ray cluster within 1 s")
