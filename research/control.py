"""Stopping a study from outside its controller."""

from __future__ import annotations

import os

from research.errors import StudyBusy
from research.home import Home
from research.needs import attempts_running
from research.runner import Runner
from research.sandboxing import supervise
from research.tick import now
from sandboxes import ProcessSandbox, SandboxError
from studies import EventLog, EventType, fold


def request_stop(home: Home, log: EventLog, study: str, reason: str = "stopped by the user") -> bool:
    """Stop a study; return whether its attempts are ended by now.

    They are ended here when no controller works on it, else (False) by that controller's next tick.
    """
    state = fold(log.read(study))
    if state.status not in ("stopped", "concluded"):
        log.append(study, EventType.STUDY_STOPPED, {"reason": reason}, actor="user")
    try:
        with home.attempts_lock(study):
            stop_attempts(home, log, study)
    except StudyBusy:
        return False
    return True


def stop_attempts(home: Home, log: EventLog, study: str) -> None:
    """End every attempt that runs. The caller holds the lock of the study's attempts.

    Raises SandboxError for an attempt whose containers cannot be ended now; it counts as running until they are.
    """
    state = fold(log.read(study))
    runner = Runner(home, log, study, ProcessSandbox(home.sandboxes), now, supervise(state.settings, os.environ, home))
    failed: SandboxError | None = None
    for run in attempts_running(state):
        try:
            runner.stop(state, run, "stopped")
        except SandboxError as error:
            failed = error
    if failed is not None:
        raise failed
