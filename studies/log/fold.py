"""The state of a study as a pure fold of its events: one small rule for each type.

`fold` gives the same state for the same events, anywhere and at any time. It refuses (LogCorrupt, naming the event)
what cannot follow the events before it, such as a run under another design's hash. A verdict stays in
`StudyState.verdicts` only while its data are unchanged: a later measurement or invalidation moves it to `superseded`, a
later look to `interim`. A report stays in `StudyState.report` only while nothing happens after it. `Folding` takes
events as they come, for a reader that follows a log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

from pydantic import ValidationError

from studies.errors import LogCorrupt, UnknownStudy
from studies.log import claims
from studies.log.event import Event, EventType
from studies.log.study import (
    AttemptState,
    ImpossibleEvent,
    Payload,
    PlannedExploration,
    PlannerAct,
    PlannerNote,
    RunState,
    Stamp,
    StateBuilder,
    StudyState,
)
from studies.records.alpha import Exploration, exploration_spec
from studies.records.design import Arm, Design, NoisePlan, RunSpec
from studies.records.runs import (
    NOISE_ARM,
    PLUMBING_ARM,
    Measurement,
    confirm_spec,
    noise_spec,
    replicate_spec,
    screen_spec,
    zero_lr_spec,
)
from studies.records.verdict import PlannerMessage

ENDINGS: Final = ("finished", "failed", "timeout", "stopped", "lost")
STANDINGS: Final = {
    "sending": "sending", "sent": "sent", "failed": "failed", "same": "sent", "differs": "sent", "lacking": "failed",
}  # fmt: skip
"""How a copy stands, by the word for it in the log: the last three are of logs whose copies were compared."""


def apply_run_planned(builder: StateBuilder, event: Event, payload: Payload) -> None:
    spec = RunSpec.model_validate(payload["spec"])
    run_id = str(payload["run_id"])
    if spec.study != builder.id:
        raise ImpossibleEvent(f"expected a run of study {builder.id}; found one of {spec.study}")
    expected = _derive_spec(builder, spec)
    if spec != expected:
        differing = [name for name in RunSpec.model_fields if getattr(spec, name) != getattr(expected, name)]
        raise ImpossibleEvent(f"the run is not what its lock leads to: {', '.join(differing)} differ")
    if run_id != spec.run_id:
        raise ImpossibleEvent(f"the spec's run id is {spec.run_id}, the event says {run_id}")
    if run_id in builder.runs:
        raise ImpossibleEvent(f"run {run_id} was planned before")
    builder.runs[run_id] = RunState(run_id, spec, planned=event.ts)


def apply_exploration_planned(builder: StateBuilder, event: Event, payload: Payload) -> None:
    plan = Exploration.model_validate(payload["plan"])
    if (found := plan.hash()) != payload["hash"]:
        raise ImpossibleEvent(f"the exploration's hash is {found[:12]}, the event says {str(payload['hash'])[:12]}")
    if plan.metric.split != "search":
        raise ImpossibleEvent("an exploration is scored on search tasks; found hidden ones, which are for claims")
    if builder.design is not None and (builder.design.screen is not None or builder.open_claims()):
        raise ImpossibleEvent("an exploration was planned while the round's claims are open")
    if builder.hypotheses and builder.design is None:
        raise ImpossibleEvent("an exploration was planned between a proposal and its lock")
    turn, seconds = str(payload.get("turn", "")), float(payload["seconds_per_run"])
    builder.explorations.append(PlannedExploration(plan, seconds, turn, event.seq))
    builder.prepared.pop("explore", None)  # another exploration may begin with another model


def _derive_spec(builder: StateBuilder, spec: RunSpec) -> RunSpec:
    if spec.phase == "noise":
        return _derive_noise_spec(builder, spec)
    if spec.phase == "explore":
        return _derive_exploration_spec(builder, spec)
    design, lock = builder.design, builder.design_hash
    if design is None or lock is None or spec.design_hash != lock:
        raise ImpossibleEvent(f"expected a run under the locked design {str(lock)[:12]}")
    if spec.phase == "screen":
        return _derive_screen_spec(builder, design, lock, spec)
    if design.screen is not None:
        raise ImpossibleEvent("a run of the confirmation came before the screen was decided")
    arm = next((arm for arm in design.arms if arm.name == spec.arm), None)
    if arm is None:
        raise ImpossibleEvent(f"the design has no arm {spec.arm!r}")
    if spec.phase == "replicate":
        return _derive_replicate_spec(builder, design, lock, arm, spec)
    _check_seed(spec, builder.seeds_of(arm.name, design))
    return confirm_spec(builder.id, design, lock, arm, spec.seed)


def _derive_noise_spec(builder: StateBuilder, spec: RunSpec) -> RunSpec:
    plan: NoisePlan | None = builder.noise_plan
    if plan is None or builder.noise_hash is None or spec.design_hash != builder.noise_hash:
        raise ImpossibleEvent(f"expected an A/A run under the noise plan {str(builder.noise_hash)[:12]}")
    if builder.design is not None:
        raise ImpossibleEvent("an A/A run came after the design was locked")
    if spec.arm == PLUMBING_ARM and plan.plumbing is not None:
        _check_seed(spec, (plan.plumbing,))
        return zero_lr_spec(builder.id, plan, builder.noise_hash, spec.seed)
    if spec.arm != NOISE_ARM:
        raise ImpossibleEvent(f"expected the arm {NOISE_ARM!r} of A/A runs; found {spec.arm!r}")
    _check_seed(spec, plan.seeds)
    return noise_spec(builder.id, plan, builder.noise_hash, spec.seed)


def _derive_exploration_spec(builder: StateBuilder, spec: RunSpec) -> RunSpec:
    plan = builder.explorations[-1].plan if builder.explorations else None
    if plan is None or spec.design_hash != plan.hash():
        raise ImpossibleEvent("expected a run of the exploration that was planned last; found another, or none planned")
    arm = next((arm for arm in plan.arms if arm.name == spec.arm), None)
    if arm is None:
        raise ImpossibleEvent(f"the exploration has no arm {spec.arm!r}")
    return exploration_spec(builder.id, plan, arm)


def _derive_screen_spec(builder: StateBuilder, design: Design, lock: str, spec: RunSpec) -> RunSpec:
    if design.screen is None:
        when = "after the screen was decided" if builder.selection else "without a screen"
        raise ImpossibleEvent(f"a screening run came {when}")
    if spec.arm not in builder.candidates:
        raise ImpossibleEvent(f"the screen was not asked for a candidate {spec.arm!r}")
    _check_seed(spec, (design.screen.seed,))
    steps = spec.job.get("steps")
    if steps not in [rung.steps for rung in design.screen.rungs]:
        raise ImpossibleEvent(f"no rung of the screen has {steps!r} steps")
    return screen_spec(builder.id, design, lock, builder.candidates[spec.arm], int(str(steps)))


def _derive_replicate_spec(builder: StateBuilder, design: Design, lock: str, arm: Arm, spec: RunSpec) -> RunSpec:
    if design.replication is None:
        raise ImpossibleEvent("the locked design has no replication")
    wanted = {name for name, decision in builder.decided.items() if decision.action == "replicate"}
    arms = {design.control_arm} | {arm for h in design.hypotheses if h.id in wanted for arm in design.contrast_of(h)}
    if not wanted or arm.name not in arms:
        raise ImpossibleEvent(f"nothing was decided that replicates the arm {arm.name!r}")
    _check_seed(spec, design.seeds_of(arm.name, design.replication.seeds))
    return replicate_spec(builder.id, design, lock, arm, spec.seed)


def _check_seed(spec: RunSpec, seeds: Collection[int]) -> None:
    if spec.seed not in seeds:
        raise ImpossibleEvent(f"expected one of the seeds of the phase {spec.phase}; found {spec.seed}")


def apply_attempt_launched(builder: StateBuilder, event: Event, payload: Payload) -> None:
    run, number = builder.run(payload), int(payload["attempt"])
    if run.status not in ("planned", "ended"):
        raise ImpossibleEvent(f"run {run.run_id} is {run.status}; expected no launch now")
    if run.attempts and number <= run.attempts[-1].number:
        raise ImpossibleEvent(f"expected attempt {run.attempts[-1].number + 1} of run {run.run_id}; found {number}")
    attempt = replace(
        AttemptState(number, str(payload["name"]), event.ts, sandbox=dict(payload.get("sandbox", {}))),
        **_parse_begins(run, payload.get("begins", {})),
    )
    builder.runs[run.run_id] = replace(run, attempts=(*run.attempts, attempt))
    builder.reopen_by(run.spec)  # from now on it is to be accounted for
    if run.spec.phase not in ("noise", "explore"):
        builder.first_launch = builder.first_launch or Stamp(event.seq, event.ts)


def _parse_begins(run: RunState, begins: Payload) -> dict[str, Any]:
    """Return what an event says of how an attempt begins; logs of earlier versions say nothing."""
    resumes = begins.get("resumes")
    if resumes is not None and int(resumes) not in [attempt.number for attempt in run.attempts]:
        raise ImpossibleEvent(f"expected it to go on from an earlier attempt of run {run.run_id}; found {resumes}")
    return {
        "resumes": None if resumes is None else int(resumes),
        "initial_sha256": str(begins.get("initial_sha256", "")),
        "during_sha256": str(begins.get("during_sha256", "")),
        "why": str(begins.get("why", "")),
    }


def apply_attempt_ended(builder: StateBuilder, event: Event, payload: Payload) -> None:
    run, number = builder.run(payload), int(payload["attempt"])
    active = run.active
    if active is None or active.number != number:
        raise ImpossibleEvent(f"attempt {number} of run {run.run_id} is not running; nothing to end")
    if payload["status"] not in ENDINGS:
        raise ImpossibleEvent(f"expected a status of {', '.join(ENDINGS)}; found {payload['status']!r}")
    over = replace(
        active,
        status=payload["status"],
        code=str(payload["code"]),
        reason=str(payload["reason"]),
        seconds=float(payload["seconds"]),
        refused={str(why): int(count) for why, count in payload.get("refused", {}).items()},
        resumed_at=None if payload.get("resumed_at") is None else int(payload["resumed_at"]),
        ended=event.ts,
    )
    builder.runs[run.run_id] = replace(run, attempts=(*run.attempts[:-1], over))


def apply_attempt_copied(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """How W&B's copy of an attempt's log stands; results rest on the log itself, so nothing else changes."""
    run, number, standing = builder.run_of_any_round(payload), int(payload["attempt"]), payload["standing"]
    if standing not in STANDINGS:
        raise ImpossibleEvent(f"expected a standing of {', '.join(STANDINGS)}; found {standing!r}")
    if number not in [attempt.number for attempt in run.attempts]:
        raise ImpossibleEvent(f"there is no attempt {number} of run {run.run_id}; nothing to copy")
    stands, why = STANDINGS[standing], str(payload.get("reason", ""))
    attempts = (
        replace(each, url=str(payload["url"]), standing=stands, standing_reason=why) if each.number == number else each
        for each in run.attempts
    )
    builder.replace_run(replace(run, attempts=tuple(attempts)))


def apply_run_collected(builder: StateBuilder, event: Event, payload: Payload) -> None:
    run, number = builder.run(payload), int(payload["attempt"])
    if run.status in ("collected", "invalid"):
        raise ImpossibleEvent(f"run {run.run_id} is {run.status}; expected nothing more to collect")
    attempt = next((a for a in run.attempts if a.number == number), None)
    if attempt is None or attempt.status not in (None, "finished"):
        raise ImpossibleEvent(f"attempt {number} of run {run.run_id} did not finish; nothing of it may be collected")
    for name in ("snapshot", "evaluation"):
        if not isinstance(payload[name]["path"], str) or not isinstance(payload[name]["sha256"], str):
            raise ImpossibleEvent(f"its {name} lacks a path or a sha256")
    builder.runs[run.run_id] = replace(run, collected=dict(payload), settled=event.ts)


def apply_measurement(builder: StateBuilder, event: Event, payload: Payload) -> None:
    measurement = Measurement.model_validate(payload)
    run = builder.run(payload)
    if run.collected is None:
        raise ImpossibleEvent(f"run {run.run_id} is {run.status}; expected a measurement of a collected run only")
    if measurement.key in run.measurements:
        raise ImpossibleEvent(f"{measurement.key} of run {run.run_id} was recorded before")
    if measurement.sha256 not in (run.collected["snapshot"]["sha256"], run.collected["evaluation"]["sha256"]):
        raise ImpossibleEvent(f"{measurement.key} of run {run.run_id} is bound to no collected file")
    builder.runs[run.run_id] = replace(run, measurements={**run.measurements, measurement.key: measurement})
    if measurement.key == run.spec.metric.key:
        builder.has_data = builder.has_data or run.spec.phase in ("confirm", "replicate")
        builder.supersede_by(run.spec, but=builder.stands)


def apply_run_invalidated(builder: StateBuilder, event: Event, payload: Payload) -> None:
    run = builder.run(payload)
    if run.invalid is not None:
        raise ImpossibleEvent(f"run {run.run_id} was invalidated before")
    given_up = (str(payload["code"]), str(payload["reason"]))
    builder.runs[run.run_id] = replace(run, invalid=given_up, settled=event.ts)
    if run.attempts and run.code != given_up[0]:  # else it counted so
        builder.supersede_by(run.spec)


WORKED: Final = "worked_s"
"""Key of a payload, of any type of event: seconds that its controller worked since its last event."""
SERVED: Final = "served"
"""Key of the payload of an event that begins work on a study: whether a worker does it."""


def fold(events: Sequence[Event]) -> StudyState:
    """Return the state that a study's events lead to; UnknownStudy for none, LogCorrupt at one that cannot follow."""
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
        other = Folding()
        other._builder = self._builder.copy()
        return other

    @property
    def worked_s(self) -> float:
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
        worked = event.payload.get(WORKED)
        if worked is not None:
            if isinstance(worked, bool) or not isinstance(worked, int | float) or worked < 0:
                raise ImpossibleEvent(f"expected {WORKED} to be seconds, at least 0; found {worked!r}")
            builder.measured = True
            builder.worked_s += worked
        elif builder.last_ts and not builder.measured and not _follows_a_wait(builder, event):
            gap = datetime.fromisoformat(event.ts) - datetime.fromisoformat(builder.last_ts)
            builder.worked_s += max(0.0, gap.total_seconds())
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


def _follows_a_wait(builder: StateBuilder, event: Event) -> bool:
    """Return whether the time before a stop, pause, resumption, or a late amendment or veto, was a wait."""
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


def _apply_created(builder: StateBuilder, event: Event, payload: Payload) -> None:
    builder.id, builder.created = event.study, event.ts
    builder.topic = str(payload["topic"])
    builder.planner, builder.settings = dict(payload["planner"]), dict(payload["settings"])
    builder.command = payload["command"]
    builder.served = bool(payload.get(SERVED, False))
    builder.versions, builder.machine = dict(payload["versions"]), dict(payload["machine"])


def _apply_planner_acted(builder: StateBuilder, event: Event, payload: Payload) -> None:
    act = PlannerAct(
        action=str(payload["action"]),
        tries=int(payload["tries"]),
        tokens=dict(payload["tokens"]),
        rejected=tuple(str(error) for error in payload["rejected"]),
        note=str(payload["note"] or ""),
        not_tested=tuple(str(text) for text in payload.get("not_tested", ())),
        turn=str(payload.get("turn", "")),
        tool_calls=tuple(dict(look) for look in payload.get("looks", ())),
    )
    builder.planner_acts.append(act)


def _apply_planner_noted(builder: StateBuilder, event: Event, payload: Payload) -> None:
    about = str(payload.get("about", ""))
    if about and about not in {entry.id for entry in builder.notebook}:
        raise ImpossibleEvent(f"expected an idea of the planner's notebook to revise; found {about!r}")
    _add_note(builder, event, payload, "revise" if about else "note")


def _add_note(builder: StateBuilder, event: Event, payload: Payload, kind: Literal["note", "revise", "ask"]) -> None:
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


def _apply_round_begun(builder: StateBuilder, event: Event, payload: Payload) -> None:
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


def _apply_model_prepared(builder: StateBuilder, event: Event, payload: Payload) -> None:
    # Earlier versions named the control's model alone.
    compared = {"models": payload["models"]} if "models" in payload else {}
    prepared = {"sha256": payload["sha256"], "seconds": float(payload["seconds"]), **compared}
    phase = str(payload.get("phase", "confirm"))
    builder.prepared[phase] = prepared
    if phase == "confirm" or builder.model is None:
        builder.model = prepared


def _apply_worked(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """Nothing changes but the seconds worked, which are counted with every event."""


def _apply_paused(builder: StateBuilder, event: Event, payload: Payload) -> None:
    if builder.stopped_reason is not None:
        raise ImpossibleEvent("the study is stopped; expected nothing to pause")
    builder.paused_reason = builder.paused_reason or str(payload["reason"])


def _apply_stopped(builder: StateBuilder, event: Event, payload: Payload) -> None:
    builder.stopped_reason, builder.stopped_seq = str(payload["reason"]), event.seq
    builder.paused_reason = None


def _apply_resumed(builder: StateBuilder, event: Event, payload: Payload) -> None:
    was_paused = builder.paused_reason is not None
    builder.resumed_count += not was_paused
    builder.fruitless += not was_paused
    builder.stopped_reason = builder.paused_reason = None
    builder.served = bool(payload.get(SERVED, builder.served and was_paused))


def _apply_concluded(builder: StateBuilder, event: Event, payload: Payload) -> None:
    if builder.design is None and builder.before:
        builder.give_round_up(_freeze(builder))
    reason, said = str(payload["reason"]), payload.get("said")
    builder.concluded_reason, builder.open_question = reason, None
    builder.said = None if said is None else PlannerMessage.model_validate(said)
    builder.declined = bool(payload.get("declined", False))
    builder.asked_next = payload.get("next")


def _apply_reported(builder: StateBuilder, event: Event, payload: Payload) -> None:
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
    EventType.STUDY_CREATED: _apply_created,
    EventType.ROUND_BEGUN: _apply_round_begun,
    EventType.PLANNER_ACTED: _apply_planner_acted,
    EventType.PLANNER_NOTED: _apply_planner_noted,
    EventType.PLANNER_ASKED: partial(_add_note, kind="ask"),
    EventType.HYPOTHESIS_PROPOSED: claims.apply_hypothesis_proposed,
    EventType.NOISE_PLANNED: claims.apply_noise_planned,
    EventType.EXPLORATION_PLANNED: apply_exploration_planned,
    EventType.DESIGN_LOCKED: claims.apply_design_locked,
    EventType.DESIGN_AMENDED: claims.apply_amendment,
    EventType.HYPOTHESIS_VETOED: claims.apply_veto,
    EventType.CANDIDATE_ASKED: claims.apply_candidate_asked,
    EventType.SCREEN_DECIDED: claims.apply_screen_decided,
    EventType.MODEL_PREPARED: _apply_model_prepared,
    EventType.RUN_PLANNED: apply_run_planned,
    EventType.ATTEMPT_LAUNCHED: apply_attempt_launched,
    EventType.ATTEMPT_ENDED: apply_attempt_ended,
    EventType.ATTEMPT_COPIED: apply_attempt_copied,
    EventType.RUN_COLLECTED: apply_run_collected,
    EventType.MEASUREMENT_RECORDED: apply_measurement,
    EventType.RUN_INVALIDATED: apply_run_invalidated,
    EventType.VERDICT_COMPUTED: claims.apply_verdict,
    EventType.DECISION_TAKEN: claims.apply_decision,
    EventType.APPROVAL_ASKED: claims.apply_approval_asked,
    EventType.APPROVAL_GIVEN: claims.apply_approval_given,
    EventType.APPROVAL_DENIED: claims.apply_approval_denied,
    EventType.STUDY_WORKED: _apply_worked,
    EventType.STUDY_PAUSED: _apply_paused,
    EventType.STUDY_STOPPED: _apply_stopped,
    EventType.STUDY_RESUMED: _apply_resumed,
    EventType.STUDY_CONCLUDED: _apply_concluded,
    EventType.REPORT_BUILT: _apply_reported,
}
