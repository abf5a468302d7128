"""A training that goes on from its last checkpoint, in processes that die where they are told to.

    python -m tests.swarm.backends.local.mortal FOLDER UPDATES JOB_JSON [step:N | sync:N]...

For each death one process, which kills itself with SIGKILL at its Nth optimiser step, before the weights change, or at
the Nth time it syncs a file of a checkpoint. All are forked from one that has imported torch and not used it yet.
Prints the signal that ended each. Batches depend on nothing but the weights.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarm.backends.local.learning import checkpoint
from swarm.backends.local.learning.learner import LocalLearner
from swarm.backends.local.model.policy import Policy
from swarm.job import Job
from tests.swarm.backends.local.batches import make_batch
from tests.swarm.backends.local.models import make_policy


def train(
    folder: Path, updates: int, job: Job, mortal: Callable[[LocalLearner], None] = lambda learner: None
) -> Policy:
    """Train up to version `updates`, with a checkpoint after each, and return the policy."""
    policy = make_policy()
    learner = LocalLearner(policy, job, {})
    if saved := sorted(folder.glob("step-*")):
        learner.load(saved[-1])
    mortal(learner)
    while policy.version < updates:
        learner.update(make_batch(policy, seed=policy.version, drift=0.05))
        learner.save(folder / f"step-{policy.version:03}")
    return policy


def _dying(what: str, number: int) -> Callable[[LocalLearner], None]:
    calls = itertools.count(1)

    def counted(plain: Any) -> Any:
        def call(*inputs: Any, **named: Any) -> Any:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*inputs, **named)

        return call

    def arm(learner: LocalLearner) -> None:
        where: Any = learner._optimizer if what == "step" else checkpoint
        name = "step" if what == "step" else "_sync"
        setattr(where, name, counted(getattr(where, name)))

    return arm


def _live(folder: Path, updates: int, job: Job, death: str) -> int:
    """Train in a process of its own; return the signal that ended it."""
    child = os.fork()
    if not child:
        what, number = death.split(":")
        train(folder, updates, job, _dying(what, int(number)))
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    FOLDER, UPDATES, JOB, *DEATHS = sys.argv[1:]
    for each in DEATHS:
        print(_live(Path(FOLDER), int(UPDATES), Job.model_validate_json(JOB), each))
