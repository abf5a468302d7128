"""What a person does to a study from outside its controller: stop it, pause it, let it go on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from research.attempts.launcher import AttemptLauncher
from research.errors import StudyBusy
from research.installation.home import Home
from research.installation.slots import MachineSlots
from research.installation.tiny_model import Note
from research.isolation.mode import supervise
from research.scheduling.required_runs import attempts_running
from research.study.controller import now, stopping
from research.study.one_controller import controlling
from sandboxes import ProcessSandbox, SandboxError
from studies import EventLog, EventType, HeadMoved, RunState, StudyLog, StudyState
from studies.log.study_log import Change


def request_stop(
    home: Home, log: EventLog, study: str, reason: str = "stopped by the user", *, note: Note = lambda line: None
) -> bool:
    """Stop a study; return whether its attempts are ended by now.

    They are ended here when no controller works on it, else (False) by that controller's next tick. Those that run in
    another installation on the same database can only be ended from there, which `note` is told.
    """
    record = StudyLog(log, study)
    record.change(lambda state: stopping(state, reason), actor="user")
    running = list(attempts_running(record.state()))
    if running and not any(_is_here(home, study, run) for run in running):
        note(
            f"study {study} is stopped; its {len(running)} runs go on in another installation, not in {home.path}: the "
            "controller there ends them within seconds, or `ajet study stop` there if it was killed"
        )
        return False
    try:
        with controlling(home, log, study, note):
            stop_attempts(home, log, record)
    except StudyBusy:
        return False
    return True


def request_pause(log: EventLog, study: str, reason: str = "paused by the user") -> bool:
    """Pause a study: running attempts finish, none begins; return False where it is stopped, concluded or paused."""

    def pausing(state: StudyState) -> Change | None:
        still = state.paused_reason is not None or stopping(state, reason) is None
        return None if still else (EventType.STUDY_PAUSED, {"reason": reason})

    return StudyLog(log, study).change(pausing, actor="user") is not None


def request_continue(log: EventLog, study: str, command: Sequence[str] = ()) -> bool:
    """Let a paused study go on under the controller that works on it; return False where it is not paused."""

    def going_on(state: StudyState) -> Change | None:
        return None if state.paused_reason is None else (EventType.STUDY_RESUMED, {"command": list(command)})

    return StudyLog(log, study).change(going_on, actor="user") is not None


def stop_attempts(home: Home, log: EventLog, record: StudyLog) -> None:
    """End every attempt that runs. The caller holds the study's lease.

    Raises SandboxError for an attempt whose containers cannot be ended now; it counts as running until they are.
    """
    state = record.state()
    sandbox = ProcessSandbox(home.sandboxes)
    slots = MachineSlots(log, home, record.study, sandbox)
    runner = AttemptLauncher(home, record, sandbox, slots, now, supervise(state.settings, os.environ, home))
    slots.look([run.active.name for run in attempts_running(state) if run.active is not None])
    failed: SandboxError | None = None
    tried: set[str] = set()
    while left := [run for run in attempts_running(state) if run.run_id not in tried]:
        try:
            runner.stop(state, left[0], "stopped")
        except HeadMoved:  # a person's note, say
            state = record.state()
            continue
        except SandboxError as error:
            failed = error
        tried.add(left[0].run_id)
        state = record.state()
    if failed is not None:
        raise failed


def _is_here(home: Home, study: str, run: RunState) -> bool:
    """Return whether the attempt that runs was launched by this installation."""
    return run.active is not None and home.attempt(study, run.run_id, run.active.number).is_dir()
