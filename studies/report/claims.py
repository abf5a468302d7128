"""What a report says about hypotheses: answers, planner's words, predictions against what was observed.

A verdict is only repeated here, never formed; without one the answer says why there is none.
"""

from __future__ import annotations

from studies.question import statement
from studies.records import Design, Hypothesis, Verdict
from studies.report.parts import Answer, Cell, Quote, Table, cell, hash_cell, table
from studies.report.wording import (
    LABELS,
    NONE,
    compared,
    finding,
    number,
    one_line,
    p_value,
    percent,
    plural,
    setting,
    signed,
    span,
    true_minus,
)
from studies.said import who
from studies.standing import StudyState

FROM_SCREEN = "written by code from the screen"


def answers(state: StudyState) -> tuple[Answer, ...]:
    """Return one answer per hypothesis of the design; before there is a design, one that says so."""
    if state.design is None:
        return (Answer("", "none", "No verdict", _why_no_design(state)),)
    verdicts = {verdict.hypothesis: verdict for verdict in state.verdicts}
    return tuple(_answer(state, state.design, h, verdicts.get(h.id)) for h in state.design.hypotheses)


def quotes(state: StudyState) -> tuple[Quote, ...]:
    """Return the words of each hypothesis: the planner's, or code's where a screen led to it."""
    if state.selection is not None:
        return tuple(Quote(h.id, one_line(h.statement), one_line(h.mechanism), FROM_SCREEN) for h in claims(state))
    by = f"in the words of the planner {who(str(state.planner['name']), state.planner.get('model'))}"
    worded = ((h.id, *_in_words(h)) for h in claims(state))
    return tuple(Quote(name, words, mechanism, by) for name, words, mechanism in worded if words)


def _in_words(claim: Hypothesis) -> tuple[str, str]:
    """Return a planner's wording of a claim and its mechanism; the mechanism alone where it left the rest to code."""
    code = statement(claim.variable, claim.control, claim.treatment, claim.direction)
    words = claim.said or ("" if claim.statement == code else claim.statement)
    return (one_line(words), one_line(claim.mechanism)) if words else (one_line(claim.mechanism), "")


def claims(state: StudyState) -> tuple[Hypothesis, ...]:
    """Return the hypotheses under test, or those proposed while there is no design."""
    return state.design.hypotheses if state.design else state.hypotheses


def planner_said(state: StudyState) -> str:
    """Return who planned, in one clause."""
    name, model = str(state.planner.get("name", "unknown")), state.planner.get("model")
    if name == "rules":
        return "Planned by the built-in rules; no language model took part."
    return f"Planned by a language model ({model})." if model else f"Planned by the planner `{name}`."


def prediction_table(state: StudyState) -> Table | None:
    """Return predictions beside what was observed; None before anything was predicted."""
    verdicts = {verdict.hypothesis: verdict for verdict in state.verdicts}
    rows = [_prediction_row(h, verdicts.get(h.id)) for h in claims(state)]
    columns = ("Hypothesis", "Predicted", "Observed", "Inside", "Probability given", "Verdict", "Brier")
    return table(columns, rows, numeric=(1, 2, 4, 6), cards=True) if rows else None


def verdict_table(state: StudyState) -> Table | None:
    """Return the numbers of each verdict; None before there is one."""
    rows = [_verdict_row(state, verdict) for verdict in state.verdicts]
    columns = ("Hypothesis", "Difference", "Interval", "Level", "p", "Test", "n", "Inputs, sha256")
    return table(columns, rows, numeric=(1, 2, 3, 4, 6), cards=True) if rows else None


def rules(state: StudyState) -> tuple[str, ...]:
    """Return, for each verdict, the rule that decided it."""
    return tuple(f"{verdict.hypothesis}: {true_minus(verdict.reason)}" for verdict in state.verdicts)


def _answer(state: StudyState, design: Design, hypothesis: Hypothesis, verdict: Verdict | None) -> Answer:
    if verdict is None:
        return Answer(hypothesis.id, "none", "No verdict", _why_no_verdict(state, design, hypothesis))
    sentence = finding(hypothesis, verdict, design.metric) + _standing(state, hypothesis, verdict)
    return Answer(hypothesis.id, verdict.verdict, LABELS[verdict.verdict], sentence)


def _standing(state: StudyState, hypothesis: Hypothesis, verdict: Verdict) -> str:
    """Return what a reader must know of a verdict besides its numbers; empty for a plain one."""
    said = []
    if not state.is_settled(hypothesis.id):
        over = state.status in ("stopped", "concluded")
        said.append(f"This is look {verdict.look}; the study {'ended before the next' if over else 'goes on'}.")
    if hypothesis.id in state.vetoed:
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


def _why_no_verdict(state: StudyState, design: Design, hypothesis: Hypothesis) -> str:
    counts = [
        f"{plural(len(state.values(design.arm_with(hypothesis.variable, value).name)), 'valid run')} with "
        f"{setting(hypothesis, value)}"
        for value in (hypothesis.treatment, hypothesis.control)
    ]
    have = f"{counts[0]} and {counts[1]} so far, of {len(design.seeds)} planned for each"
    if state.stopped_reason is not None:
        return f"the study is stopped ({one_line(state.stopped_reason)}), with {have}."
    if state.concluded_reason is not None:
        return f"the study ended before this hypothesis was judged ({one_line(state.concluded_reason)}), with {have}."
    return f"the study is not finished; there are {have}."


def _prediction_row(hypothesis: Hypothesis, verdict: Verdict | None) -> list[Cell]:
    prediction = hypothesis.prediction
    inside = {True: "yes", False: "no", None: NONE}[verdict.within_prediction if verdict else None]
    return [
        cell(f"{hypothesis.id}: {compared(hypothesis)}"),
        cell(f"{span(prediction.low, prediction.high)} ({percent(prediction.level)})"),
        cell(signed(verdict.estimate) if verdict else NONE), cell(inside), cell(percent(prediction.probability)),
        _verdict_cell(verdict), cell(number(verdict.brier) if verdict else NONE),
    ]  # fmt: skip


def _verdict_cell(verdict: Verdict | None) -> Cell:
    return cell(LABELS[verdict.verdict], verdict.verdict) if verdict else cell(NONE)


def _verdict_row(state: StudyState, verdict: Verdict) -> list[Cell]:
    return [
        cell(verdict.hypothesis), cell(signed(verdict.estimate)),
        cell(span(verdict.low, verdict.high)), cell(percent(round(verdict.level, 4))), cell(_p(verdict)),
        cell(_test(state, verdict)), cell(f"{verdict.n_treatment} + {verdict.n_control}"),
        hash_cell(verdict.inputs_sha256),
    ]  # fmt: skip


def _p(verdict: Verdict) -> str:
    plain = p_value(verdict.p)
    return plain if verdict.p_adjusted is None else f"{plain} ({p_value(verdict.p_adjusted)} adjusted)"


def _test(state: StudyState, verdict: Verdict) -> str:
    looks = len(state.design.looks) if state.design else 0
    return f"{verdict.test}, look {verdict.look} of {looks}" if looks > 1 else verdict.test
