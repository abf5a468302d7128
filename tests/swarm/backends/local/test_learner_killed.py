"""A training that is killed, anywhere, and started again is the training that never was."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from swarm.backends.local.learning.checkpoint import read
from swarm.job import Job
from tests.swarm.backends.local.mortal import train

_UPDATES = 4
_STEPS = 4
"""Optimiser steps of an update."""
_SYNCS = 6
"""Files and folders that a checkpoint syncs."""


@pytest.mark.timeout(900)
def test_kill_9_within_an_update_and_within_a_save_changes_nothing_in_the_end(tmp_path: Path) -> None:
    rng = random.Random()
    job = Job(epochs=2, minibatches=2, lr_schedule="cosine", lr_warmup_steps=1, steps=6, kl_coef=0.01)
    step, sync = rng.randint(1, _STEPS * _UPDATES), rng.randint(1, _SYNCS)
    print(f"killed at optimiser step {step}, then at sync {sync}")
    expected = train(tmp_path / "straight", _UPDATES, job)
    folder = tmp_path / "killed"
    _die(folder, job, f"step:{step}", f"sync:{sync}")
    whole = len(list(folder.glob("step-*")))
    assert whole == (step - 1) // _STEPS + (sync == _SYNCS), "a checkpoint is there from the last sync's rename on"
    found = train(folder, _UPDATES, job)
    assert found.version == expected.version == _UPDATES
    twins = dict(found.model.named_parameters())
    assert all(torch.equal(weight, twins[name]) for name, weight in expected.model.named_parameters())
    for checkpoint in sorted((tmp_path / "straight").glob("step-*")):
        again = read(folder / checkpoint.name)
        for name, tensors in read(checkpoint).sets.items():
            assert all(torch.equal(value, again.sets[name][key]) for key, value in tensors.items())


def _die(folder: Path, job: Job, *deaths: str) -> None:
    command = [sys.executable, "-m", "tests.swarm.backends.local.mortal", str(folder), str(_UPDATES), job.canonical()]
    died = subprocess.run([*command, *deaths], capture_output=True, text=True, check=True)
    assert died.stdout.split() == [str(int(signal.SIGKILL))] * len(deaths)
