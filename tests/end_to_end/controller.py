"""A controller to be killed: `python -m tests.end_to_end.controller HOME` drives a study; its attempts are real."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from research.controller.controller import StudyController, drive
from research.controller.options import make_mirror
from research.controller.session import hold_lease
from research.controller.wandb import NO_MIRROR, LogMirror
from research.design.pricing import Pricing
from research.installation.home import Home
from sandboxes import ProcessSandbox
from studies import EventLog, fold
from swarm.job import Job
from tests.research.banks import bank
from tests.research.fakes import ScriptedPlanner

STUDY = "s1"
EPISODES = 64
"""Of each evaluation by these studies, which are created with as many."""
BASE = Job(steps=30, backend="fake", episodes_per_step=16)
QUIET = bank(0.01, job=BASE, episodes=EPISODES)
"""So little noise that three seeds of each arm keep the default promise."""
PRICING = Pricing(lambda job: 5.0, parallel=2, overhead_s=0.0, basis="made up")


def make_loop(
    home: Home,
    log: EventLog,
    check: Callable[[], None] = lambda: None,
    mirror: LogMirror = NO_MIRROR,
) -> StudyController:
    """Return the loop of a study in `home`: a scripted planner, everything else real."""
    return StudyController(
        home=home,
        log=log,
        study=STUDY,
        planner=ScriptedPlanner(environment="arith"),  # one call an episode
        sandbox=ProcessSandbox(home.sandboxes),
        pricing=PRICING,
        base=BASE,
        noise_bank=lambda log: QUIET,
        check=check,
        mirror=mirror,
    )


def main(path: Path) -> None:
    """Drive the study to its end."""
    home = Home.locate({"AJET_HOME": str(path)}).prepare()
    log = EventLog(home.database)
    mirror = make_mirror(home, fold(log.read(STUDY)), print, print)
    with hold_lease(home, log, STUDY, lambda line: None) as lease, mirror or nullcontext():
        drive(make_loop(home, log, lease.check, mirror or NO_MIRROR), [], threading.Event(), poll_s=0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
