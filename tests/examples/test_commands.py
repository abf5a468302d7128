"""The examples that are commands, cut short: shares that change, code that changes, tools and a judge that fail."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.installation.servers import start_swarm, stop_swarm
from swarm.client import SwarmClient
from swarm.job import Job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 600.0
SMALL = '{"backend": "fake", "episodes_per_step": 20, "group_size": 2, "lease_ttl_s": 60}'


def run(*words: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AJET_")} | variables
    ended = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=env
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended


@pytest.mark.timeout(900)
def test_every_batch_of_a_cocktail_has_its_shares_before_and_after_they_change(tmp_path: Path) -> None:
    words = ("--steps", "5", "--slowness", "20", "--port", "0", "--home", "home", "--out", "plot", "--job", SMALL)
    script = str(EXAMPLES / "cocktail" / "run.py")
    ended = run(script, *words, cwd=tmp_path, AJET_SANDBOX="process", PYTHONPATH=str(ROOT))
    batches = re.findall(r"^ +\d+   (\d+) / (\d+) / (\d+) ", ended.stdout, re.MULTILINE)
    assert (len(batches), set(batches[:2]), batches[-1]) == (5, {("4", "3", "3")}, ("2", "4", "4"))
    assert (tmp_path / "plot.svg").stat().st_size > 1000
    assert "nothing is isolated" in ended.stderr  # where each client runs is said


def test_an_agent_is_mended_while_it_trains() -> None:
    """A broken edit between the two is shown and waited out; what the draft left open may be 0 plays."""
    ended = run(str(EXAMPLES / "live_iteration" / "iterate.py"), "--steps", "1", "--backend", "fake")
    assert "NameError: name 'load_examples'" in ended.stderr
    told = re.findall(r"^code ([0-9a-f]{12})   (\d+) plays, solved [0-9.]+, (\d+) fenced", ended.stdout, re.MULTILINE)
    assert (len(told), len({code for code, _, _ in told})) == (2, 2)
    assert int(told[1][2]) == 0, "nothing replaced the mended code"
    assert all(int(plays) >= 64 for _, plays, _ in told)


@contextlib.contextmanager
def judge(*options: str) -> Iterator[str]:
    command = [sys.executable, str(EXAMPLES / "unreliable" / "judge.py"), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_an_agent_with_broken_tools_and_a_rate_limited_judge_trains_to_the_end(tmp_path: Path) -> None:
    server = start_swarm(tmp_path / "swarm", models=tmp_path / "models", port=0)
    try:
        small = {"backend": "fake", "steps": 3, "episodes_per_step": 16, "group_size": 4, "environment": "arith"}
        with SwarmClient(server.url, server.admin_token) as control, judge("--a-second", "5") as address:
            control.ensure_training(Job.model_validate(small))
            options = ("--restart", "--timeout", "5", "--sandbox", "process", "--env", f"JUDGE={address}", "--json")
            words = ("-m", "research", "client", "run", str(EXAMPLES / "unreliable"), *options)
            ended = run(*words, AJET_HOME=str(tmp_path))
            assert control.status().finished
    finally:
        stop_swarm(server)
    dropped = json.loads(ended.stdout)["result"]["dropped"]
    assert dropped["rate_limited"] > 0  # more than 5 a second are played
    assert "rate-limited: HTTPError" in ended.stderr
