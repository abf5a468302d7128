"""The state of a study as a pure fold of its events: one small rule for each type of event.

`fold` gives the same state for the same events, on any machine, at any time. It refuses (LogCorrupt, naming the
event) what cannot follow the events before it, such as a run under another design's hash: a log that
contradicts itself has no trustworthy reading. A verdict stays in `StudyState.verdicts` only while the data it was
computed from stand: a later measurement or invalidation moves it to `superseded`, a later look to `interim`. A report
stays in `StudyState.report` only while nothing happens after it. `Folding` takes events as they come, for a reader
that follows a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from studies import claim_rules, run_rules
from studies.draft import Draft, Payload, Refused
from studies.errors import LogCorrupt, UnknownStudy
from studies.events import Event, EventType
from studies.said import Said, who
from studies.standing import (
    Amended,
    AttemptState,
    Decision,
    PlannerAct,
    RunState,
    Stamp,
    StudyState,
    Veto,
)

WORKED: Final = "worked_s"
"""Key of a payload, of any type of event: seconds that its controller worked since its last event."""

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
        self._draft = Draft()

    def add(self, events: Iterable[Event]) -> None:
        """Take the next events; raise LogCorrupt naming the first one that cannot follow."""
        for event in events:
            _apply(self._draft, event)

    def copy(self) -> Folding:
        """Return a fold that goes on by itself from here."""
        other = Folding()
        other._draft = self._draft.copy()
        return other

    @property
    def worked_s(self) -> float:
        """Seconds worked so far, as in the state."""
        return self._draft.worked_s

    @property
    def at_rest(self) -> bool:
        """Whether the study is stopped or paused, and nothing of it runs."""
        halted = self._draft.stopped_reason is not None or self._draft.paused_reason is not None
        return halted and not any(run.active for run in self._draft.runs.values())

    def state(self) -> StudyState:
        """Return the state so far; UnknownStudy before the first event."""
        if not self._draft.event_count:
            raise UnknownStudy("a study's state needs at least its first event; found none")
        return _freeze(self._draft)


def _apply(draft: Draft, event: Event) -> None:
    try:
        _check_order(draft, event)
        _pass_time(draft, event)
        draft.report = None
        _RULES[event.type](draft, event, {name: event.payload[name] for name in event.payload if name != WORKED})
        draft.last_ts, draft.event_count, draft.head_hash = event.ts, event.seq, event.hash
    except Refused as error:
        raise LogCorrupt(event.study, event.seq, event.type.value, str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        difference = f"its payload is not a valid record: {place or error.title}: {first['msg']}"
        raise LogCorrupt(event.study, event.seq, event.type.value, difference) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        difference = f"its payload lacks what it must hold ({type(error).__name__}: {error})"
        raise LogCorrupt(event.study, event.seq, event.type.value, difference) from error


def _check_order(draft: Draft, event: Event) -> None:
    first = event.type is EventType.STUDY_CREATED
    if first != (not draft.created):
        raise Refused("expected exactly one study.created, as the first event")
    if draft.id and event.study != draft.id:
        raise Refused(f"expected an event of study {draft.id}")
    if draft.concluded_reason is not None and event.type not in _AFTER_CONCLUSION:
        raise Refused("the study was concluded before; expected no further planning, runs or verdicts")


def _pass_time(draft: Draft, event: Event) -> None:
    """Count what a controller says that it worked; in a log where none ever said so, the time since the last event."""
    worked = event.payload.get(WORKED)
    if worked is not None:
        if isinstance(worked, bool) or not isinstance(worked, int | float) or worked < 0:
            raise Refused(f"expected {WORKED} to be seconds, at least 0; found {worked!r}")
        draft.measured = True
        draft.worked_s += worked
    elif draft.last_ts and not draft.measured and not _follows_a_wait(draft, event):
        gap = datetime.fromisoformat(event.ts) - datetime.fromisoformat(draft.last_ts)
        draft.worked_s += max(0.0, gap.total_seconds())


def _follows_a_wait(draft: Draft, event: Event) -> bool:
    """Whether nobody is sure to have worked before an event: a stop, a resumption, a word on a study that is still.

    Nor before a pause: controllers that know it say what they work.
    """
    if event.type in (EventType.STUDY_STOPPED, EventType.STUDY_PAUSED, EventType.STUDY_RESUMED):
        return True
    still = draft.stopped_reason is not None or draft.concluded_reason is not None
    return still and event.type in (EventType.DESIGN_AMENDED, EventType.HYPOTHESIS_VETOED)


def _freeze(draft: Draft) -> StudyState:
    return StudyState(
        **{name: getattr(draft, name) for name in _COPIED},
        runs=dict(draft.runs),
        candidates=dict(draft.candidates),
        vetoed=dict(draft.vetoed),
        decided=dict(draft.decided),
        grounds=dict(draft.grounds),
        prepared=dict(draft.prepared),
        hypotheses=tuple(draft.hypotheses.values()),
        verdicts=tuple(draft.verdicts.values()),
        replications=tuple(draft.replications.values()),
        amendments=tuple(draft.amendments),
        interim=tuple(draft.interim),
        superseded=tuple(draft.superseded),
        decisions=tuple(draft.decisions),
        planner_acts=tuple(draft.planner_acts),
    )


def _created(draft: Draft, event: Event, payload: Payload) -> None:
    draft.id, draft.created = event.study, event.ts
    draft.topic = str(payload["topic"])
    draft.planner, draft.settings = dict(payload["planner"]), dict(payload["settings"])
    draft.command = payload["command"]
    draft.versions, draft.machine = dict(payload["versions"]), dict(payload["machine"])


def _planner_acted(draft: Draft, event: Event, payload: Payload) -> None:
    act = PlannerAct(
        action=str(payload["action"]),
        tries=int(payload["tries"]),
        tokens=dict(payload["tokens"]),
        rejected=tuple(str(error) for error in payload["rejected"]),
        note=str(payload["note"] or ""),
        not_tested=tuple(str(text) for text in payload.get("not_tested", ())),
    )
    draft.planner_acts.append(act)


def _model_prepared(draft: Draft, event: Event, payload: Payload) -> None:
    prepared = {"sha256": payload["sha256"], "seconds": float(payload["seconds"])}
    phase = str(payload.get("phase", "confirm"))
    draft.prepared[phase] = prepared
    if phase == "confirm" or draft.model is None:
        draft.model = prepared


def _worked(draft: Draft, event: Event, payload: Payload) -> None:
    """A controller says that it works; what it worked is counted as with every event."""


def _paused(draft: Draft, event: Event, payload: Payload) -> None:
    if draft.stopped_reason is not None:
        raise Refused("the study is stopped; expected nothing to pause")
    draft.paused_reason = draft.paused_reason or str(payload["reason"])


def _stopped(draft: Draft, event: Event, payload: Payload) -> None:
    draft.stopped_reason, draft.stopped_seq = str(payload["reason"]), event.seq
    draft.paused_reason = None


def _resumed(draft: Draft, event: Event, payload: Payload) -> None:
    draft.resumed_count += draft.paused_reason is None
    draft.stopped_reason = draft.paused_reason = None


def _concluded(draft: Draft, event: Event, payload: Payload) -> None:
    reason, said = str(payload["reason"]), payload.get("said")
    if said is None and _in_the_planners_words(draft):
        draft.said = Said(by=who(str(draft.planner["name"]), draft.planner.get("model")), text=reason)
        reason = draft.decisions[-1].reason
    draft.concluded_reason = reason
    if said is not None:
        draft.said = Said.model_validate(said)
    draft.declined = bool(payload.get("declined", False))


def _in_the_planners_words(draft: Draft) -> bool:
    """Whether a reason without a quotation beside it is the planner's, as in logs of before planners were quoted.

    The rule planner's is code's, and so is the reason of the decision to conclude that came before.
    """
    asked = bool(draft.planner_acts) and draft.planner_acts[-1].action == "conclude"
    decided = bool(draft.decisions) and draft.decisions[-1].action == "conclude"
    return asked and decided and draft.planner.get("name") != "rules"


def _reported(draft: Draft, event: Event, payload: Payload) -> None:
    draft.newest_report = {**payload, "markdown": dict(payload["markdown"]), "html": dict(payload["html"])}
    if draft.concluded_reason is not None or draft.stopped_reason is not None:  # of one at work it shows what is past
        draft.report = {kind: draft.newest_report[kind] for kind in ("markdown", "html")}


_AFTER_CONCLUSION: Final = frozenset(
    {
        EventType.REPORT_BUILT,
        EventType.STUDY_RESUMED,
        EventType.STUDY_STOPPED,
        EventType.DECISION_TAKEN,
        EventType.ATTEMPT_ENDED,
        EventType.DESIGN_AMENDED,
        EventType.HYPOTHESIS_VETOED,
    }
)

_COPIED: Final = (
    "id", "topic", "planner", "settings", "command", "versions", "machine", "created", "noise_plan", "noise_hash",
    "noise_seconds", "design", "locked_design", "design_hash", "lock_file", "locked", "selection", "first_launch",
    "model", "report", "newest_report", "paused_reason", "stopped_reason", "stopped_seq", "concluded_reason", "said",
    "declined", "resumed_count", "worked_s", "last_ts", "event_count", "head_hash",
)  # fmt: skip

_RULES: Final[Mapping[EventType, Callable[[Draft, Event, Payload], None]]] = {
    EventType.STUDY_CREATED: _created,
    EventType.PLANNER_ACTED: _planner_acted,
    EventType.HYPOTHESIS_PROPOSED: claim_rules.proposed,
    EventType.NOISE_PLANNED: claim_rules.noise_planned,
    EventType.DESIGN_LOCKED: claim_rules.locked,
    EventType.DESIGN_AMENDED: claim_rules.amended,
    EventType.HYPOTHESIS_VETOED: claim_rules.vetoed,
    EventType.CANDIDATE_ASKED: claim_rules.asked,
    EventType.SCREEN_DECIDED: claim_rules.screened,
    EventType.MODEL_PREPARED: _model_prepared,
    EventType.RUN_PLANNED: run_rules.planned,
    EventType.ATTEMPT_LAUNCHED: run_rules.launched,
    EventType.ATTEMPT_ENDED: run_rules.ended,
    EventType.RUN_COLLECTED: run_rules.collected,
    EventType.MEASUREMENT_RECORDED: run_rules.measured,
    EventType.RUN_INVALIDATED: run_rules.invalidated,
    EventType.VERDICT_COMPUTED: claim_rules.judged,
    EventType.DECISION_TAKEN: claim_rules.decided,
    EventType.STUDY_WORKED: _worked,
    EventType.STUDY_PAUSED: _paused,
    EventType.STUDY_STOPPED: _stopped,
    EventType.STUDY_RESUMED: _resumed,
    EventType.STUDY_CONCLUDED: _concluded,
    EventType.REPORT_BUILT: _reported,
}
