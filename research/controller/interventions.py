"""What a person does to a study, as events: stop, pause, amend, veto, note, approve.

Here they are refused, in one line, where they could change nothing as the study stands when they are written.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from research.controller.controller import build_stop_event, now
from research.controller.session import capacity_of, hold_lease
from research.errors import BadInput
from research.installation import machine
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.isolation.mode import supervise
from research.models.fetch import check_loader
from research.runs.launcher import AttemptLauncher
from research.scheduler.required_runs import attempts_running
from research.text import format_seconds, strip_control_chars
from sandboxes import ProcessSandbox, SandboxError
from studies import Event, EventLog, EventType, HeadMoved, LeaseHeld, StudyLog, StudyState, fold
from studies.checks.confounders import VIOLATION_CODES
from studies.log.entries import ApprovalAnswer, LoggedApprovalRequest
from studies.log.event_log import Change
from studies.log.fold import WORKED
from studies.proof.verify import before_report
from studies.records.procedure import Amendment
from studies.records.runs import INVALID_CODES
from studies.records.verdict import Origin
from studies.report import build_report
from studies.report.build import Report, file_hashes

ACCEPTABLE = tuple(sorted(VIOLATION_CODES | set(INVALID_CODES)))
"""What an amendment can accept: violations of the confound linter, and ends of runs."""
MOST_REASON = 1000
MOST_NOTE = 1000


def accept_violation(record: StudyLog, code: str, reason: str | None) -> Event:
    """Let a violation, or the end of a run that the lock does not exclude, pass."""
    if code not in ACCEPTABLE:
        raise BadInput(f"expected --accept with one of {', '.join(ACCEPTABLE)}; found {code[:60]!r}")

    def make_change(state: StudyState) -> Change:
        if any(entry.amendment.target == code for entry in state.amendments):
            raise BadInput(f"{code} is accepted already in study {state.id}; there is nothing more to accept")
        return _make_amendment(state, "accept", reason, target=code)

    return record.change(make_change, actor="user")


def read_budget(home: Home, state: StudyState, text: str) -> float:
    """Return the seconds of a budget of time, hours of devices or money, by what a study holds here; BadInput."""
    return machine.read_budget(home, text, capacity_of(state, check_loader(home.models)))


def change_budget(record: StudyLog, seconds: float, reason: str | None) -> Event:
    """Replace the wall-clock budget: by no less than is used, or whoever watches could say when a look is taken."""

    def make_change(state: StudyState) -> Change:
        if seconds < state.worked_s:
            raise BadInput(
                f"expected a budget of at least the {format_seconds(state.worked_s)} that study {state.id} has used; "
                f"found {format_seconds(seconds)}. To end it now: ajet study stop {state.id}"
            )
        if seconds == state.budget_s:
            raise BadInput(f"study {state.id} has a budget of {format_seconds(seconds)} already; name another")
        return _make_amendment(state, "budget", reason, value=seconds)

    return record.change(make_change, actor="user")


def add_note(record: StudyLog, text: str, **challenge: Any) -> Event:
    """Write down what a reader of the report should know; it changes nothing, and may be said of a finished study. A
    `challenge` names a `claim` that has a verdict, and the `evidence` against it."""
    return record.change(partial(_make_amendment, kind="note", reason=text, **challenge), actor="user")


def veto_hypothesis(record: StudyLog, hypothesis: str, reason: str | None) -> Event:
    def make_change(state: StudyState) -> Change:
        known = [entry.id for entry in state.hypotheses]
        if hypothesis not in known:
            raise BadInput(
                f"expected a hypothesis of study {state.id}: {', '.join(known) or 'none is proposed yet'}; "
                f"found {hypothesis[:60]!r}"
            )
        if hypothesis in state.vetoed:
            raise BadInput(f"hypothesis {hypothesis} was vetoed before: {state.vetoed[hypothesis].reason}")
        _require_open(state, "a veto")
        if state.is_settled(hypothesis):
            raise BadInput(f"hypothesis {hypothesis} is settled already; there are no runs left to spare")
        return EventType.HYPOTHESIS_VETOED, {"hypothesis": hypothesis, "reason": _check_reason(reason)}

    return record.change(make_change, actor="user")


def _make_amendment(
    state: StudyState, kind: str, reason: str | None, *, value: float | None = None, **named: Any
) -> Change:
    if state.design is None and kind != "budget" and not (kind == "note" and state.takes_notes):
        raise BadInput(f"study {state.id} has no locked design yet; there is nothing to amend but its budget")
    if kind != "note":
        _require_open(state, f"an amendment of the {'lock' if kind == 'accept' else 'budget'}")
    lowers = value is not None and value < state.budget_s
    values = {"kind": kind, "value": value, "reason": _check_reason(reason), "lowers": lowers, **named}
    amendment = Amendment.model_validate(values)
    return EventType.DESIGN_AMENDED, {"amendment": amendment.model_dump(mode="json")}


def _require_open(state: StudyState, what: str) -> None:
    if state.concluded_reason is not None:
        noted = f"ajet study amend {state.id} --note '...'"
        raise BadInput(f"study {state.id} is concluded: {what} changes nothing any more; a note may be added: {noted}")


def _check_reason(text: str | None) -> str:
    said = strip_control_chars(text or "").strip()
    if not 1 <= len(said) <= MOST_REASON:
        found = f"{len(said)} characters" if said else "none"
        raise BadInput(f"expected a reason of 1 to {MOST_REASON} characters, for the report; found {found}")
    return said


def request_stop(
    home: Home, log: EventLog, study: str, reason: str = "stopped by the user", *, note: Note = lambda line: None
) -> bool:
    """Stop a study; return whether its attempts are ended by now, else the controller at work ends them."""
    record = StudyLog(log, study)
    record.change(lambda state: build_stop_event(state, reason), actor="user")
    return end_attempts(home, log, record, note)


def end_attempts(home: Home, log: EventLog, record: StudyLog, note: Note = lambda line: None) -> bool:
    """End every attempt that runs, unless a controller works; raise SandboxError for one that cannot be ended now."""
    study = record.study
    running = list(attempts_running(record.state()))
    folders = [home.attempt(study, run.run_id, run.active.number) for run in running if run.active is not None]
    if running and not any(folder.is_dir() for folder in folders):
        note(
            f"study {study} is stopped; its {len(running)} runs go on in another installation, not in {home.path}: the "
            "controller there ends them within seconds, or `ajet study stop` there if it was killed"
        )
        return False
    try:
        with hold_lease(home, log, study, note):
            record = StudyLog(log, study, store=home.files.push)
            state = record.state()
            sandbox = ProcessSandbox(home.sandboxes)
            slots = machine.MachineSlots(log, home, study, sandbox)
            runner = AttemptLauncher(home, record, sandbox, slots, now, supervise(state.settings, os.environ, home))
            slots.poll([run.active.name for run in attempts_running(state) if run.active is not None])
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
    except LeaseHeld:
        return False
    return True


def request_pause(log: EventLog, study: str, reason: str = "paused by the user") -> bool:
    """Pause a study: running attempts finish, none begins; return False where it is stopped, concluded or paused."""

    def make_change(state: StudyState) -> Change | None:
        still = state.paused_reason is not None or build_stop_event(state, reason) is None
        return None if still else (EventType.STUDY_PAUSED, {"reason": reason})

    return StudyLog(log, study).change(make_change, actor="user") is not None


def request_continue(log: EventLog, study: str, command: Sequence[str] = ()) -> bool:
    """Let a paused study go on under the controller that works on it; return False where it is not paused."""
    record, resumed = StudyLog(log, study), (EventType.STUDY_RESUMED, {"command": list(command)})
    return record.change(lambda state: None if state.paused_reason is None else resumed, actor="user") is not None


def require_question(state: StudyState) -> LoggedApprovalRequest:
    """Return what a study waits to have approved; raise BadInput where nothing is asked, with what was answered."""
    if (asked := state.open_question) is not None:
        return asked
    last = f"; the last question was answered: {state.approvals[-1].describe()}" if state.approvals else ""
    raise BadInput(f"expected a study that waits for approval; {state.id} is {state.status} and asks nothing{last}")


def answer_question(record: StudyLog, digest: str, by: Origin, note: str = "", *, granted: bool) -> ApprovalAnswer:
    """Answer the question with this digest; of several answers one counts, and the others raise BadInput. A denial
    stops the study; what runs is ended by its controller's next tick, or by `end_attempts`."""
    said = " ".join(note.split())
    if len(said) > MOST_NOTE:
        raise BadInput(f"expected a note of at most {MOST_NOTE} characters; found {len(said)}")

    def make_change(state: StudyState) -> Change:
        if (found := require_question(state)).digest != digest:
            raise BadInput(
                f"study {state.id} asks something else by now: {found.question.would}; see: ajet study show {state.id}"
            )
        type = EventType.APPROVAL_GIVEN if granted else EventType.APPROVAL_DENIED
        return type, {"digest": digest, "by": by, "note": said}

    event = record.change(make_change, actor="user")
    return next(entry for entry in record.state().approvals if entry.seq == event.seq)


def build_report_again(home: Home, log: EventLog, study: str) -> Report:
    """Build a study's report of all that happened before a report did, which the log is to know; raise ReportError."""
    record = StudyLog(log, study, store=home.files.push)
    while True:
        home.files.pull(log, study)
        state = record.state()
        shown = fold(before_report(log.read(study)[: state.event_count]))
        made = build_report(replace(shown, newest_report=state.newest_report), home.study(study))
        payload = made.payload()
        with suppress(HeadMoved):
            if file_hashes(state.newest_report) != file_hashes(payload):
                record.append(EventType.REPORT_BUILT, {**payload, WORKED: 0.0}, actor="user")
            return made
