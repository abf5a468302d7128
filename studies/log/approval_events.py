"""What may happen to approvals, one small rule for each type of event: asked, given, denied.

One question is open at most. It stays open until it is answered, until another one takes its place or the study is
concluded, over stops, pauses and resumptions; an answer names the digest of the question that it is to. A denial stops
the study.
"""

from __future__ import annotations

from studies.log.builder import ImpossibleEvent, Payload, StateBuilder
from studies.log.event import Event
from studies.log.study_state import ApprovalAnswer, AskedApproval
from studies.records.approval import ORIGINS, ApprovalQuestion


def asked(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """A person is asked; a question that was open before is not asked any more."""
    question = ApprovalQuestion.model_validate(payload["question"])
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
    builder.open_question = AskedApproval(question, found, event.seq, event.ts)
    builder.questions.append(builder.open_question)


def given(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """The answer is yes."""
    _answered(builder, event, payload, granted=True)


def denied(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """The answer is no, and the study stops with it."""
    answer = _answered(builder, event, payload, granted=False)
    builder.stopped_reason, builder.stopped_seq = answer.said(), event.seq
    builder.paused_reason = None


def _answered(builder: StateBuilder, event: Event, payload: Payload, *, granted: bool) -> ApprovalAnswer:
    asked, digest, by = builder.open_question, str(payload["digest"]), payload["by"]
    if asked is None or asked.digest != digest:
        raise ImpossibleEvent(f"the question {digest[:12]} is not open; expected no answer to it")
    if by not in ORIGINS:
        raise ImpossibleEvent(f"expected an answer by one of {', '.join(ORIGINS)}; found {by!r}")
    answer = ApprovalAnswer(asked, granted, by, str(payload.get("note", "")), event.seq, event.ts)
    builder.approvals.append(answer)
    builder.open_question = None
    return answer
