"""The examples of code that changes and of tools that fail, cut short."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from research.installation.server_process import start_swarm, stop_swarm
from swarm.client import SwarmClient
from swarm.job import Job

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 600.0


def without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AJET_")}


def test_an_agent_is_mended_while_it_trains() -> None:
    """A broken edit between the two is shown and waited out.

    What the draft left open when it was replaced is fenced (`tests/swarm/client/test_code_labels.py`): 0 plays where
    the last ones had just ended, which an engine that answers at once makes as likely as not.
    """
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "live_iteration" / "iterate.py"), "--steps", "1", "--backend", "fake"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=without_settings(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "NameError: name 'load_examples' is not defined" in ended.stderr
    told = re.findall(r"^code ([0-9a-f]{12})   (\d+) plays, solved [0-9.]+, (\d+) fenced", ended.stdout, re.MULTILINE)
    assert len(told) == 2
    assert len({code for code, _, _ in told}) == 2
    assert int(told[1][2]) == 0, "nothing replaced the mended code"
    assert all(int(plays) >= 64 for _, plays, _ in told)


@contextlib.contextmanager
def judge(*options: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "unreliable" / "judge.py"), "--port", "0", *options],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
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
            options = ["--restart", "--timeout", "5", "--sandbox", "process", "--env", f"JUDGE={address}", "--json"]
            ended = subprocess.run(
                [sys.executable, "-m", "research", "client", "run", str(EXAMPLES / "unreliable"), *options],
                capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                env={**without_settings(), "AJET_HOME": str(tmp_path)},
            )  # fmt: skip
            assert ended.returncode == 0, ended.stderr
            assert control.status().finished
    finally:
        stop_swarm(server)
    dropped = json.loads(ended.stdout)["result"]["dropped"]
    assert dropped["rate_limited"] > 0, "more than 5 a second are played"
    assert "rate-limited: HTTPError: HTTP Error 429" in ended.stderr
