"""The example of a cocktail, cut short: three client processes and shares that change half-way.

The backend is fake: which episodes make up a batch is the server's doing, whatever answers and learns. It steps at
once, so it is the market's client that gives the time in which shares change.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = '{"backend": "fake", "episodes_per_step": 20, "group_size": 2, "lease_ttl_s": 60}'


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_batch_has_its_shares_before_and_after_they_change(tmp_path: Path) -> None:
    words = ("--steps", "5", "--slowness", "20", "--port", "0", "--home", "home", "--out", "plot", "--job", SMALL)
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "cocktail" / "run.py"), *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False,
        env={**os.environ, "AJET_SANDBOX": "process", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    batches = re.findall(r"^ +\d+   (\d+) / (\d+) / (\d+) ", ended.stdout, re.MULTILINE)
    assert len(batches) == 5
    assert set(batches[:2]) == {("4", "3", "3")}
    assert batches[-1] == ("2", "4", "4")
    assert (tmp_path / "plot.svg").stat().st_size > 1000
    assert "nothing is isolated" in ended.stderr, "where each client runs is said"
