"""Taking a study up again: what it needs on this machine."""

from __future__ import annotations

import os

from research.environments.record import requirements_of
from research.installation.backends import backend_of, require_backend
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.isolation.mode import Isolation, reopen, supervise
from research.planner import Planner
from research.planners.factory import make_planner
from research.proposals.flags import RequestedComparison
from research.scheduling.required_runs import all_over
from research.study.one_controller import require_here
from studies import EventLog, StudyState


def planner_again(home: Home, log: EventLog, state: StudyState) -> Planner:
    """Return the planner of a study that can go on here; raise StudyElsewhere or what its backend or planner lacks."""
    require_here(home, log, state)
    if not all_over(state):
        require_backend(backend_of(state))
    return make_planner(state.planner["name"], state.planner["model"], os.environ)


def isolation_again(home: Home, state: StudyState, note: Note) -> Isolation:
    """Return where a study's runs go on; what is left of one whose runs are over is judging, which needs no engine."""
    if all_over(state):
        return supervise(state.settings, os.environ, home)
    brought = RequestedComparison.of(state.settings).brought
    return reopen(state.settings, os.environ, home, note, lambda: requirements_of(brought))
