"""What may happen to a study's claims, one small rule for each type of event: locked, amended, screened, judged.

An amendment and a veto may come from any process at any moment, also when nothing follows from them any more: such a
one stands in the log and changes nothing.
"""

from __future__ import annotations

from studies.draft import Draft, Payload, Refused
from studies.events import Event
from studies.procedure import Amendment, NoisePlan, Selection
from studies.records import Arm, Design, Hypothesis, Verdict
from studies.screened import claims, claims_of_old, confirmed_arms, effective
from studies.specs import noise_hash
from studies.standing import Amended, Decision, Grounds, Stamp, Veto

DECISIONS = ("continue", "settle", "replicate")


def proposed(draft: Draft, event: Event, payload: Payload) -> None:
    """A hypothesis is put on the board."""
    hypothesis = Hypothesis.model_validate(payload)
    if draft.design is not None:
        raise Refused(f"hypothesis {hypothesis.id} came after the design was locked")
    if hypothesis.id in draft.hypotheses:
        raise Refused(f"hypothesis {hypothesis.id} was proposed before")
    draft.hypotheses[hypothesis.id] = hypothesis


def noise_planned(draft: Draft, event: Event, payload: Payload) -> None:
    """A/A runs are locked, before the design that they serve."""
    plan = NoisePlan.model_validate(payload["plan"])
    if draft.design is not None:
        raise Refused("A/A runs were planned after the design was locked")
    if draft.noise_plan is not None:
        raise Refused("A/A runs were planned before; expected one plan per study")
    if (found := noise_hash(plan)) != payload["hash"]:
        raise Refused(f"the noise plan's hash is {found[:12]}, the event says {str(payload['hash'])[:12]}")
    draft.noise_plan, draft.noise_hash = plan, found
    draft.noise_seconds = float(payload.get("seconds_per_run", 0.0))


def locked(draft: Draft, event: Event, payload: Payload) -> None:
    """The design is fixed."""
    design = Design.model_validate(payload["design"])
    if draft.design is not None:
        raise Refused("a design was locked before; expected one lock per study")
    if (found := design.hash()) != payload["hash"]:
        raise Refused(f"the design's hash is {found[:12]}, the lock says {str(payload['hash'])[:12]}")
    draft.design = draft.locked_design = design
    draft.design_hash = found
    draft.lock_file = payload.get("file")
    draft.locked = Stamp(event.seq, event.ts)


def amended(draft: Draft, event: Event, payload: Payload) -> None:
    """A change after the lock, or of the budget at any time; one that accepts has invalid verdicts computed again."""
    amendment = Amendment.model_validate(payload["amendment"])
    if draft.design is None and amendment.kind != "budget":
        raise Refused("an amendment came before any design was locked")
    late = draft.concluded_reason is not None
    draft.amendments.append(Amended(amendment, event.seq, event.ts, event.actor, draft.has_data, late))
    if amendment.kind == "accept" and not late:
        draft.supersede(name for name, verdict in draft.verdicts.items() if verdict.verdict == "invalid")
        draft.supersede_replications(name for name, v in draft.replications.items() if v.verdict == "invalid")


def vetoed(draft: Draft, event: Event, payload: Payload) -> None:
    """A person gives a hypothesis up; the first reason stands."""
    name = str(payload["hypothesis"])
    if name not in draft.hypotheses:
        raise Refused(f"no hypothesis {name!r} was proposed")
    draft.vetoed.setdefault(name, Veto(str(payload["reason"]), event.seq, event.ts, event.actor))


def asked(draft: Draft, event: Event, payload: Payload) -> None:
    """The screen is asked for its next candidate: values of its knobs, not tried before."""
    arm, index = Arm.model_validate(payload["arm"]), int(payload["index"])
    if draft.selection is not None:
        raise Refused(f"candidate {arm.name} came after the screen was decided")
    if draft.design is None or draft.design.screen is None:
        raise Refused(f"candidate {arm.name} came without a locked screen")
    screen = draft.design.screen
    if index != len(draft.candidates) or index >= screen.candidates:
        raise Refused(f"expected candidate {len(draft.candidates)} of {screen.candidates}; found {index}")
    values = {knob.field: knob.values for knob in screen.knobs}
    if stray := [field for field, value in arm.overrides.items() if value not in values.get(field, ())]:
        raise Refused(f"candidate {arm.name} sets {', '.join(stray)} to what the screen's knobs do not have")
    if arm.name in draft.candidates:
        raise Refused(f"candidate {arm.name} was asked before")
    draft.candidates[arm.name] = arm


def screened(draft: Draft, event: Event, payload: Payload) -> None:
    """The screen is decided: arms and claims follow from what it kept."""
    selection = Selection.model_validate(payload["selection"])
    if draft.selection is not None:
        raise Refused("the screen was decided before")
    if draft.design is None or draft.design.screen is None:
        raise Refused("there is no locked screen to decide")
    kept = selection.kept
    if never := [name for name in (*kept, *selection.scores) if name not in draft.candidates]:
        raise Refused(f"the screen was never asked for {', '.join(never)}")
    if len(kept) > draft.design.screen.confirmed or len(set(kept)) != len(kept):
        raise Refused(f"expected at most {draft.design.screen.confirmed} different candidates kept; found {list(kept)}")
    arms = confirmed_arms(draft.design, tuple(draft.candidates.values()), selection)
    hypotheses = claims(draft.design, arms)
    if tuple(Arm.model_validate(arm) for arm in payload["arms"]) != arms:
        raise Refused("its arms are not the candidates that it kept")
    told = tuple(Hypothesis.model_validate(claim) for claim in payload["hypotheses"])
    if told not in (hypotheses, claims_of_old(draft.design, arms)):
        raise Refused("its hypotheses are not what follows from the arms that it kept")
    draft.selection = selection
    draft.hypotheses |= {hypothesis.id: hypothesis for hypothesis in told}
    draft.design = effective(draft.design, arms, told)


def judged(draft: Draft, event: Event, payload: Payload) -> None:
    """A verdict of the next look; a final one is never replaced while its data stand."""
    verdict = Verdict.model_validate(payload)
    if draft.design is None or verdict.hypothesis not in {h.id for h in draft.design.hypotheses}:
        raise Refused(f"the locked design has no hypothesis {verdict.hypothesis!r}")
    if verdict.phase == "replicate":
        _judge_replication(draft, verdict)
        draft.grounds[verdict.hypothesis, "replicate"] = Grounds(event.seq, {})
        return
    if verdict.phase != "confirm":
        raise Refused(f"runs of the phase {verdict.phase} allow no verdict")
    if verdict.look > max(1, len(draft.design.looks)):
        raise Refused(f"the locked design has no look {verdict.look}")
    grounds = Grounds(event.seq, _settled_before(draft, verdict))
    _judge_look(draft, verdict)
    draft.grounds[verdict.hypothesis, "confirm"] = grounds


def _settled_before(draft: Draft, verdict: Verdict) -> dict[str, Verdict]:
    """Return the standing verdicts on other hypotheses that were settled at an earlier look."""
    return {
        name: other
        for name, other in draft.verdicts.items()
        if name != verdict.hypothesis
        and other.look < verdict.look
        and (other.final or name in draft.vetoed or _settling(draft, name))
    }


def _judge_look(draft: Draft, verdict: Verdict) -> None:
    name = verdict.hypothesis
    if (before := draft.verdicts.get(name)) is not None:
        if before.final or _settling(draft, name):
            raise Refused(f"the final verdict on {name} stands; expected no other")
        if verdict.look <= before.look:
            raise Refused(f"{name} was judged at look {before.look} before; expected a later one")
        draft.interim.append(draft.verdicts.pop(name))
        draft.decided.pop(name, None)
    draft.verdicts[name] = verdict


def _settling(draft: Draft, name: str) -> bool:
    decided = draft.decided.get(name)
    return decided is not None and decided.action != "continue"


def _judge_replication(draft: Draft, verdict: Verdict) -> None:
    decided = draft.decided.get(verdict.hypothesis)
    if decided is None or decided.action != "replicate":
        raise Refused(f"nothing was decided that replicates {verdict.hypothesis}")
    if verdict.hypothesis in draft.replications:
        raise Refused(f"the verdict on the replication of {verdict.hypothesis} stands; expected no other")
    draft.replications[verdict.hypothesis] = verdict


def decided(draft: Draft, event: Event, payload: Payload) -> None:
    """A rule decided: on the study, or on a hypothesis by its standing verdict."""
    name = payload.get("hypothesis")
    decision = Decision(
        rule=str(payload["rule"]), action=str(payload["action"]), reason=str(payload["reason"]), ts=event.ts,
        hypothesis=name, look=int(payload.get("look", 0)), seq=event.seq,
    )  # fmt: skip
    if name is not None:
        _decide_on(draft, decision, name)
    draft.decisions.append(decision)


def _decide_on(draft: Draft, decision: Decision, name: str) -> None:
    verdict = draft.verdicts.get(name)
    if verdict is None or verdict.look != decision.look:
        raise Refused(f"no verdict on {name!r} of look {decision.look} stands to decide by")
    if name in draft.decided:
        raise Refused(f"the next step for {name} after look {decision.look} was decided before")
    if decision.action not in DECISIONS:
        raise Refused(f"expected one of {', '.join(DECISIONS)} for {name}; found {decision.action!r}")
    draft.decided[name] = decision
