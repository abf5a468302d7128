"""What a person does to a study from outside its controller: stop it, pause it, let it go on, answer what it asks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from research.attempts.launcher import AttemptLauncher
from research.errors import BadApproval, StudyBusy
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
from studies.log.study_state import ApprovalAnswer, AskedApproval
from studies.records.approval import Origin

MOST_NOTE = 1000


def request_stop(
    home: Home, log: EventLog, study: str, reason: str = "stopped by the user", *, note: Note = lambda line: None
) -> bool:
    """Stop a study; return whether its attempts are ended by now.

    They are ended here when no controller works on it, else (False) by that controller's next tick. Those that run in
    another installation on the same database can only be ended from there, which `note` is told.
    """
    record = StudyLog(log, study)
    record.change(lambda state: stopping(state, reason), actor="user")
    return end_attempts(home, log, record, note)


def end_attempts(home: Home, log: EventLog, record: StudyLog, note: Note = lambda line: None) -> bool:
    """End the attempts of a study that is stopped; return what `request_stop` does, and tell `note` the same."""
    study = record.study
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


def open_question(state: StudyState) -> AskedApproval:
    """Return what a study waits to have approved; raise BadApproval where nothing is asked, with what was answered."""
    if (asked := state.open_question) is not None:
        return asked
    last = f"; the last question was answered: {state.approvals[-1].said()}" if state.approvals else ""
    raise BadApproval(f"expected a study that waits for approval; {state.id} is {state.status} and asks nothing{last}")


def answer(record: StudyLog, digest: str, by: Origin, note: str = "", *, granted: bool) -> ApprovalAnswer:
    """Answer the question with this digest; of several answers one counts, and the others raise BadApproval.

    A denial stops the study; what runs is ended by its controller's next tick, or by `end_attempts`.
    """
    said = " ".join(note.split())
    if len(said) > MOST_NOTE:
        raise BadApproval(f"expected a note of at most {MOST_NOTE} characters; found {len(said)}")

    def answering(state: StudyState) -> Change:
        if (found := open_question(state)).digest != digest:
            raise BadApproval(
                f"study {state.id} asks something else by now: {found.question.would}; see: ajet study show {state.id}"
            )
        type = EventType.APPROVAL_GIVEN if granted else EventType.APPROVAL_DENIED
        return type, {"digest": digest, "by": by, "note": said}

    event = record.change(answering, actor="user")
    return next(entry for entry in record.state().approvals if entry.seq == event.seq)


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
