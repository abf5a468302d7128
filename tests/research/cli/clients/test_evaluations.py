"""`ajet client run --evaluations` beside a client that trains: the best checkpoint is kept without a line of code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.installation.server_process import SwarmProcess, start_swarm, stop_swarm
from swarm.client import SwarmClient
from swarm.job import Job
from tests.research.cli.conftest import Ajet

SMALL = {"backend": "fake", "steps": 4, "episodes_per_step": 4, "group_size": 2, "environment": "arith"}


@pytest.fixture
def server(home: Path) -> Iterator[SwarmProcess]:
    found = start_swarm(home / "swarm", models=home / "models", port=0)
    yield found
    stop_swarm(found)


def test_evaluations_are_played_whenever_training_waits_until_it_is_finished(
    ajet: Ajet, home: Path, server: SwarmProcess
) -> None:
    with SwarmClient(server.url, server.admin_token) as client:
        client.ensure_training(Job.model_validate({**SMALL, "eval_every": 2, "evaluation_episodes": 5}))
        command = [sys.executable, "-m", "research", "client", "run", "--evaluations", "--json"]
        beside = subprocess.Popen(
            command, env={**os.environ, "AJET_HOME": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            trained = ajet("client", "run", "--concurrency", "4")
            out, err = beside.communicate(timeout=400)
        finally:
            beside.kill()
            beside.wait()
        assert trained.code == 0, trained.err
        assert beside.returncode == 0, err
        status, kept = client.status(), client.checkpoints()
    evaluations = json.loads(out)["result"]["evaluations"]
    assert [(one["policy_version"], len(one["episodes"])) for one in evaluations] == [(2, 5), (4, 5)]
    assert {one["split"] for one in evaluations} == {"search"}, "hidden tasks are for verdicts"
    assert status.finished
    assert status.best is not None
    means = {one["policy_version"]: sum(play["success"] for play in one["episodes"]) / 5 for one in evaluations}
    assert (status.best.success, status.best.episodes) == (means[status.best.step], 5)
    assert status.best.success == max(means.values())
    assert kept.best == status.best
    assert status.best.step in {one.step for one in kept.checkpoints}


def test_what_cannot_be_evaluated_so_is_one_line(ajet: Ajet, server: SwarmProcess) -> None:
    with SwarmClient(server.url, server.admin_token) as client:
        client.ensure_training(Job.model_validate(SMALL))
    ended = ajet("client", "run", "--evaluations")
    assert (ended.code, "has no eval_every" in ended.line) == (2, True)
    ended = ajet("client", "run", "--evaluations", "--eval")
    assert (ended.code, "found both" in ended.line) == (2, True)
    for beside in (["--evaluations"], []):
        ended = ajet("client", "run", *beside, "--episodes", "5")
        assert (ended.code, "expected --episodes with --eval; found it with" in ended.line) == (2, True)
