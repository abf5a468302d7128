"""The state of a study as a pure fold of its events: one small rule for each type of event.

`fold` gives the same state for the same events, on any machine, at any time. It refuses (LogCorrupt, naming the
event) what cannot follow the events before it, such as a run under another design's hash: a log that
contradicts itself has no trustworthy reading. A verdict stays in `StudyState.verdicts` only while the data it was
computed from stand: a later measurement or invalidation moves it to `superseded`. A report stays in
`StudyState.report` only while nothing happens after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from studies.errors import LogCorrupt, UnknownStudy
from studies.events import Event, EventType
from studies.records import Design, Hypothesis, Measurement, RunSpec, Verdict
from studies.standing import AttemptState, Decision, PlannerAct, RunState, Stamp, StudyState

__all__ = ["AttemptState", "Decision", "PlannerAct", "RunState", "Stamp", "StudyState", "fold"]

Payload = Mapping[str, Any]


class _Refused(Exception):
    """The event cannot follow the ones before it."""


@dataclass(slots=True)
class _Draft:
    """The state under construction; field names are StudyState's."""

    id: str = ""
    topic: str = ""
    planner: Payload = field(default_factory=dict)
    settings: Payload = field(default_factory=dict)
    command: Any = None
    versions: Payload = field(default_factory=dict)
    machine: Payload = field(default_factory=dict)
    created: str = ""
    hypotheses: dict[str, Hypothesis] = field(default_factory=dict)
    design: Design | None = None
    design_hash: str | None = None
    locked: Stamp | None = None
    first_launch: Stamp | None = None
    runs: dict[str, RunState] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    superseded: list[Verdict] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    planner_acts: list[PlannerAct] = field(default_factory=list)
    model: Payload | None = None
    report: Payload | None = None
    stopped_reason: str | None = None
    concluded_reason: str | None = None
    resumed_count: int = 0


def fold(events: Sequence[Event]) -> StudyState:
    """Return the state that `events` (one study's log from its first event) lead to.

    Raise UnknownStudy when there are no events, LogCorrupt naming the first event that cannot follow.
    """
    if not events:
        raise UnknownStudy("a study's state needs at least its first event; found none")
    draft = _Draft(id=events[0].study)
    for event in events:
        _apply(draft, event)
    return _freeze(draft, events)


def _apply(draft: _Draft, event: Event) -> None:
    try:
        _check_order(draft, event)
        draft.report = None
        _RULES[event.type](draft, event, event.payload)
    except _Refused as error:
        raise LogCorrupt(event.study, event.seq, event.type.value, str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        difference = f"its payload is not a valid record: {place or error.title}: {first['msg']}"
        raise LogCorrupt(event.study, event.seq, event.type.value, difference) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        difference = f"its payload lacks what it must hold ({type(error).__name__}: {error})"
        raise LogCorrupt(event.study, event.seq, event.type.value, difference) from error


def _check_order(draft: _Draft, event: Event) -> None:
    first = event.type is EventType.STUDY_CREATED
    if first != (not draft.created):
        raise _Refused("expected exactly one study.created, as the first event")
    if event.study != draft.id:
        raise _Refused(f"expected an event of study {draft.id}")
    if draft.concluded_reason is not None and event.type not in _AFTER_CONCLUSION:
        raise _Refused("the study was concluded before; expected no further planning, runs or verdicts")


def _worked_s(events: Sequence[Event]) -> float:
    """Sum the time between events; before a stop or a resumption, nobody is sure to have worked."""
    times = [datetime.fromisoformat(event.ts) for event in events]
    gaps = zip(times, times[1:], events[1:], strict=False)
    idle = (EventType.STUDY_STOPPED, EventType.STUDY_RESUMED)
    return sum(max(0.0, (after - before).total_seconds()) for before, after, event in gaps if event.type not in idle)


def _freeze(draft: _Draft, events: Sequence[Event]) -> StudyState:
    last = events[-1]
    return StudyState(
        **{name: getattr(draft, name) for name in _COPIED},
        hypotheses=tuple(draft.hypotheses.values()),
        verdicts=tuple(draft.verdicts.values()),
        superseded=tuple(draft.superseded),
        decisions=tuple(draft.decisions),
        planner_acts=tuple(draft.planner_acts),
        last_ts=last.ts,
        event_count=last.seq,
        head_hash=last.hash,
        worked_s=_worked_s(events),
    )


def _created(draft: _Draft, event: Event, payload: Payload) -> None:
    draft.created = event.ts
    draft.topic = str(payload["topic"])
    draft.planner, draft.settings = dict(payload["planner"]), dict(payload["settings"])
    draft.command = payload["command"]
    draft.versions, draft.machine = dict(payload["versions"]), dict(payload["machine"])


def _planner_acted(draft: _Draft, event: Event, payload: Payload) -> None:
    act = PlannerAct(
        action=str(payload["action"]),
        tries=int(payload["tries"]),
        tokens=dict(payload["tokens"]),
        rejected=tuple(str(error) for error in payload["rejected"]),
        note=str(payload["note"] or ""),
    )
    draft.planner_acts.append(act)


def _proposed(draft: _Draft, event: Event, payload: Payload) -> None:
    hypothesis = Hypothesis.model_validate(payload)
    if draft.design is not None:
        raise _Refused(f"hypothesis {hypothesis.id} came after the design was locked")
    if hypothesis.id in draft.hypotheses:
        raise _Refused(f"hypothesis {hypothesis.id} was proposed before")
    draft.hypotheses[hypothesis.id] = hypothesis


def _locked(draft: _Draft, event: Event, payload: Payload) -> None:
    design = Design.model_validate(payload["design"])
    if draft.design is not None:
        raise _Refused("a design was locked before; expected one lock per study")
    if design.hash() != payload["hash"]:
        raise _Refused(f"the design's hash is {design.hash()[:12]}, the lock says {str(payload['hash'])[:12]}")
    draft.design, draft.design_hash = design, design.hash()
    draft.locked = Stamp(event.seq, event.ts)


def _model_prepared(draft: _Draft, event: Event, payload: Payload) -> None:
    draft.model = {"sha256": payload["sha256"], "seconds": float(payload["seconds"])}


def _planned(draft: _Draft, event: Event, payload: Payload) -> None:
    spec = RunSpec.model_validate(payload["spec"])
    run_id = str(payload["run_id"])
    if draft.design is None or spec.design_hash != draft.design_hash:
        raise _Refused(f"expected a run under the locked design {str(draft.design_hash)[:12]}")
    if spec.study != draft.id or spec.seed not in draft.design.seeds:
        raise _Refused(f"expected a run of study {draft.id} with one of its seeds; found {spec.study}, {spec.seed}")
    arm = next((arm for arm in draft.design.arms if arm.name == spec.arm), None)
    if arm is None:
        raise _Refused(f"the design has no arm {spec.arm!r}")
    if spec.code != draft.design.code.get(arm.reward):
        raise _Refused(f"the run's code is not the reward {arm.reward!r} of the locked design")
    if run_id != spec.run_id:
        raise _Refused(f"the spec's run id is {spec.run_id}, the event says {run_id}")
    if run_id in draft.runs:
        raise _Refused(f"run {run_id} was planned before")
    draft.runs[run_id] = RunState(run_id, spec)


def _launched(draft: _Draft, event: Event, payload: Payload) -> None:
    run, number = _run(draft, payload), int(payload["attempt"])
    if run.status not in ("planned", "ended"):
        raise _Refused(f"run {run.run_id} is {run.status}; expected no launch now")
    if run.attempts and number <= run.attempts[-1].number:
        raise _Refused(f"expected attempt {run.attempts[-1].number + 1} of run {run.run_id}; found {number}")
    attempt = AttemptState(number, str(payload["name"]), event.ts, sandbox=dict(payload.get("sandbox", {})))
    draft.runs[run.run_id] = replace(run, attempts=(*run.attempts, attempt))
    draft.first_launch = draft.first_launch or Stamp(event.seq, event.ts)


def _ended(draft: _Draft, event: Event, payload: Payload) -> None:
    run, number = _run(draft, payload), int(payload["attempt"])
    active = run.active
    if active is None or active.number != number:
        raise _Refused(f"attempt {number} of run {run.run_id} is not running; nothing to end")
    if payload["status"] not in _ENDINGS:
        raise _Refused(f"expected a status of {', '.join(_ENDINGS)}; found {payload['status']!r}")
    ended = replace(
        active,
        status=payload["status"],
        code=str(payload["code"]),
        reason=str(payload["reason"]),
        seconds=float(payload["seconds"]),
        refused={str(why): int(count) for why, count in payload.get("refused", {}).items()},
    )
    draft.runs[run.run_id] = replace(run, attempts=(*run.attempts[:-1], ended))


def _collected(draft: _Draft, event: Event, payload: Payload) -> None:
    run, number = _run(draft, payload), int(payload["attempt"])
    if run.status in ("collected", "invalid"):
        raise _Refused(f"run {run.run_id} is {run.status}; expected nothing more to collect")
    attempt = next((a for a in run.attempts if a.number == number), None)
    if attempt is None or attempt.status not in (None, "finished"):
        raise _Refused(f"attempt {number} of run {run.run_id} did not finish; nothing of it may be collected")
    for name in ("snapshot", "evaluation"):
        if not isinstance(payload[name]["path"], str) or not isinstance(payload[name]["sha256"], str):
            raise _Refused(f"its {name} lacks a path or a sha256")
    draft.runs[run.run_id] = replace(run, collected=dict(payload))


def _measured(draft: _Draft, event: Event, payload: Payload) -> None:
    measurement = Measurement.model_validate(payload)
    run = _run(draft, payload)
    if run.collected is None:
        raise _Refused(f"run {run.run_id} is {run.status}; expected a measurement of a collected run only")
    if measurement.key in run.measurements:
        raise _Refused(f"{measurement.key} of run {run.run_id} was recorded before")
    if measurement.sha256 not in (run.collected["snapshot"]["sha256"], run.collected["evaluation"]["sha256"]):
        raise _Refused(f"{measurement.key} of run {run.run_id} is bound to no collected file")
    draft.runs[run.run_id] = replace(run, measurements={**run.measurements, measurement.key: measurement})
    if draft.design is not None and measurement.key == draft.design.metric.key:
        _supersede(draft)


def _invalidated(draft: _Draft, event: Event, payload: Payload) -> None:
    run = _run(draft, payload)
    if run.invalid is not None:
        raise _Refused(f"run {run.run_id} was invalidated before")
    draft.runs[run.run_id] = replace(run, invalid=(str(payload["code"]), str(payload["reason"])))
    if run.measurements:
        _supersede(draft)


def _judged(draft: _Draft, event: Event, payload: Payload) -> None:
    verdict = Verdict.model_validate(payload)
    if draft.design is None or verdict.hypothesis not in {h.id for h in draft.design.hypotheses}:
        raise _Refused(f"the locked design has no hypothesis {verdict.hypothesis!r}")
    if verdict.hypothesis in draft.verdicts:
        draft.superseded.append(draft.verdicts.pop(verdict.hypothesis))
    draft.verdicts[verdict.hypothesis] = verdict


def _decided(draft: _Draft, event: Event, payload: Payload) -> None:
    decision = Decision(str(payload["rule"]), str(payload["action"]), str(payload["reason"]), event.ts)
    draft.decisions.append(decision)


def _stopped(draft: _Draft, event: Event, payload: Payload) -> None:
    draft.stopped_reason = str(payload["reason"])


def _resumed(draft: _Draft, event: Event, payload: Payload) -> None:
    draft.stopped_reason = None
    draft.resumed_count += 1


def _concluded(draft: _Draft, event: Event, payload: Payload) -> None:
    draft.concluded_reason = str(payload["reason"])


def _reported(draft: _Draft, event: Event, payload: Payload) -> None:
    draft.report = {"markdown": dict(payload["markdown"]), "html": dict(payload["html"])}


def _run(draft: _Draft, payload: Payload) -> RunState:
    run = draft.runs.get(str(payload["run_id"]))
    if run is None:
        raise _Refused(f"no run {payload['run_id']!r} was planned")
    return run


def _supersede(draft: _Draft) -> None:
    """The data changed: no verdict computed before stands any more."""
    draft.superseded.extend(draft.verdicts.values())
    draft.verdicts.clear()


_ENDINGS: Final = ("finished", "failed", "timeout", "stopped", "lost")

_AFTER_CONCLUSION: Final = frozenset(
    {
        EventType.REPORT_BUILT,
        EventType.STUDY_RESUMED,
        EventType.STUDY_STOPPED,
        EventType.DECISION_TAKEN,
        EventType.ATTEMPT_ENDED,
    }
)

_COPIED: Final = (
    "id", "topic", "planner", "settings", "command", "versions", "machine", "created", "design", "design_hash",
    "locked", "first_launch", "runs", "model", "report", "stopped_reason", "concluded_reason", "resumed_count",
)  # fmt: skip

_RULES: Final[Mapping[EventType, Callable[[_Draft, Event, Payload], None]]] = {
    EventType.STUDY_CREATED: _created,
    EventType.PLANNER_ACTED: _planner_acted,
    EventType.HYPOTHESIS_PROPOSED: _proposed,
    EventType.DESIGN_LOCKED: _locked,
    EventType.MODEL_PREPARED: _model_prepared,
    EventType.RUN_PLANNED: _planned,
    EventType.ATTEMPT_LAUNCHED: _launched,
    EventType.ATTEMPT_ENDED: _ended,
    EventType.RUN_COLLECTED: _collected,
    EventType.MEASUREMENT_RECORDED: _measured,
    EventType.RUN_INVALIDATED: _invalidated,
    EventType.VERDICT_COMPUTED: _judged,
    EventType.DECISION_TAKEN: _decided,
    EventType.STUDY_STOPPED: _stopped,
    EventType.STUDY_RESUMED: _resumed,
    EventType.STUDY_CONCLUDED: _concluded,
    EventType.REPORT_BUILT: _reported,
}
