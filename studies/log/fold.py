"""The state of a study as a pure fold of its events: one small rule for each type (those on claims in `claims`).

`fold` gives the same state for the same events, anywhere and at any time. It refuses (LogCorrupt, naming the event)
what cannot follow the events before it, such as a run under another design's hash. A verdict stays in
`StudyState.verdicts` only while its data are unchanged: a later measurement or invalidation moves it to `superseded`, a
later look to `interim`. A report stays in `StudyState.report` only while nothing but notes comes after it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from studies.errors import LogCorrupt, StudiesError
from studies.log import entries
from studies.log.claims import supersede
from studies.log.event import RULES, Event, EventType, ImpossibleEvent, refuse, rule
from studies.log.study import RoundState, StudyState
from studies.records import runs
from studies.records.alpha import Exploration, exploration_spec
from studies.records.design import Arm, RunSpec
from studies.records.procedure import PlanNode
from studies.records.verdict import MADE, AnalysisResult, PlannerMessage, Verdict

WORKED: Final = "worked_s"
"""Key of a payload, of any type of event: seconds that its controller worked since its last event."""
SERVED: Final = "served"
"""Key of the payload of an event that begins work on a study: whether a worker does it."""
STANDINGS: Final = {
    "sending": "sending", "sent": "sent", "failed": "failed", "same": "sent", "differs": "sent", "lacking": "failed",
}  # fmt: skip
"""How a copy stands, by the word for it in the log: the last three are of logs whose copies were compared."""
_AFTER_CONCLUSION: Final = frozenset({
    EventType.REPORT_BUILT, EventType.STUDY_RESUMED, EventType.STUDY_STOPPED, EventType.DECISION_TAKEN,
    EventType.ATTEMPT_ENDED, EventType.ATTEMPT_COPIED, EventType.DESIGN_AMENDED, EventType.HYPOTHESIS_VETOED,
})  # fmt: skip


def fold(events: Iterable[Event], state: StudyState | None = None) -> StudyState:
    """Return the state that events lead to, after those of `state`, which stays as it is. Raise StudiesError for no
    event at all, LogCorrupt at the first one that cannot follow."""
    study = _copy(StudyState() if state is None else state)
    for event in events:
        try:
            _apply(study, event)
        except ImpossibleEvent as error:
            raise LogCorrupt(event.study, event.seq, event.type.value, str(error)) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            difference = f"its payload is not a valid record: {place or error.title}: {first['msg']}"
            difference += "" if first["type"].startswith("missing") else f"; found {first['input']!r:.80}"
            raise LogCorrupt(event.study, event.seq, event.type.value, difference) from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            difference = f"its payload lacks what it must hold ({type(error).__name__}: {error})"
            raise LogCorrupt(event.study, event.seq, event.type.value, difference) from error
    if not study.event_count:
        raise StudiesError("a study's state needs at least its first event; found none")
    return study


def _copy(state: StudyState) -> StudyState:
    """Return a copy whose runs, acts and notes grow in place: copied with each event they would take the square of
    time."""
    return replace(state, runs=dict(state.runs), planner_acts=list(state.planner_acts), notes=dict(state.notes))


def _apply(study: StudyState, event: Event) -> None:
    if (event.type is EventType.STUDY_CREATED) != (not study.created):
        raise ImpossibleEvent("expected exactly one study.created, as the first event")
    refuse(study.id and event.study != study.id, f"expected an event of study {study.id}")
    if study.concluded_reason is not None and event.type not in _AFTER_CONCLUSION:
        raise ImpossibleEvent("the study was concluded before; expected no further planning, runs or verdicts")
    payload = dict(event.payload)
    worked = payload.pop(WORKED, None)
    if worked is not None:
        if isinstance(worked, bool) or not isinstance(worked, int | float) or worked < 0:
            raise ImpossibleEvent(f"expected {WORKED} to be seconds, at least 0; found {worked!r}")
        study.measured = True
        study.worked_s += worked
    elif study.last_ts and not study.measured:
        waits = {EventType.STUDY_STOPPED, EventType.STUDY_PAUSED, EventType.STUDY_RESUMED}
        if study.stopped_reason is not None or study.concluded_reason is not None:
            waits |= {EventType.DESIGN_AMENDED, EventType.HYPOTHESIS_VETOED}
        if event.type not in waits:  # what passed before one of these is no work
            gap = datetime.fromisoformat(event.ts) - datetime.fromisoformat(study.last_ts)
            study.worked_s += max(0.0, gap.total_seconds())
    report, study.report = study.report, None
    change, record = RULES[event.type]
    values = record.model_validate(payload)
    change(study, event, **values.__dict__, **(values.__pydantic_extra__ or {}))
    if event.type is EventType.DESIGN_AMENDED and study.amendments[-1].amendment.kind == "note":
        study.report = report
    if event.type not in (EventType.STUDY_RESUMED, EventType.STUDY_WORKED):
        study.fruitless = 0
    if event.type not in (EventType.DESIGN_AMENDED, EventType.HYPOTHESIS_VETOED, EventType.REPORT_BUILT):
        study.active_ts = event.ts
    study.last_ts, study.event_count, study.head_hash = event.ts, event.seq, event.hash


@rule(EventType.STUDY_CREATED)
def _create(study: StudyState, event: Event, /, topic: str, command: Any, served: bool = False, **given: Any) -> None:
    study.id, study.created, study.topic, study.command, study.served = event.study, event.ts, topic, command, served
    for name in ("planner", "settings", "versions", "machine"):
        setattr(study, name, dict(given[name]))


@rule(EventType.PLANNER_ACTED)
def _add_act(
    study: StudyState, event: Event, action: str, tries: int, tokens: dict[str, int], rejected: tuple[str, ...],
    note: str | None, not_tested: tuple[str, ...] = (), turn: str = "", looks: tuple[dict[str, Any], ...] = (),
    spent: dict[str, dict[str, float]] | None = None, node: str = "", left: tuple[str, ...] | None = None,
    choices: tuple[str, ...] = (), models: tuple[str, ...] = (), tried: tuple[str, ...] = (),
) -> None:  # fmt: skip
    for look in looks:
        AnalysisResult.model_validate(look[MADE]) if MADE in look else None
    note = " ".join(filter(None, (note, *tried)))
    told = (action, tries, tokens, rejected, note, not_tested, turn, looks, spent or {}, node, left, choices)
    study.planner_acts.append(entries.PlannerAct(*told, models))


@rule(EventType.PLANNER_NOTED, EventType.PLANNER_ASKED)
def _add_note(
    study: StudyState, event: Event, text: str, turn: str, index: int, about: str = "", reason: str = "",
    nodes: tuple[PlanNode, ...] = (),
) -> None:  # fmt: skip
    asks = event.type is EventType.PLANNER_ASKED
    kind: entries.NoteKind = "ask" if asks else "revise" if about else "plan" if nodes else "note"
    if kind == "revise" and not any(note.id == about for note in reversed(study.notes.values())):
        raise ImpossibleEvent(f"expected an idea of the planner's notebook to revise; found {about!r}")
    refuse((turn, index) in study.notes, f"note {index} of the turn {turn} was kept before")
    written = kind, text, study.round, turn, index, about, reason, nodes
    study.notes[turn, index] = entries.PlannerNote(event.seq, event.ts, *written)


@rule(EventType.PLANNER_SPOKE)
def _speak(study: StudyState, event: Event, said: PlannerMessage | None = None) -> None:
    study.said, study.spoken = said, (*study.spoken, event.seq)


@rule(EventType.ROUND_BEGUN)
def _begin_round(study: StudyState, event: Event, /, number: int, previous: str, why: str = "", **more: Any) -> None:
    if study.design is None or study.design_hash != previous:
        raise ImpossibleEvent(f"expected a round after the lock {str(study.design_hash)[:12]}; found {previous[:12]}")
    if number != study.round + 1 or number > study.most_rounds:
        raise ImpossibleEvent(f"expected round {study.round + 1} of {study.most_rounds}; found {number}")
    refuse(study.open_claims, f"expected a round whose claims are settled; found {', '.join(study.open_claims)} open")
    if any(run.active for run in study.runs.values()):
        raise ImpossibleEvent("expected a round of which nothing runs any more; found an attempt that does")
    study.rounds_before = (*study.rounds_before, _copy(study))
    _set_round(study, RoundState())
    # What was accepted of one round's runs is accepted of no other's.
    study.amendments = tuple(entry for entry in study.amendments if entry.amendment.kind != "accept")
    study.round, study.why_asked, study.question_try = number, why, int(more.get("try", 0))


def _set_round(study: StudyState, round: RoundState) -> None:
    for field in fields(RoundState):
        setattr(study, field.name, getattr(round, field.name))


@rule(EventType.MODEL_PREPARED)
def _prepare_model(study: StudyState, event: Event, /, seconds: float, phase: str = "confirm", **more: Any) -> None:
    # Earlier versions named the control's model alone.
    models = {"models": more["models"]} if "models" in more else {}
    prepared = {"sha256": more["sha256"], "seconds": seconds, **models}
    study.prepared = {**study.prepared, phase: prepared}
    if phase == "confirm" or study.model is None:
        study.model = prepared


@rule(EventType.STUDY_WORKED)
def _work(study: StudyState, event: Event) -> None:
    """Nothing changes but the seconds worked, which are counted with every event."""


@rule(EventType.STUDY_PAUSED)
def _pause(study: StudyState, event: Event, reason: str) -> None:
    refuse(study.stopped_reason is not None, "the study is stopped; expected nothing to pause")
    study.paused_reason = study.paused_reason or reason


@rule(EventType.STUDY_STOPPED)
def _stop(study: StudyState, event: Event, reason: str) -> None:
    study.stopped_reason, study.stopped_seq, study.paused_reason = reason, event.seq, None


@rule(EventType.STUDY_RESUMED)
def _resume(
    study: StudyState, event: Event, served: bool | None = None, planner_options: dict[str, float] | None = None
) -> None:
    if planner_options:  # caps that a person raised
        held = study.settings.get("planner_options", {})
        study.settings = {**study.settings, "planner_options": {**held, **planner_options}}
    was_paused = study.paused_reason is not None
    study.resumed_count += not was_paused
    study.fruitless += not was_paused
    study.stopped_reason = study.paused_reason = None
    study.said = study.said if study.concluded_reason is not None else None
    study.served = study.served and was_paused if served is None else served


@rule(EventType.STUDY_CONCLUDED)
def _conclude(
    study: StudyState, event: Event, /, reason: str, said: PlannerMessage | None = None, declined: bool = False,
    **more: Any,
) -> None:  # fmt: skip
    if study.design is None and study.rounds_before:  # the round that was begun came to no lock
        last = study.rounds_before[-1]
        study.given_up = (*study.given_up, _copy(study))
        _set_round(study, _copy(last))
        since = [entry for entry in study.amendments if entry not in last.amendments]
        study.amendments = (*last.amendments, *since)
        study.round, study.rounds_before = last.round, study.rounds_before[:-1]
    study.concluded_reason, study.open_question = reason, None
    study.said, study.declined, study.asked_next = said, declined, more.get("next")


@rule(EventType.REPORT_BUILT)
def _add_report(
    study: StudyState, event: Event, /, markdown: dict[str, Any], html: dict[str, Any], **more: Any
) -> None:
    study.newest_report = {**more, "markdown": markdown, "html": html}
    # While it runs, a report is of the past.
    if study.concluded_reason is not None or study.stopped_reason is not None:
        study.report = {"markdown": markdown, "html": html}


@rule(EventType.EXPLORATION_PLANNED)
def _plan_exploration(
    study: StudyState, event: Event, plan: Exploration, hash: str, seconds_per_run: float, turn: str = ""
) -> None:
    refuse((found := plan.hash()) != hash, f"the exploration's hash is {found[:12]}, the event says {hash[:12]}")
    if plan.metric.split != "search":
        raise ImpossibleEvent("an exploration is scored on search tasks; found hidden ones, which are for claims")
    if study.design is not None and (study.design.screen is not None or study.open_claims):
        raise ImpossibleEvent("an exploration was planned while the round's claims are open")
    refuse(study.hypotheses and study.design is None, "an exploration was planned between a proposal and its lock")
    study.explorations = (*study.explorations, entries.PlannedExploration(plan, seconds_per_run, turn, event.seq))
    # Another exploration may begin with another model.
    study.prepared = {phase: model for phase, model in study.prepared.items() if phase != "explore"}


@rule(EventType.RUN_PLANNED)
def _plan_run(study: StudyState, event: Event, run_id: str, spec: RunSpec) -> None:
    refuse(spec.study != study.id, f"expected a run of study {study.id}; found one of {spec.study}")
    expected = _derive_spec(study, spec)
    if spec != expected:
        differing = [name for name in RunSpec.model_fields if getattr(spec, name) != getattr(expected, name)]
        raise ImpossibleEvent(f"the run is not what its lock leads to: {', '.join(differing)} differ")
    if (found := spec.run_id) != run_id:
        raise ImpossibleEvent(f"the spec's run id is {found}, the event says {run_id}")
    refuse(run_id in study.runs, f"run {run_id} was planned before")
    study.runs[run_id] = entries.RunState(run_id, spec, planned=event.ts)


def _derive_spec(study: StudyState, spec: RunSpec) -> RunSpec:
    if spec.phase == "noise":
        return _derive_noise_spec(study, spec)
    if spec.phase == "explore":
        plan = study.explorations[-1].plan if study.explorations else None
        if plan is None or spec.design_hash != plan.hash():
            raise ImpossibleEvent(
                "expected a run of the exploration that was planned last; found another, or none planned"
            )
        refuse(spec.seed not in plan.seeds, f"expected a seed of the exploration; found {spec.seed}")
        return exploration_spec(study.id, plan, _arm(plan.arms, spec, "exploration"), spec.seed)
    design, lock = study.design, study.design_hash
    if design is None or lock is None or spec.design_hash != lock:
        raise ImpossibleEvent(f"expected a run under the locked design {str(lock)[:12]}")
    if spec.phase == "screen":
        if design.screen is None:
            when = "after the screen was decided" if study.selection else "without a screen"
            raise ImpossibleEvent(f"a screening run came {when}")
        refuse(spec.arm not in study.candidates, f"the screen was not asked for a candidate {spec.arm!r}")
        _check_seed(spec, (design.screen.seed,))
        steps = spec.job.get("steps")
        refuse(steps not in [rung.steps for rung in design.screen.rungs], f"no rung of the screen has {steps!r} steps")
        return runs.screen_spec(study.id, design, lock, study.candidates[spec.arm], int(str(steps)))
    refuse(design.screen is not None, "a run of the confirmation came before the screen was decided")
    arm = _arm(design.arms, spec, "design")
    if spec.phase == "confirm":
        _check_seed(spec, study.arm_seeds[arm.name])
        return runs.confirm_spec(study.id, design, lock, arm, spec.seed)
    if design.replication is None:
        raise ImpossibleEvent("the locked design has no replication")
    replicated = {name for name, decision in study.decided.items() if decision.action == "replicate"}
    wanted = [claim for claim in design.hypotheses if claim.id in replicated]
    if not wanted or arm.name not in {design.control_arm, *(name for h in wanted for name in design.contrast_of(h))}:
        raise ImpossibleEvent(f"nothing was decided that replicates the arm {arm.name!r}")
    _check_seed(spec, design.seeds_of(arm.name, design.replication.seeds))
    return runs.replicate_spec(study.id, design, lock, arm, spec.seed)


def _derive_noise_spec(study: StudyState, spec: RunSpec) -> RunSpec:
    plan, lock = study.noise_plan, study.noise_hash
    if plan is None or lock is None or spec.design_hash != lock:
        raise ImpossibleEvent(f"expected an A/A run under the noise plan {str(lock)[:12]}")
    refuse(study.design is not None, "an A/A run came after the design was locked")
    if spec.arm == runs.PLUMBING_ARM and plan.plumbing is not None:
        _check_seed(spec, (plan.plumbing,))
        return runs.zero_lr_spec(study.id, plan, lock, spec.seed)
    refuse(spec.arm != runs.NOISE_ARM, f"expected the arm {runs.NOISE_ARM!r} of A/A runs; found {spec.arm!r}")
    _check_seed(spec, plan.seeds)
    return runs.noise_spec(study.id, plan, lock, spec.seed)


def _arm(arms: Iterable[Arm], spec: RunSpec, where: str) -> Arm:
    arm = next((arm for arm in arms if arm.name == spec.arm), None)
    if arm is None:
        raise ImpossibleEvent(f"the {where} has no arm {spec.arm!r}")
    return arm


def _check_seed(spec: RunSpec, seeds: Collection[int]) -> None:
    refuse(spec.seed not in seeds, f"expected one of the seeds of the phase {spec.phase}; found {spec.seed}")


def _run(study: StudyState, run_id: str) -> entries.RunState:
    refuse(run_id not in study.runs, f"no run {run_id!r} was planned")
    return study.runs[run_id]


@rule(EventType.ATTEMPT_LAUNCHED)
def _launch(
    study: StudyState, event: Event, run_id: str, attempt: int, name: str, sandbox: Mapping[str, Any] = {},
    begins: Mapping[str, Any] = {}, server: str = "",
) -> None:  # fmt: skip
    run = _run(study, run_id)
    refuse(run.status not in ("planned", "ended"), f"run {run_id} is {run.status}; expected no launch now")
    if run.attempts and attempt <= run.attempts[-1].number:
        raise ImpossibleEvent(f"expected attempt {run.attempts[-1].number + 1} of run {run_id}; found {attempt}")
    resumes = begins.get("resumes")
    if resumes is not None and int(resumes) not in [one.number for one in run.attempts]:
        raise ImpossibleEvent(f"expected it to go on from an earlier attempt of run {run_id}; found {resumes}")
    keys = ("initial_sha256", "initial_of", "during_sha256", "why")
    words: dict[str, Any] = {key: str(begins.get(key, "")) for key in keys}
    source = study.every_run.get(untrained := words["initial_of"])
    if untrained and (source is None or source.collected is None or not runs.shares_untrained(run.spec, source.spec)):
        raise ImpossibleEvent(f"run {run_id} does not begin with the policy that run {untrained} was evaluated with")
    earlier = None if resumes is None else int(resumes)
    state = entries.AttemptState(attempt, name, event.ts, sandbox=sandbox, resumes=earlier, server=server, **words)
    study.runs[run_id] = replace(run, attempts=(*run.attempts, state))
    # the run is to be accounted for: claims that were judged without it are open again, and a test made is spent
    rest, design = _resting_on(study, run.spec), study.design
    concerned = [
        verdict for verdict in rest
        if design is not None and run.spec.arm in design.contrast_of(design.hypothesis(verdict.hypothesis))
    ]  # fmt: skip
    tested = {(verdict.hypothesis, verdict.phase): verdict.look for verdict in concerned if verdict.p is not None}
    study.judged_short = {**study.judged_short, **tested}
    supersede(study, concerned)
    if run.spec.phase == "confirm":
        study.stands = (study.stands | {v.hypothesis for v in rest}) - {v.hypothesis for v in concerned}
    if run.spec.phase not in ("noise", "explore"):
        study.first_launch = study.first_launch or entries.Stamp(event.seq, event.ts)


def _resting_on(study: StudyState, spec: RunSpec) -> list[Verdict]:
    if spec.phase == "replicate":
        return list(study.replications)
    design = study.design
    if spec.phase != "confirm" or design is None or not study.counts(spec):
        return []
    return [
        verdict for verdict in study.verdicts if not design.looks
        or spec.seed in design.seeds_of(spec.arm, design.seeds[: design.looks[verdict.look - 1].seeds])
    ]  # fmt: skip


@rule(EventType.ATTEMPT_ENDED)
def _end_attempt(
    study: StudyState, event: Event, run_id: str, attempt: int, status: entries.AttemptStatus, code: str, reason: str,
    seconds: float, refused: Mapping[str, int] = {}, resumed_at: int | None = None, step: int | None = None,
) -> None:  # fmt: skip
    run = _run(study, run_id)
    if (active := run.active) is None or active.number != attempt:
        raise ImpossibleEvent(f"attempt {attempt} of run {run_id} is not running; nothing to end")
    over = replace(
        active, status=status, code=code, reason=reason, seconds=seconds, refused=refused, resumed_at=resumed_at,
        step=step, ended=event.ts,
    )  # fmt: skip
    study.runs[run_id] = replace(run, attempts=(*run.attempts[:-1], over))


@rule(EventType.ATTEMPT_COPIED)
def _copy_attempt(
    study: StudyState, event: Event, run_id: str, attempt: int, url: str, standing: str, reason: str = ""
) -> None:
    """How W&B's copy of an attempt's log stands; results rest on the log itself, so nothing else changes."""
    run = study.every_run.get(run_id) or _run(study, run_id)
    refuse(standing not in STANDINGS, f"expected a standing of {', '.join(STANDINGS)}; found {standing!r}")
    if attempt not in [one.number for one in run.attempts]:
        raise ImpossibleEvent(f"there is no attempt {attempt} of run {run_id}; nothing to copy")
    attempts = tuple(
        replace(one, url=url, standing=STANDINGS[standing], standing_reason=reason) if one.number == attempt else one
        for one in run.attempts
    )

    def changed(state: StudyState) -> StudyState:
        issues = tuple(replace(issue, runs=put(issue.runs)) for issue in state.abandoned)
        return replace(state, runs=put(state.runs), abandoned=issues)

    def put(known: Mapping[str, entries.RunState]) -> dict[str, entries.RunState]:
        return {**known, run_id: replace(run, attempts=attempts)} if run_id in known else dict(known)

    study.runs, study.abandoned = changed(study).runs, changed(study).abandoned
    study.rounds_before = tuple(map(changed, study.rounds_before))
    study.given_up = tuple(map(changed, study.given_up))


@rule(EventType.RUN_COLLECTED)
def _collect(study: StudyState, event: Event, /, run_id: str, attempt: int, **more: Any) -> None:
    run = _run(study, run_id)
    refuse(run.status in ("collected", "invalid"), f"run {run_id} is {run.status}; expected nothing more to collect")
    if next((one.status for one in run.attempts if one.number == attempt), "failed") not in (None, "finished"):
        raise ImpossibleEvent(f"attempt {attempt} of run {run_id} did not finish; nothing of it may be collected")
    for name in ("snapshot", "evaluation"):
        if not isinstance(more[name]["path"], str) or not isinstance(more[name]["sha256"], str):
            raise ImpossibleEvent(f"its {name} lacks a path or a sha256")
    study.runs[run_id] = replace(run, collected={"run_id": run_id, "attempt": attempt, **more}, settled=event.ts)


@rule(EventType.MEASUREMENT_RECORDED)
def _measure(study: StudyState, event: Event, /, **payload: Any) -> None:
    measurement = runs.Measurement.model_validate(payload)
    run = _run(study, measurement.run_id)
    if run.collected is None:
        raise ImpossibleEvent(f"run {run.run_id} is {run.status}; expected a measurement of a collected run only")
    refuse(measurement.key in run.measurements, f"{measurement.key} of run {run.run_id} was recorded before")
    if measurement.sha256 not in (run.collected["snapshot"]["sha256"], run.collected["evaluation"]["sha256"]):
        raise ImpossibleEvent(f"{measurement.key} of run {run.run_id} is bound to no collected file")
    study.runs[run.run_id] = replace(run, measurements={**run.measurements, measurement.key: measurement})
    if measurement.key == run.spec.metric.key:
        study.has_data = study.has_data or run.spec.phase in ("confirm", "replicate")
        stands = study.stands if run.spec.phase == "confirm" else ()
        supersede(study, [verdict for verdict in _resting_on(study, run.spec) if verdict.hypothesis not in stands])


@rule(EventType.RUN_INVALIDATED)
def _invalidate(study: StudyState, event: Event, run_id: str, code: str, reason: str) -> None:
    run = _run(study, run_id)
    refuse(run.invalid is not None, f"run {run_id} was invalidated before")
    study.runs[run_id] = replace(run, invalid=(code, reason), settled=event.ts)
    if code == runs.GENERATED_CODE_FAILED and run.spec.phase == "confirm":
        study.crashed = study.crashed or run_id
    if run.attempts and run.code != code:  # else it counted so
        supersede(study, _resting_on(study, run.spec))
