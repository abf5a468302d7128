"""The state of a study as a pure fold of its events: one small rule for each type of event.

`fold` gives the same state for the same events, on any machine, at any time. It refuses (LogCorrupt, naming the
event) what cannot follow the events before it, such as a run under another design's hash: a log that contradicts itself
has no trustworthy reading. A verdict stays in `StudyState.verdicts` only while the data it was computed from are
unchanged: a later measurement or invalidation moves it to `superseded`, a later look to `interim`. A report stays in
`StudyState.report` only while nothing happens after it. `Folding` takes events as they come, for a reader that follows
a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from pydantic import ValidationError

from studies.log import approval_events, claim_events, run_events
from studies.log.builder import ImpossibleEvent, Payload, StateBuilder
from studies.log.event import Event, EventType
from studies.log.study_state import (
    Amended,
    AttemptState,
    Decision,
    PlannerAct,
    PlannerNote,
    RunState,
    Stamp,
    StudyState,
    Veto,
)
from studies.records.errors import LogCorrupt, UnknownStudy
from studies.records.planner_words import PlannerWords

WORKED: Final = "worked_s"
"""Key of a payload, of any type of event: seconds that its controller worked since its last event."""
SERVED: Final = "served"
"""Key of the payload of an event that begins work on a study: whether a worker does it."""

__all__ = [
    "Amended", "AttemptState", "Decision", "Folding", "PlannerAct", "RunState", "Stamp", "StudyState", "Veto", "fold",
]  # fmt: skip


def fold(events: Sequence[Event]) -> StudyState:
    """Return the state that `events` (one study's log from its first event) lead to.

    Raise UnknownStudy when there are no events, LogCorrupt naming the first event that cannot follow.
    """
    folding = Folding()
    folding.add(events)
    return folding.state()


class Folding:
    """A fold that goes on: add events as they come, oldest first. After a LogCorrupt it is of no use any more."""

    def __init__(self) -> None:
        self._builder = StateBuilder()

    def add(self, events: Iterable[Event]) -> None:
        """Take the next events; raise LogCorrupt naming the first one that cannot follow."""
        for event in events:
            _apply(self._builder, event)

    def copy(self) -> Folding:
        """Return a fold that goes on by itself from here."""
        other = Folding()
        other._builder = self._builder.copy()
        return other

    @property
    def worked_s(self) -> float:
        """Seconds worked so far, as in the state."""
        return self._builder.worked_s

    @property
    def at_rest(self) -> bool:
        """Whether the study is stopped or paused, and nothing of it runs."""
        halted = self._builder.stopped_reason is not None or self._builder.paused_reason is not None
        return halted and not any(run.active for run in self._builder.runs.values())

    def state(self) -> StudyState:
        """Return the state so far; UnknownStudy before the first event."""
        if not self._builder.event_count:
            raise UnknownStudy("a study's state needs at least its first event; found none")
        return _freeze(self._builder)


def _apply(builder: StateBuilder, event: Event) -> None:
    try:
        _check_order(builder, event)
        _pass_time(builder, event)
        builder.report = None
        _RULES[event.type](builder, event, {name: event.payload[name] for name in event.payload if name != WORKED})
        if event.type not in (EventType.STUDY_RESUMED, EventType.STUDY_WORKED):
            builder.fruitless = 0
        builder.last_ts, builder.event_count, builder.head_hash = event.ts, event.seq, event.hash
    except ImpossibleEvent as error:
        raise LogCorrupt(event.study, event.seq, event.type.value, str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        difference = f"its payload is not a valid record: {place or error.title}: {first['msg']}"
        raise LogCorrupt(event.study, event.seq, event.type.value, difference) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        difference = f"its payload lacks what it must hold ({type(error).__name__}: {error})"
        raise LogCorrupt(event.study, event.seq, event.type.value, difference) from error


def _check_order(builder: StateBuilder, event: Event) -> None:
    first = event.type is EventType.STUDY_CREATED
    if first != (not builder.created):
        raise ImpossibleEvent("expected exactly one study.created, as the first event")
    if builder.id and event.study != builder.id:
        raise ImpossibleEvent(f"expected an event of study {builder.id}")
    if builder.concluded_reason is not None and event.type not in _AFTER_CONCLUSION:
        raise ImpossibleEvent("the study was concluded before; expected no further planning, runs or verdicts")


def _pass_time(builder: StateBuilder, event: Event) -> None:
    """Count the seconds that a controller worked; in older logs, which lack them, those since the last event."""
    worked = event.payload.get(WORKED)
    if worked is not None:
        if isinstance(worked, bool) or not isinstance(worked, int | float) or worked < 0:
            raise ImpossibleEvent(f"expected {WORKED} to be seconds, at least 0; found {worked!r}")
        builder.measured = True
        builder.worked_s += worked
    elif builder.last_ts and not builder.measured and not _follows_a_wait(builder, event):
        gap = datetime.fromisoformat(event.ts) - datetime.fromisoformat(builder.last_ts)
        builder.worked_s += max(0.0, gap.total_seconds())


def _follows_a_wait(builder: StateBuilder, event: Event) -> bool:
    """Return whether the time before an event was a wait: one before a stop, a pause or a resumption, or before an
    amendment or veto of a study that had ended.
    """
    if event.type in (EventType.STUDY_STOPPED, EventType.STUDY_PAUSED, EventType.STUDY_RESUMED):
        return True
    still = builder.stopped_reason is not None or builder.concluded_reason is not None
    return still and event.type in (EventType.DESIGN_AMENDED, EventType.HYPOTHESIS_VETOED)


def _freeze(builder: StateBuilder) -> StudyState:
    return StudyState(
        **{name: getattr(builder, name) for name in _COPIED},
        runs=dict(builder.runs),
        candidates=dict(builder.candidates),
        vetoed=dict(builder.vetoed),
        decided=dict(builder.decided),
        contexts=dict(builder.contexts),
        judged_short=dict(builder.judged_short),
        prepared=dict(builder.prepared),
        hypotheses=tuple(builder.hypotheses.values()),
        verdicts=tuple(builder.verdicts.values()),
        replications=tuple(builder.replications.values()),
        amendments=tuple(builder.amendments),
        interim=tuple(builder.interim),
        superseded=tuple(builder.superseded),
        decisions=tuple(builder.decisions),
        planner_acts=tuple(builder.planner_acts),
        notebook=tuple(builder.notebook),
        questions=tuple(builder.questions),
        approvals=tuple(builder.approvals),
        explorations=tuple(builder.explorations),
    )


def _created(builder: StateBuilder, event: Event, payload: Payload) -> None:
    builder.id, builder.created = event.study, event.ts
    builder.topic = str(payload["topic"])
    builder.planner, builder.settings = dict(payload["planner"]), dict(payload["settings"])
    builder.command = payload["command"]
    builder.served = bool(payload.get(SERVED, False))
    builder.versions, builder.machine = dict(payload["versions"]), dict(payload["machine"])


def _planner_acted(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """The planner took a turn."""
    act = PlannerAct(
        action=str(payload["action"]),
        tries=int(payload["tries"]),
        tokens=dict(payload["tokens"]),
        rejected=tuple(str(error) for error in payload["rejected"]),
        note=str(payload["note"] or ""),
        not_tested=tuple(str(text) for text in payload.get("not_tested", ())),
        turn=str(payload.get("turn", "")),
        looks=tuple(dict(look) for look in payload.get("looks", ())),
    )
    builder.planner_acts.append(act)


def _planner_noted(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """The planner keeps a thought, or revises one that it kept."""
    about = str(payload.get("about", ""))
    if about and about not in {entry.id for entry in builder.notebook}:
        raise ImpossibleEvent(f"expected an idea of the planner's notebook to revise; found {about!r}")
    _keep(builder, event, payload, "revise" if about else "note")


def _planner_asked(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """The planner asks the user something."""
    _keep(builder, event, payload, "ask")


def _keep(builder: StateBuilder, event: Event, payload: Payload, kind: Literal["note", "revise", "ask"]) -> None:
    note = PlannerNote(
        kind=kind,
        text=str(payload["text"]),
        round=builder.round,
        seq=event.seq,
        ts=event.ts,
        turn=str(payload["turn"]),
        index=int(payload["index"]),
        about=str(payload.get("about", "")),
        reason=str(payload.get("reason", "")),
    )
    if any((entry.turn, entry.index) == (note.turn, note.index) for entry in builder.notebook):
        raise ImpossibleEvent(f"note {note.index} of the turn {note.turn} was kept before")
    builder.notebook.append(note)


def _round_begun(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """The round is over and the next one begins: its question is asked on what is known by now."""
    over = _freeze(builder)
    number, previous = int(payload["number"]), str(payload["previous"])
    if over.design is None or over.design_hash != previous:
        raise ImpossibleEvent(f"expected a round after the lock {str(over.design_hash)[:12]}; found {previous[:12]}")
    if number != over.round + 1 or number > over.most_rounds:
        raise ImpossibleEvent(f"expected round {over.round + 1} of {over.most_rounds}; found {number}")
    if open_claims := builder.open_claims():
        raise ImpossibleEvent(f"expected a round whose claims are settled; found {', '.join(open_claims)} open")
    if any(run.active for run in over.runs.values()):
        raise ImpossibleEvent("expected a round of which nothing runs any more; found an attempt that does")
    builder.begin_round(over, str(payload.get("why", "")), int(payload.get("try", 0)))


def _model_prepared(builder: StateBuilder, event: Event, payload: Payload) -> None:
    compared = (
        {"models": payload["models"]} if "models" in payload else {}
    )  # earlier versions named the control's alone
    prepared = {"sha256": payload["sha256"], "seconds": float(payload["seconds"]), **compared}
    phase = str(payload.get("phase", "confirm"))
    builder.prepared[phase] = prepared
    if phase == "confirm" or builder.model is None:
        builder.model = prepared


def _worked(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """Nothing changes but the seconds worked, which are counted with every event."""


def _paused(builder: StateBuilder, event: Event, payload: Payload) -> None:
    if builder.stopped_reason is not None:
        raise ImpossibleEvent("the study is stopped; expected nothing to pause")
    builder.paused_reason = builder.paused_reason or str(payload["reason"])


def _stopped(builder: StateBuilder, event: Event, payload: Payload) -> None:
    builder.stopped_reason, builder.stopped_seq = str(payload["reason"]), event.seq
    builder.paused_reason = None


def _resumed(builder: StateBuilder, event: Event, payload: Payload) -> None:
    was_paused = builder.paused_reason is not None
    builder.resumed_count += not was_paused
    builder.fruitless += not was_paused
    builder.stopped_reason = builder.paused_reason = None
    builder.served = bool(payload.get(SERVED, builder.served and was_paused))


def _concluded(builder: StateBuilder, event: Event, payload: Payload) -> None:
    if builder.design is None and builder.before:
        builder.give_round_up(_freeze(builder))
    reason, said = str(payload["reason"]), payload.get("said")
    builder.concluded_reason, builder.open_question = reason, None
    builder.said = None if said is None else PlannerWords.model_validate(said)
    builder.declined = bool(payload.get("declined", False))
    builder.asked_next = payload.get("next")


def _reported(builder: StateBuilder, event: Event, payload: Payload) -> None:
    builder.newest_report = {**payload, "markdown": dict(payload["markdown"]), "html": dict(payload["html"])}
    # While it runs, a report is of the past.
    if builder.concluded_reason is not None or builder.stopped_reason is not None:
        builder.report = {kind: builder.newest_report[kind] for kind in ("markdown", "html")}


_AFTER_CONCLUSION: Final = frozenset(
    {
        EventType.REPORT_BUILT,
        EventType.STUDY_RESUMED,
        EventType.STUDY_STOPPED,
        EventType.DECISION_TAKEN,
        EventType.ATTEMPT_ENDED,
        EventType.ATTEMPT_COPIED,
        EventType.DESIGN_AMENDED,
        EventType.HYPOTHESIS_VETOED,
    }
)

_COPIED: Final = (
    "id", "topic", "planner", "settings", "command", "versions", "machine", "created", "noise_plan", "noise_hash",
    "noise_seconds", "design", "locked_design", "design_hash", "lock_file", "locked", "selection", "first_launch",
    "model", "report", "newest_report", "paused_reason", "stopped_reason", "stopped_seq", "concluded_reason", "said",
    "declined", "asked_next", "resumed_count", "served", "fruitless", "worked_s", "last_ts", "event_count", "head_hash",
    "open_question", "round", "why_asked", "question_try", "rounds_before", "given_up",
)  # fmt: skip

_RULES: Final[Mapping[EventType, Callable[[StateBuilder, Event, Payload], None]]] = {
    EventType.STUDY_CREATED: _created,
    EventType.ROUND_BEGUN: _round_begun,
    EventType.PLANNER_ACTED: _planner_acted,
    EventType.PLANNER_NOTED: _planner_noted,
    EventType.PLANNER_ASKED: _planner_asked,
    EventType.HYPOTHESIS_PROPOSED: claim_events.proposed,
    EventType.NOISE_PLANNED: claim_events.noise_planned,
    EventType.EXPLORATION_PLANNED: run_events.exploration_planned,
    EventType.DESIGN_LOCKED: claim_events.locked,
    EventType.DESIGN_AMENDED: claim_events.amended,
    EventType.HYPOTHESIS_VETOED: claim_events.vetoed,
    EventType.CANDIDATE_ASKED: claim_events.asked,
    EventType.SCREEN_DECIDED: claim_events.screened,
    EventType.MODEL_PREPARED: _model_prepared,
    EventType.RUN_PLANNED: run_events.planned,
    EventType.ATTEMPT_LAUNCHED: run_events.launched,
    EventType.ATTEMPT_ENDED: run_events.ended,
    EventType.ATTEMPT_COPIED: run_events.copied,
    EventType.RUN_COLLECTED: run_events.collected,
    EventType.MEASUREMENT_RECORDED: run_events.measured,
    EventType.RUN_INVALIDATED: run_events.invalidated,
    EventType.VERDICT_COMPUTED: claim_events.judged,
    EventType.DECISION_TAKEN: claim_events.decided,
    EventType.APPROVAL_ASKED: approval_events.asked,
    EventType.APPROVAL_GIVEN: approval_events.given,
    EventType.APPROVAL_DENIED: approval_events.denied,
    EventType.STUDY_WORKED: _worked,
    EventType.STUDY_PAUSED: _paused,
    EventType.STUDY_STOPPED: _stopped,
    EventType.STUDY_RESUMED: _resumed,
    EventType.STUDY_CONCLUDED: _concluded,
    EventType.REPORT_BUILT: _reported,
}
