"""The example of a cocktail, cut short: one tiny model, three client processes, shares that change half-way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = """{"episodes_per_step": 20, "group_size": 2, "lease_ttl_s": 60,
 "model": {"kind": "tiny", "hidden_size": 16, "layers": 1, "warm_start_steps": 2}}"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_batch_has_its_shares_before_and_after_they_change(tmp_path: Path) -> None:
    words = ("--steps", "6", "--slowness", "5", "--port", "0", "--home", "home", "--out", "plot", "--job", SMALL)
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "cocktail" / "run.py"), *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False,
        env={**os.environ, "AJET_SANDBOX": "process", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    batches = re.findall(r"^ +\d+   (\d+) / (\d+) / (\d+) ", ended.stdout, re.MULTILINE)
    assert len(batches) == 6
    assert set(batches[:3]) == {("4", "3", "3")}
    assert batches[-1] == ("2", "4", "4")
    assert (tmp_path / "plot.svg").stat().st_size > 1000
    assert "nothing is isolated" in ended.stderr, "where each client runs is said"
