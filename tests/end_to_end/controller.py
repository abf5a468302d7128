"""A controller to be killed: `python -m tests.end_to_end.controller HOME` drives a study; its attempts are real."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from research.controller.controller import StudyController, drive
from research.controller.mirror import WandbMirror
from research.controller.options import make_mirror
from research.controller.session import hold_lease
from research.design.pricing import Pricing
from research.installation.home import Home
from sandboxes import ProcessSandbox
from studies import EventLog, StudyState, fold
from studies.log.event import row_of
from studies.proof import verify
from swarm.job import Job
from tests.research.banks import bank
from tests.research.fakes import ScriptedPlanner, create_study

STUDY = "s1"
EPISODES = 64
"""Of each evaluation by these studies, which are created with as many."""
BASE = Job(steps=30, backend="fake", episodes_per_step=16)
QUIET = bank(0.01, job=BASE, episodes=EPISODES)
"""So little noise that three seeds of each arm keep the default promise."""
PRICING = Pricing(lambda job: 5.0, parallel=2, overhead_s=0.0, basis="made up")


@contextmanager
def home_with_study(path: Path, **fields: Any) -> Iterator[Home]:
    home = Home.locate({"AJET_HOME": str(path)}).prepare()
    with closing(EventLog(home.database)) as log:
        create_study(log, STUDY, budget_s=3600.0, episodes=EPISODES, **fields)
    yield home
    for handle in ProcessSandbox(home.sandboxes).list():
        handle.stop(grace_s=1.0)


def state_of(home: Home) -> StudyState:
    with closing(EventLog(home.database)) as log:
        return fold(log.read(STUDY))


def check_results(home: Home, state: StudyState) -> None:
    assert state.status == "concluded"
    assert all(run.status == "collected" for run in state.runs.values())
    assert [verdict.n_control for verdict in state.verdicts] == [3]
    with closing(EventLog(home.database)) as log:
        assert verify(STUDY, [row_of(event) for event in log.read(STUDY)], home.study(STUDY)).drifts == ()


def make_loop(
    home: Home, log: EventLog, check: Callable[[], None] = lambda: None, mirror: WandbMirror | None = None
) -> StudyController:
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
    home = Home.locate({"AJET_HOME": str(path)}).prepare()
    log = EventLog(home.database)
    mirror = make_mirror(home, fold(log.read(STUDY)), print, print)
    with hold_lease(home, log, STUDY, lambda line: None) as lease, mirror or nullcontext():
        drive(make_loop(home, log, lease.check, mirror), [], threading.Event(), poll_s=0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
