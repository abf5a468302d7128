"""What a busy person reads first, and what a terminal ends with: asked, tested, verdict, in practice, ask next.

Every sentence is written by code from the state, and every number in it is one of the state's. Whether files still are
what was collected is for whoever reads them: what they found comes in as `lock_error`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from studies.checks.drops import unequal_drops
from studies.log.study_state import StudyState
from studies.question import Question, question_of, unequal
from studies.records.design import Design, Hypothesis
from studies.records.verdict import Verdict
from studies.report.headline.next_question import NextQuestion, ask_next
from studies.report.headline.practice import in_practice
from studies.report.parts.deciding_interval import deciding_interval
from studies.report.parts.wording import finding, label, one_line, plural, reached_said, setting
from studies.report.sections.collapses import scope_said

SPOILT: Final = frozenset({"evidence_missing", "evidence_changed"})
"""Codes of runs whose files were no longer what was collected."""


@dataclass(frozen=True, slots=True)
class HeadlineAnswer:
    """What the study says about one hypothesis: the verdict's label, a sentence bound to its numbers, and what a
    reader may do with it."""

    hypothesis: str
    verdict: str
    label: str
    sentence: str
    practice: str


@dataclass(frozen=True, slots=True)
class Headline:
    """The first lines of a report, in the order they are read."""

    warnings: tuple[str, ...]
    """What was changed after it was fixed: said before anything else."""
    question: Question
    answers: tuple[HeadlineAnswer, ...]
    """One for each hypothesis of the design; one that says why there is none otherwise."""
    next: NextQuestion


def headline(state: StudyState, lock_error: str | None = None) -> Headline:
    """Return the first lines on a state; `lock_error` is what is wrong with the lock's file, None if nothing is."""
    return Headline(
        warnings=tuple(_warnings(state, lock_error)),
        question=question_of(state),
        answers=_answers(state),
        next=ask_next(state),
    )


def answer_line(answer: HeadlineAnswer, many: bool) -> str:
    """Return an answer as one line of text; with `many`, its hypothesis first."""
    return f"{f'{answer.hypothesis}: ' if many else ''}{answer.label}: {answer.sentence}"


def _warnings(state: StudyState, lock_error: str | None) -> list[str]:
    found = []
    if lock_error is not None:
        rests = "No verdict below can be relied on" if state.verdicts else "No verdict will be claimed on it"
        found.append(f"{lock_error[0].upper()}{lock_error[1:]}. {rests} until the file is restored.")
    spoilt = [run for run in state.runs.values() if run.invalid is not None and run.invalid[0] in SPOILT]
    if spoilt:
        names = ", ".join(run.run_id for run in spoilt)
        found.append(f"Files of {plural(len(spoilt), 'run')} were changed or lost after they were collected: {names}.")
    return found


def _answers(state: StudyState) -> tuple[HeadlineAnswer, ...]:
    design = state.design
    if design is None or not design.hypotheses:
        why = _why_no_design(state) if design is None else _why_no_claim(state)
        return (HeadlineAnswer("", "none", "No verdict", why, "nothing follows yet: no comparison has been judged."),)
    return tuple(_answer(state, design, claim) for claim in design.hypotheses)


def _answer(state: StudyState, design: Design, claim: Hypothesis) -> HeadlineAnswer:
    verdict = state.verdict_on(claim.id)
    differ = _differ(state, claim)
    if verdict is None:
        sentence = _why_no_verdict(state, design, claim) + differ
        return HeadlineAnswer(
            claim.id, "none", "No verdict", sentence, "nothing follows yet: the comparison is not judged."
        )
    found = finding(claim, verdict, design.metric, deciding_interval(design, verdict)) + scope_said(claim, verdict)
    said = found + reached_said(claim, verdict, design.metric) + differ + _standing(state, claim, verdict)
    practice = in_practice(state, design, claim, verdict)
    return HeadlineAnswer(claim.id, verdict.verdict, label(claim, verdict), said, practice)


def _differ(state: StudyState, claim: Hypothesis) -> str:
    clauses = (*unequal(state, claim), *unequal_drops(state, claim))
    return f" The arms differ in {'; in '.join(clauses)}." if clauses else ""


def _standing(state: StudyState, claim: Hypothesis, verdict: Verdict) -> str:
    """Return what a reader must know of a verdict besides its numbers; empty for a plain one."""
    said = []
    if not state.is_settled(claim.id):
        over = state.status in ("stopped", "concluded")
        said.append(f"This is look {verdict.look}; the study {'ended before the next' if over else 'goes on'}.")
    if claim.id in state.vetoed:
        said.append("It was vetoed before its last look and rests on what was there.")
    if verdict.exploratory:
        said.append("Exploratory: an amendment after the first result touched it.")
    return "".join(f" {sentence}" for sentence in said)


def _why_no_design(state: StudyState) -> str:
    if state.stopped_reason is not None:
        return f"the study was stopped before a design was locked ({one_line(state.stopped_reason)})."
    if state.concluded_reason is not None:
        return f"the study ended without a design ({one_line(state.concluded_reason)})."
    return "no design is locked yet; the study is still being planned."


def _why_no_claim(state: StudyState) -> str:
    if state.stopped_reason is not None:
        return f"the study was stopped before its screen led to a claim ({one_line(state.stopped_reason)})."
    if state.concluded_reason is not None:
        return f"the screen led to no claim ({one_line(state.concluded_reason)})."
    return "the screen has not led to a claim yet."


def _why_no_verdict(state: StudyState, design: Design, claim: Hypothesis) -> str:
    counts = [
        f"{plural(len(state.values(design.arm_with(claim.variable, value).name)), 'valid run')} with "
        f"{setting(claim, value)}"
        for value in reversed(claim.settings)
    ]
    have = f"{' and '.join(counts)} so far, of {len(design.seeds)} planned for each"
    if state.stopped_reason is not None:
        return f"the study is stopped ({one_line(state.stopped_reason)}), with {have}."
    if state.concluded_reason is not None:
        return f"the study ended before this hypothesis was judged ({one_line(state.concluded_reason)}), with {have}."
    return f"the study is not finished; there are {have}."
