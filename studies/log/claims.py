"""How events on claims apply: locked, amended, screened, judged, approved.

One question is open at most, until it is answered, another one takes its place or the study is concluded. An amendment
and a veto may come from any process at any moment, also when nothing can follow from them any more; then the log holds
them and nothing changes.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, get_args

from studies.log import entries
from studies.log.event import Event, EventType, ImpossibleEvent, refuse, rule
from studies.log.study import LOOK_RULE, StudyState
from studies.records import statements
from studies.records.alpha import AlphaLedgers
from studies.records.design import Arm, Design, Hypothesis, NoisePlan
from studies.records.procedure import Act, Amendment, RunLength, Selection, Sizing
from studies.records.verdict import ApprovalRequest, Origin, Verdict


def supersede(study: StudyState, verdicts: Collection[Verdict]) -> None:
    study.superseded = (*study.superseded, *verdicts)
    study.verdicts = tuple(verdict for verdict in study.verdicts if verdict not in verdicts)
    study.replications = tuple(verdict for verdict in study.replications if verdict not in verdicts)
    undecided = {verdict.hypothesis for verdict in verdicts if verdict.phase == "confirm"}
    study.decided = {name: decision for name, decision in study.decided.items() if name not in undecided}


@rule(EventType.APPROVAL_ASKED)
def _ask(study: StudyState, event: Event, question: ApprovalRequest, digest: str) -> None:
    refuse(question.study != study.id, f"expected a question of study {study.id}; found one of {question.study}")
    refuse(study.stopped_reason is not None, "the study is stopped; expected nothing to be asked before it goes on")
    due = len(study.questions) + 1
    refuse(question.number != due, f"expected question {due}; found {question.number}")
    explored = [planned.plan.hash() for planned in study.explorations]
    if question.lock not in (study.design_hash, study.noise_hash, *explored):
        raise ImpossibleEvent(f"expected a question about what is locked; found one about {question.lock[:12]}")
    refuse((found := question.hash()) != digest, f"the question's digest is {found[:12]}, the event says {digest[:12]}")
    study.open_question = entries.LoggedApprovalRequest(event.seq, event.ts, question, found)
    study.questions = (*study.questions, study.open_question)


@rule(EventType.APPROVAL_GIVEN, EventType.APPROVAL_DENIED)
def _answer(study: StudyState, event: Event, digest: str, by: Origin, note: str = "") -> None:
    asked, granted = study.open_question, event.type is EventType.APPROVAL_GIVEN
    if asked is None or asked.digest != digest:
        raise ImpossibleEvent(f"the question {digest[:12]} is not open; expected no answer to it")
    answer = entries.ApprovalAnswer(event.seq, event.ts, asked, granted, by, note)
    study.approvals, study.open_question = (*study.approvals, answer), None
    if not granted:
        study.stopped_reason, study.stopped_seq, study.paused_reason = answer.describe(), event.seq, None


@rule(EventType.HYPOTHESIS_PROPOSED)
def _propose(study: StudyState, event: Event, /, **payload: Any) -> None:
    hypothesis = Hypothesis.model_validate(payload)
    refuse(study.design is not None, f"hypothesis {hypothesis.id} came after the design was locked")
    refuse(hypothesis.id in {claim.id for claim in study.hypotheses}, f"hypothesis {hypothesis.id} was proposed before")
    study.hypotheses = (*study.hypotheses, hypothesis)


@rule(EventType.NOISE_PLANNED)
def _plan_noise(study: StudyState, event: Event, plan: NoisePlan, hash: str, seconds_per_run: float = 0.0) -> None:
    refuse(study.design is not None, "A/A runs were planned after the design was locked")
    refuse(study.noise_plan is not None, "A/A runs were planned before; expected one plan per study")
    refuse((found := plan.hash()) != hash, f"the noise plan's hash is {found[:12]}, the event says {hash[:12]}")
    study.noise_plan, study.noise_hash, study.noise_seconds = plan, found, seconds_per_run


@rule(EventType.DESIGN_LOCKED)
def _lock(study: StudyState, event: Event, design: Design, hash: str, file: str) -> None:
    if design.repaired:
        _abandon(study, event, design)
    else:
        refuse(study.design is not None, "a design was locked before; expected one lock per study")
    refuse(study.explores, "a design was locked in a study that was asked to explore, and to test nothing")
    refuse((found := design.hash()) != hash, f"the design's hash is {found[:12]}, the lock says {hash[:12]}")
    if (again := study.reproduces) is not None:
        due, before = again.lock_again(design.seeds, design.metric.task_seed, design.budget), again.design.seeds
        new = len(design.seeds) == len(before) and {*design.seeds}.isdisjoint(before)
        refuse(design != due or not new, "expected the lock that it reproduces, on as many seeds, all of them new")
    place, last = design.inquiry, study.rounds_before[-1] if study.rounds_before else None
    if last is not None and (place is None or place.previous != last.design_hash):
        raise ImpossibleEvent(f"the lock of round {study.round} does not name the lock of the round before")
    if last is not None and any(seed in before.seeds_used for before in last.rounds for seed in design.seeds):
        raise ImpossibleEvent(f"the lock of round {study.round} names seeds of an earlier round; expected fresh ones")
    if any(seed in design.seeds for tried in study.explorations for seed in tried.plan.seeds):
        raise ImpossibleEvent("the lock names a seed of an exploration, of which no claim may be made")
    if place is not None:
        ledgers = AlphaLedgers.begin(place.of) if last is None else last.ledgers.after(last.outcome)
        try:
            ledgers.allocate(design)
        except ValueError as error:
            raise ImpossibleEvent(
                f"the lock of round {study.round} is not what the ledgers give it: {error}"
            ) from error
    study.locked_design, study.design_hash, study.lock_file = design, found, file
    study.locked = entries.Stamp(event.seq, event.ts)
    _set_design(study, statements.apply_pilot(design))


def _abandon(study: StudyState, event: Event, design: Design) -> None:
    """Give up what a lock led to, for one that differs in the source of the code which crashed and in its seeds: before
    any of it was judged, after a turn of the planner that looked at nothing."""
    crash, before, seeds = study.repairable, study.locked_design, design.seeds
    if crash is None or before is None or study.lock_file is None or design.repaired != study.design_hash:
        raise ImpossibleEvent("a lock repairs code; expected an early crash under the one that it names, no verdict")
    name = before.arm(crash.spec.arm).code
    code = {**before.code, name: design.code.get(name, "")}
    same = before.model_copy(update={"code": code, "seeds": seeds, "repaired": design.repaired})
    if design != same or len(seeds) != len(before.seeds) or code == before.code:
        raise ImpossibleEvent(f"the lock differs from the one before in more than the source of {name} and its seeds")
    if not study.seeds_used.isdisjoint(seeds):
        raise ImpossibleEvent("the lock names seeds of the issue that it repairs; expected fresh ones")
    if any(run.active for run in study.runs.values()):
        raise ImpossibleEvent("an attempt of the issue that is repaired runs; expected none")
    if not any(act.turn == study.repair_turn and not act.tool_calls for act in study.planner_acts):
        raise ImpossibleEvent(f"expected the turn {study.repair_turn} before it, in which the planner sees no result")
    runs = {run.run_id: run for run in study.runs.values() if run.spec.phase == "confirm"}  # of any length
    issue = entries.AbandonedIssue(event.seq, event.ts, before, design.repaired, study.lock_file, crash, runs)
    study.runs = {key: run for key, run in study.runs.items() if key not in runs}
    study.abandoned, study.crashed, study.sizing = (*study.abandoned, issue), "", None
    study.first_launch, study.has_data, study.length = None, False, None


def _set_design(study: StudyState, design: Design) -> None:
    study.design = design
    study.arm_seeds = {arm.name: frozenset(design.seeds_of(arm.name, design.seeds)) for arm in design.arms}


@rule(EventType.DESIGN_AMENDED)
def _amend(study: StudyState, event: Event, amendment: Amendment) -> None:
    answers = amendment.kind == "note" and study.takes_notes
    if study.design is None and amendment.kind != "budget" and not answers:
        raise ImpossibleEvent("an amendment came before any design was locked")
    claim = amendment.claim
    refuse(claim and not any(each.verdict_on(claim) for each in study.rounds), f"expected a verdict on {claim!r}")
    late = study.concluded_reason is not None
    logged = entries.LoggedAmendment(event.seq, event.ts, amendment, event.actor, study.has_data, late)
    study.amendments = (*study.amendments, logged)
    study.rounds_before = tuple(
        replace(each, amendments=(*each.amendments, logged)) if claim and each.verdict_on(claim) else each
        for each in study.rounds_before
    )
    if amendment.kind == "accept" and not late:
        supersede(study, [v for v in (*study.verdicts, *study.replications) if v.verdict == "invalid"])


@rule(EventType.HYPOTHESIS_VETOED)
def _veto(study: StudyState, event: Event, hypothesis: str, reason: str) -> None:
    refuse(hypothesis not in {claim.id for claim in study.hypotheses}, f"no hypothesis {hypothesis!r} was proposed")
    if hypothesis not in study.vetoed:
        study.vetoed = {**study.vetoed, hypothesis: entries.Veto(event.seq, event.ts, reason, event.actor)}


@rule(EventType.CANDIDATE_ASKED)
def _ask_candidate(study: StudyState, event: Event, arm: Arm, index: int) -> None:
    refuse(study.selection is not None, f"candidate {arm.name} came after the screen was decided")
    if study.design is None or study.design.screen is None:
        raise ImpossibleEvent(f"candidate {arm.name} came without a locked screen")
    screen = study.design.screen
    if index != len(study.candidates) or index >= screen.candidates:
        raise ImpossibleEvent(f"expected candidate {len(study.candidates)} of {screen.candidates}; found {index}")
    values = {knob.field: knob.values for knob in screen.knobs}
    if stray := [field for field, value in arm.overrides.items() if value not in values.get(field, ())]:
        raise ImpossibleEvent(f"candidate {arm.name} sets {', '.join(stray)} to what the screen's knobs do not have")
    refuse(arm.name in study.candidates, f"candidate {arm.name} was asked before")
    study.candidates = {**study.candidates, arm.name: arm}


@rule(EventType.SCREEN_DECIDED)
def _decide_screen(
    study: StudyState, event: Event, selection: Selection, arms: tuple[Arm, ...], hypotheses: tuple[Hypothesis, ...]
) -> None:
    refuse(study.selection is not None, "the screen was decided before")
    if study.design is None or study.design.screen is None:
        raise ImpossibleEvent("there is no locked screen to decide")
    kept, most = selection.kept, study.design.screen.confirmed
    if never := [name for name in (*kept, *selection.scores) if name not in study.candidates]:
        raise ImpossibleEvent(f"the screen was never asked for {', '.join(never)}")
    if len(kept) > most or len(set(kept)) != len(kept):
        raise ImpossibleEvent(f"expected at most {most} different candidates kept; found {list(kept)}")
    if arms != statements.select_arms(study.design, tuple(study.candidates.values()), selection):
        raise ImpossibleEvent("its arms are not the candidates that it kept")
    if hypotheses not in (statements.claims(study.design, arms), statements.claims_in_old_words(study.design, arms)):
        raise ImpossibleEvent("its hypotheses are not what follows from the arms that it kept")
    study.selection = selection
    study.hypotheses = tuple(({h.id: h for h in study.hypotheses} | {h.id: h for h in hypotheses}).values())
    # With no arm left to confirm there are no claims, which only a design without data may be.
    found = {"arms": (*study.design.arms, *arms), "hypotheses": hypotheses, "screen": None}
    _set_design(study, study.design.model_copy(update=found))


@rule(EventType.LENGTH_DECIDED)
def _set_length(study: StudyState, event: Event, /, **payload: Any) -> None:
    length, design = RunLength.model_validate(payload), study.design
    if not study.awaits_length or design is None or design.extension is None:
        raise ImpossibleEvent("there is no pilot that says how long runs are now")
    if length.steps not in (lengths := (int(design.base_job["steps"]), design.extension.steps)):
        raise ImpossibleEvent(f"expected runs of {lengths[0]} or {lengths[1]} steps; found {length.steps}")
    _set_design(study, design.model_copy(update={"base_job": {**design.base_job, "steps": length.steps}}))
    study.length = length


@rule(EventType.DESIGN_SIZED)
def _size(study: StudyState, event: Event, /, **payload: Any) -> None:
    sizing, locked, design = Sizing.model_validate(payload), study.locked_design, study.design
    if not study.awaits_sizing or locked is None or design is None or (pilot := design.pilot) is None:
        raise ImpossibleEvent("there is no pilot that sizes the design now")
    refuse(study.awaits_length, "expected a pilot that said how long runs are before it sizes the design")
    stops = [look.seeds for look in sizing.looks]
    if not pilot.seeds <= sizing.seeds <= pilot.most or sizing.seeds != stops[-1] or stops != sorted(set(stops)):
        raise ImpossibleEvent(f"expected {pilot.seeds} to {pilot.most} seeds, looked at up to all; found {stops}")
    _set_design(study, statements.apply_sizing(locked, design, sizing))
    study.sizing = sizing


@rule(EventType.VERDICT_COMPUTED)
def _judge(study: StudyState, event: Event, /, **payload: Any) -> None:
    verdict = Verdict.model_validate(payload)
    name, design = verdict.hypothesis, study.design
    if design is None or name not in {claim.id for claim in design.hypotheses}:
        raise ImpossibleEvent(f"the locked design has no hypothesis {name!r}")
    earlier, ended = dict[str, Verdict](), study.ended_by(name)
    if verdict.phase == "replicate":
        if name not in study.decided or study.decided[name].action != "replicate":
            raise ImpossibleEvent(f"nothing was decided that replicates {name}")
        if name in {other.hypothesis for other in study.replications}:
            raise ImpossibleEvent(f"the verdict on the replication of {name} stands; expected no other")
        study.replications = (*study.replications, verdict)
    elif verdict.phase == "confirm":
        refuse(verdict.look > max(1, len(design.looks)), f"the locked design has no look {verdict.look}")
        settled = (other for other in study.verdicts if study.is_judged(other.hypothesis))
        earlier = {other.hypothesis: other for other in settled if other.look < verdict.look}
        earlier.pop(name, None)
        if (before := study.verdict_on(name)) is not None:
            if before.final or study.is_ended_by_rule(name):
                raise ImpossibleEvent(f"the final verdict on {name} stands; expected no other")
            refuse(verdict.look <= before.look, f"{name} was judged at look {before.look} before; expected a later one")
            study.interim = (*study.interim, before)
            study.verdicts = tuple(verdict for verdict in study.verdicts if verdict is not before)
            study.decided = {claim: decision for claim, decision in study.decided.items() if claim != name}
        study.verdicts = (*study.verdicts, verdict)
    else:
        raise ImpossibleEvent(f"runs of the phase {verdict.phase} allow no verdict")
    known = entries.VerdictContext(event.seq, earlier, ended, design, dict(study.runs))
    study.contexts = {**study.contexts, (name, verdict.phase): known}


@rule(EventType.DECISION_TAKEN)
def _decide(
    study: StudyState, event: Event, rule: str, action: str, reason: str, hypothesis: str | None = None, look: int = 0
) -> None:
    decision = entries.Decision(event.seq, event.ts, rule, action, reason, hypothesis, look)
    if hypothesis is not None:
        verdict = study.verdict_on(hypothesis)
        if verdict is None or verdict.look != look:
            raise ImpossibleEvent(f"no verdict on {hypothesis!r} of look {look} stands to decide by")
        refuse(hypothesis in study.decided, f"the next step for {hypothesis} after look {look} was decided before")
        if action not in (acts := get_args(Act)):
            raise ImpossibleEvent(f"expected one of {', '.join(acts)} for {hypothesis}; found {action!r}")
        if rule == LOOK_RULE and (verdict.final or action not in ("settle", "continue")):
            found = f"{action} of {hypothesis}, whose verdict is {'final' if verdict.final else 'open'}"
            raise ImpossibleEvent(f"expected a planner to continue or settle what is open; found {found}")
        study.decided = {**study.decided, hypothesis: decision}
    study.decisions = (*study.decisions, decision)
