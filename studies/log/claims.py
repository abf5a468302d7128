"""How events on claims apply: locked, amended, screened, judged, approved.

One question is open at most. It stays open until it is answered, until another one takes its place or the study is
concluded, over stops, pauses and resumptions; an answer names the digest of the question that it is to. A denial stops
the study. An amendment and a veto may come from any process at any moment, also when nothing can follow from them any
more; then the log holds them and nothing changes.
"""

from __future__ import annotations

from typing import get_args

from studies.log.event import Event
from studies.log.study import (
    ApprovalAnswer,
    Decision,
    ImpossibleEvent,
    LoggedAmendment,
    LoggedApprovalRequest,
    Payload,
    Stamp,
    StateBuilder,
    VerdictContext,
    Veto,
)
from studies.records.alpha import AlphaLedgers, OverdrawnLedger
from studies.records.design import Arm, Design, Hypothesis, NoisePlan
from studies.records.procedure import Act, Amendment, Selection
from studies.records.runs import noise_hash
from studies.records.statements import apply_selection, claims, claims_in_old_words, select_arms
from studies.records.verdict import ORIGINS, ApprovalRequest, Verdict


def apply_approval_asked(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """A person is asked; a question that was open before is not asked any more."""
    question = ApprovalRequest.model_validate(payload["question"])
    if question.study != builder.id:
        raise ImpossibleEvent(f"expected a question of study {builder.id}; found one of {question.study}")
    if builder.stopped_reason is not None:
        raise ImpossibleEvent("the study is stopped; expected nothing to be asked before it goes on")
    if question.number != len(builder.questions) + 1:
        raise ImpossibleEvent(f"expected question {len(builder.questions) + 1}; found {question.number}")
    explored = [planned.plan.hash() for planned in builder.explorations]
    if question.lock not in (builder.design_hash, builder.noise_hash, *explored):
        raise ImpossibleEvent(f"expected a question about what is locked; found one about {question.lock[:12]}")
    if (found := question.digest()) != payload["digest"]:
        raise ImpossibleEvent(f"the question's digest is {found[:12]}, the event says {str(payload['digest'])[:12]}")
    builder.open_question = LoggedApprovalRequest(question, found, event.seq, event.ts)
    builder.questions.append(builder.open_question)


def apply_approval_given(builder: StateBuilder, event: Event, payload: Payload) -> None:
    _record_answer(builder, event, payload, granted=True)


def apply_approval_denied(builder: StateBuilder, event: Event, payload: Payload) -> None:
    answer = _record_answer(builder, event, payload, granted=False)
    builder.stopped_reason, builder.stopped_seq = answer.describe(), event.seq
    builder.paused_reason = None


def _record_answer(builder: StateBuilder, event: Event, payload: Payload, *, granted: bool) -> ApprovalAnswer:
    asked, digest, by = builder.open_question, str(payload["digest"]), payload["by"]
    if asked is None or asked.digest != digest:
        raise ImpossibleEvent(f"the question {digest[:12]} is not open; expected no answer to it")
    if by not in ORIGINS:
        raise ImpossibleEvent(f"expected an answer by one of {', '.join(ORIGINS)}; found {by!r}")
    answer = ApprovalAnswer(asked, granted, by, str(payload.get("note", "")), event.seq, event.ts)
    builder.approvals.append(answer)
    builder.open_question = None
    return answer


def apply_hypothesis_proposed(builder: StateBuilder, event: Event, payload: Payload) -> None:
    hypothesis = Hypothesis.model_validate(payload)
    if builder.design is not None:
        raise ImpossibleEvent(f"hypothesis {hypothesis.id} came after the design was locked")
    if hypothesis.id in builder.hypotheses:
        raise ImpossibleEvent(f"hypothesis {hypothesis.id} was proposed before")
    builder.hypotheses[hypothesis.id] = hypothesis


def apply_noise_planned(builder: StateBuilder, event: Event, payload: Payload) -> None:
    plan = NoisePlan.model_validate(payload["plan"])
    if builder.design is not None:
        raise ImpossibleEvent("A/A runs were planned after the design was locked")
    if builder.noise_plan is not None:
        raise ImpossibleEvent("A/A runs were planned before; expected one plan per study")
    if (found := noise_hash(plan)) != payload["hash"]:
        raise ImpossibleEvent(f"the noise plan's hash is {found[:12]}, the event says {str(payload['hash'])[:12]}")
    builder.noise_plan, builder.noise_hash = plan, found
    builder.noise_seconds = float(payload.get("seconds_per_run", 0.0))


def apply_design_locked(builder: StateBuilder, event: Event, payload: Payload) -> None:
    design = Design.model_validate(payload["design"])
    if builder.design is not None:
        raise ImpossibleEvent("a design was locked before; expected one lock per study")
    if (found := design.hash()) != payload["hash"]:
        raise ImpossibleEvent(f"the design's hash is {found[:12]}, the lock says {str(payload['hash'])[:12]}")
    _require_place(builder, design)
    builder.design = builder.locked_design = design
    builder.design_hash = found
    builder.lock_file = str(payload["file"])
    builder.locked = Stamp(event.seq, event.ts)


def _require_place(builder: StateBuilder, design: Design) -> None:
    """Refuse a lock that is no link of the chain of rounds, or spends what the ledgers do not give it."""
    place, last = design.inquiry, builder.rounds_before[-1] if builder.rounds_before else None
    if place is None and last is None:
        return
    if last is not None and (place is None or place.previous != last.design_hash):
        raise ImpossibleEvent(f"the lock of round {builder.round} does not name the lock of the round before")
    assert place is not None
    if last is not None and any(seed in before.seeds_used for before in last.rounds for seed in design.seeds):
        raise ImpossibleEvent(f"the lock of round {builder.round} names seeds of an earlier round; expected fresh ones")
    ledgers = AlphaLedgers.begin(place.of) if last is None else last.ledgers.after(last.outcome)
    try:
        ledgers.allocate(design)
    except OverdrawnLedger as error:
        raise ImpossibleEvent(f"the lock of round {builder.round} is not what the ledgers give it: {error}") from error


def apply_amendment(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """A change after the lock, or of the budget at any time; one that accepts has invalid verdicts computed again."""
    amendment = Amendment.model_validate(payload["amendment"])
    answers = amendment.kind == "note" and (builder.before or any(n.kind == "ask" for n in builder.notebook))
    if builder.design is None and amendment.kind != "budget" and not answers:
        raise ImpossibleEvent("an amendment came before any design was locked")
    late = builder.concluded_reason is not None
    builder.amendments.append(LoggedAmendment(amendment, event.seq, event.ts, event.actor, builder.has_data, late))
    if amendment.kind == "accept" and not late:
        builder.supersede(name for name, verdict in builder.verdicts.items() if verdict.verdict == "invalid")
        builder.supersede_replications(name for name, v in builder.replications.items() if v.verdict == "invalid")


def apply_veto(builder: StateBuilder, event: Event, payload: Payload) -> None:
    name = str(payload["hypothesis"])
    if name not in builder.hypotheses:
        raise ImpossibleEvent(f"no hypothesis {name!r} was proposed")
    builder.vetoed.setdefault(name, Veto(str(payload["reason"]), event.seq, event.ts, event.actor))


def apply_candidate_asked(builder: StateBuilder, event: Event, payload: Payload) -> None:
    arm, index = Arm.model_validate(payload["arm"]), int(payload["index"])
    if builder.selection is not None:
        raise ImpossibleEvent(f"candidate {arm.name} came after the screen was decided")
    if builder.design is None or builder.design.screen is None:
        raise ImpossibleEvent(f"candidate {arm.name} came without a locked screen")
    screen = builder.design.screen
    if index != len(builder.candidates) or index >= screen.candidates:
        raise ImpossibleEvent(f"expected candidate {len(builder.candidates)} of {screen.candidates}; found {index}")
    values = {knob.field: knob.values for knob in screen.knobs}
    if stray := [field for field, value in arm.overrides.items() if value not in values.get(field, ())]:
        raise ImpossibleEvent(f"candidate {arm.name} sets {', '.join(stray)} to what the screen's knobs do not have")
    if arm.name in builder.candidates:
        raise ImpossibleEvent(f"candidate {arm.name} was asked before")
    builder.candidates[arm.name] = arm


def apply_screen_decided(builder: StateBuilder, event: Event, payload: Payload) -> None:
    selection = Selection.model_validate(payload["selection"])
    if builder.selection is not None:
        raise ImpossibleEvent("the screen was decided before")
    if builder.design is None or builder.design.screen is None:
        raise ImpossibleEvent("there is no locked screen to decide")
    kept = selection.kept
    if never := [name for name in (*kept, *selection.scores) if name not in builder.candidates]:
        raise ImpossibleEvent(f"the screen was never asked for {', '.join(never)}")
    if len(kept) > builder.design.screen.confirmed or len(set(kept)) != len(kept):
        most = builder.design.screen.confirmed
        raise ImpossibleEvent(f"expected at most {most} different candidates kept; found {list(kept)}")
    arms = select_arms(builder.design, tuple(builder.candidates.values()), selection)
    hypotheses = claims(builder.design, arms)
    if tuple(Arm.model_validate(arm) for arm in payload["arms"]) != arms:
        raise ImpossibleEvent("its arms are not the candidates that it kept")
    told = tuple(Hypothesis.model_validate(claim) for claim in payload["hypotheses"])
    if told not in (hypotheses, claims_in_old_words(builder.design, arms)):
        raise ImpossibleEvent("its hypotheses are not what follows from the arms that it kept")
    builder.selection = selection
    builder.hypotheses |= {hypothesis.id: hypothesis for hypothesis in told}
    builder.design = apply_selection(builder.design, arms, told)


def apply_verdict(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """A verdict of the next look; a final one is never replaced while its data are unchanged."""
    verdict = Verdict.model_validate(payload)
    if builder.design is None or verdict.hypothesis not in {h.id for h in builder.design.hypotheses}:
        raise ImpossibleEvent(f"the locked design has no hypothesis {verdict.hypothesis!r}")
    if verdict.phase == "replicate":
        _add_replication_verdict(builder, verdict)
        builder.contexts[verdict.hypothesis, "replicate"] = VerdictContext(event.seq, {})
        return
    if verdict.phase != "confirm":
        raise ImpossibleEvent(f"runs of the phase {verdict.phase} allow no verdict")
    if verdict.look > max(1, len(builder.design.looks)):
        raise ImpossibleEvent(f"the locked design has no look {verdict.look}")
    earlier = {
        name: other
        for name, other in builder.verdicts.items()
        if name != verdict.hypothesis and other.look < verdict.look and builder.is_settled(name)
    }
    _add_interim_verdict(builder, verdict)
    builder.contexts[verdict.hypothesis, "confirm"] = VerdictContext(event.seq, earlier)


def _add_interim_verdict(builder: StateBuilder, verdict: Verdict) -> None:
    name = verdict.hypothesis
    if (before := builder.verdicts.get(name)) is not None:
        if before.final or builder.is_ended_by_rule(name):
            raise ImpossibleEvent(f"the final verdict on {name} stands; expected no other")
        if verdict.look <= before.look:
            raise ImpossibleEvent(f"{name} was judged at look {before.look} before; expected a later one")
        builder.interim.append(builder.verdicts.pop(name))
        builder.decided.pop(name, None)
    builder.verdicts[name] = verdict


def _add_replication_verdict(builder: StateBuilder, verdict: Verdict) -> None:
    decided = builder.decided.get(verdict.hypothesis)
    if decided is None or decided.action != "replicate":
        raise ImpossibleEvent(f"nothing was decided that replicates {verdict.hypothesis}")
    if verdict.hypothesis in builder.replications:
        raise ImpossibleEvent(f"the verdict on the replication of {verdict.hypothesis} stands; expected no other")
    builder.replications[verdict.hypothesis] = verdict


def apply_decision(builder: StateBuilder, event: Event, payload: Payload) -> None:
    name = payload.get("hypothesis")
    decision = Decision(
        rule=str(payload["rule"]), action=str(payload["action"]), reason=str(payload["reason"]), ts=event.ts,
        hypothesis=name, look=int(payload.get("look", 0)), seq=event.seq,
    )  # fmt: skip
    if name is not None:
        _decide_on(builder, decision, name)
    builder.decisions.append(decision)


def _decide_on(builder: StateBuilder, decision: Decision, name: str) -> None:
    verdict = builder.verdicts.get(name)
    if verdict is None or verdict.look != decision.look:
        raise ImpossibleEvent(f"no verdict on {name!r} of look {decision.look} stands to decide by")
    if name in builder.decided:
        raise ImpossibleEvent(f"the next step for {name} after look {decision.look} was decided before")
    if decision.action not in (acts := get_args(Act)):
        raise ImpossibleEvent(f"expected one of {', '.join(acts)} for {name}; found {decision.action!r}")
    builder.decided[name] = decision
