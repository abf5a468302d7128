"""What a person changes of a study in the open: amendments of the lock, and vetoes of hypotheses, as events.

Both may come at any time and from any process; the controller sees them at its next step. Here they are refused, in one
line, where they could change nothing as the study stands when they are written.
"""

from __future__ import annotations

from functools import partial

from pydantic import ValidationError

from research.durations import format_seconds
from research.errors import BadAmendment
from research.results.failure_codes import INVALID_CODES
from research.validation import describe
from studies import Event, EventType, StudyLog, StudyState
from studies.checks.confounds import VIOLATION_CODES
from studies.log.study_log import Change
from studies.records.design_parts import Amendment

ACCEPTABLE = tuple(sorted(VIOLATION_CODES | set(INVALID_CODES)))
"""What an amendment can accept: violations of the confound linter, and ends of runs."""
MOST_REASON = 1000


def accept(record: StudyLog, code: str, reason: str | None) -> Event:
    """Let a violation, or the end of a run that the lock does not exclude, pass."""
    if code not in ACCEPTABLE:
        raise BadAmendment(f"expected --accept with one of {', '.join(ACCEPTABLE)}; found {code[:60]!r}")

    def accepting(state: StudyState) -> Change:
        if any(entry.amendment.target == code for entry in state.amendments):
            raise BadAmendment(f"{code} is accepted already in study {state.id}; there is nothing more to accept")
        return _amendment(state, "accept", reason, target=code)

    return record.change(accepting, actor="user")


def extend(record: StudyLog, seconds: float, reason: str | None) -> Event:
    """Replace the wall-clock budget: by no less than is used, or whoever watches could say when a look is taken."""

    def extending(state: StudyState) -> Change:
        if seconds < state.worked_s:
            raise BadAmendment(
                f"expected a budget of at least the {format_seconds(state.worked_s)} that study {state.id} has used; "
                f"found {format_seconds(seconds)}. To end it now: ajet study stop {state.id}"
            )
        if seconds == state.budget_s:
            raise BadAmendment(f"study {state.id} has a budget of {format_seconds(seconds)} already; name another")
        return _amendment(state, "budget", reason, value=seconds)

    return record.change(extending, actor="user")


def note(record: StudyLog, text: str) -> Event:
    """Write down what a reader of the report should know; it changes nothing, and may be said of a finished study."""
    return record.change(partial(_amendment, kind="note", reason=text), actor="user")


def veto(record: StudyLog, hypothesis: str, reason: str | None) -> Event:
    """Give a hypothesis up: no more runs for it, and a verdict on what is there."""
    return record.change(partial(_veto, hypothesis=hypothesis, reason=reason), actor="user")


def _veto(state: StudyState, hypothesis: str, reason: str | None) -> Change:
    known = [entry.id for entry in state.hypotheses]
    if hypothesis not in known:
        raise BadAmendment(
            f"expected a hypothesis of study {state.id}: {', '.join(known) or 'none is proposed yet'}; "
            f"found {hypothesis[:60]!r}"
        )
    if hypothesis in state.vetoed:
        raise BadAmendment(f"hypothesis {hypothesis} was vetoed before: {state.vetoed[hypothesis].reason}")
    _require_open(state, "a veto")
    if state.is_settled(hypothesis):
        raise BadAmendment(f"hypothesis {hypothesis} is settled already; there are no runs left to spare")
    return EventType.HYPOTHESIS_VETOED, {"hypothesis": hypothesis, "reason": _reason(reason)}


def _amendment(
    state: StudyState, kind: str, reason: str | None, *, target: str = "", value: float | None = None
) -> Change:
    if state.design is None and kind != "budget" and not (kind == "note" and state.takes_notes):
        raise BadAmendment(f"study {state.id} has no locked design yet; there is nothing to amend but its budget")
    if kind != "note":
        _require_open(state, f"an amendment of the {'lock' if kind == 'accept' else 'budget'}")
    lowers = value is not None and value < state.budget_s
    values = {"kind": kind, "target": target, "value": value, "reason": _reason(reason), "lowers": lowers}
    try:
        amendment = Amendment.model_validate(values)
    except ValidationError as error:
        raise BadAmendment(f"expected an amendment; found one that is none: {describe(error)}") from error
    return EventType.DESIGN_AMENDED, {"amendment": amendment.model_dump(mode="json")}


def _require_open(state: StudyState, what: str) -> None:
    if state.concluded_reason is not None:
        raise BadAmendment(
            f"study {state.id} is concluded: {what} changes nothing any more; a note may be added, --note"
        )


def _reason(text: str | None) -> str:
    said = (text or "").strip()
    if not 1 <= len(said) <= MOST_REASON:
        found = f"{len(said)} characters" if said else "none"
        raise BadAmendment(f"expected a reason of 1 to {MOST_REASON} characters, for the report; found {found}")
    return said
