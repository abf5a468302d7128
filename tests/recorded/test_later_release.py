"""The release after this one: what is recorded here opens and goes on there, though its job has changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOING_ON = "verif or goes_on_to_its_verdict"


@pytest.mark.slow
@pytest.mark.parametrize(("tests", "chosen"), [("test_servers.py", ""), ("test_homes.py", GOING_ON)])
def test_a_later_release_goes_on_with_what_was_recorded(tests: str, chosen: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.recorded.later_release"]
    command += ["-p", "no:cacheprovider", "-k", chosen, str(HERE / tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
