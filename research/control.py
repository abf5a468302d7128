"""Stopping a study from outside its controller."""

from __future__ import annotations

from research.errors import StudyBusy
from research.home import Home
from research.runner import Runner
from research.steps import attempts_running
from research.tick import now
from sandboxes import ProcessSandbox
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
    """End every attempt that runs. The caller holds the lock of the study's attempts."""
    runner = Runner(home, log, study, ProcessSandbox(home.sandboxes), now)
    for run in attempts_running(fold(log.read(study))):
        runner.stop(run, "stopped")
