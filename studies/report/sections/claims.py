"""What a report says about hypotheses: the planner's words, predictions against what was observed, the numbers behind.

A verdict is only repeated here, never formed.
"""

from __future__ import annotations

import re

from studies.log.study_state import StudyState
from studies.records.design import Hypothesis, Metric
from studies.records.planner_words import checked, contradicted, quotation, who
from studies.records.sentences import statement, statement_of
from studies.records.verdict import Verdict
from studies.report.parts.deciding_interval import deciding_interval
from studies.report.parts.parts import Cell, Quote, Table, cell, hash_cell, table
from studies.report.parts.wording import (
    NONE,
    compared,
    counts_said,
    label,
    number,
    one_line,
    p_value,
    percent,
    signed,
    span,
    true_minus,
)

_SIDE = re.compile(", (the predicted side|against the prediction)")
"""What a rule says of a prediction's side, which an open question has none of."""
FROM_SCREEN = "written by code from the screen"


def last_words(state: StudyState) -> str:
    """Return the planner's last words as a quotation, held to every round's verdicts; empty where it had none."""
    if state.said is None:
        return ""
    reached = [verdict for each in state.rounds for verdict in each.verdicts]
    wrong = dict.fromkeys((*state.said.contradicted, *contradicted(state.said.text, reached)))
    return quotation(state.said.model_copy(update={"contradicted": tuple(wrong)}))


def why_asked(state: StudyState) -> str:
    """Return why a round was asked, in the words of whoever asked, held to the verdicts that were there by then."""
    return checked(state.why_asked, [verdict for each in state.rounds_before for verdict in each.verdicts])


def quotes(state: StudyState) -> tuple[Quote, ...]:
    """Return the words of each hypothesis: the planner's, or code's where a screen led to it."""
    if state.selection is not None:
        return tuple(Quote(h.id, one_line(h.statement), one_line(h.mechanism), FROM_SCREEN) for h in claims(state))
    by = f"in the words of the planner {who(str(state.planner['name']), state.planner.get('model'))}"
    metric = None if state.design is None else state.design.metric
    worded = ((h.id, *_in_words(h, metric)) for h in claims(state))
    return tuple(Quote(name, words, mechanism, by) for name, words, mechanism in worded if words)


def _in_words(claim: Hypothesis, metric: Metric | None) -> tuple[str, str]:
    """Return a planner's wording of a claim and its mechanism; the mechanism alone where it left the rest to code."""
    code = statement(claim.variable, claim.control, claim.treatment, claim.direction, metric)
    words = claim.said or ("" if claim.statement in (code, statement_of(claim, metric)) else claim.statement)
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


def verdict_table(state: StudyState) -> Table | None:
    """Return what was predicted of each hypothesis and what was observed; None before anything was predicted."""
    rows = [_verdict_row(state, claim, state.verdict_on(claim.id)) for claim in claims(state)]
    columns = ("Hypothesis", "Difference", "Interval", "Runs", "Predicted", "Inside", "Verdict")
    return table(columns, rows, numeric=(1, 2, 3, 4), cards=True) if rows else None


def numbers_table(state: StudyState) -> Table | None:
    """Return every number behind each verdict, those of replications too; None before anything was predicted."""
    judged = [_numbers_row(state, claim, state.verdict_on(claim.id)) for claim in claims(state)]
    again = [_numbers_row(state, None, verdict) for verdict in state.replications]
    rows = [*judged, *again]
    columns = (
        "Hypothesis", "Locked test", "Interval", "Level", "p", "Equivalence interval", "Probability given", "Brier",
        "Inputs, sha256",
    )  # fmt: skip
    return table(columns, rows, numeric=(2, 3, 4, 5, 6, 7), cards=True) if rows else None


def rules(state: StudyState) -> tuple[str, ...]:
    """Return, for each verdict, the rule that decided it."""
    opened = {claim.id for claim in claims(state) if claim.open}
    return tuple(
        f"{v.hypothesis}: {true_minus(_SIDE.sub('', v.reason) if v.hypothesis in opened else v.reason)}"
        for v in state.verdicts
    )


def _verdict_row(state: StudyState, claim: Hypothesis, verdict: Verdict | None) -> list[Cell]:
    interval = deciding_interval(state.design, verdict) if state.design is not None and verdict is not None else None
    unit = _unit(state)
    ends = NONE if interval is None else f"{span(interval.low, interval.high, unit=unit)} ({percent(interval.level)})"
    inside = {True: "yes", False: "no", None: NONE}[verdict.within_prediction if verdict else None]
    prediction = claim.prediction
    return [
        cell(f"{claim.id}: {compared(claim)}"), cell(signed(verdict.estimate, unit=unit) if verdict else NONE),
        cell(ends), cell(counts_said(verdict) if verdict else NONE),
        cell(f"{span(prediction.low, prediction.high, unit=unit)} ({percent(prediction.level)})"), cell(inside),
        verdict_cell(state, verdict),
    ]  # fmt: skip


def verdict_cell(state: StudyState, verdict: Verdict | None) -> Cell:
    """Return a verdict's word as a cell; a dash for none."""
    if verdict is None or state.design is None:
        return cell(NONE)
    return cell(label(state.design.hypothesis(verdict.hypothesis), verdict), verdict.verdict)


def _numbers_row(state: StudyState, claim: Hypothesis | None, verdict: Verdict | None) -> list[Cell]:
    """Return the row of a claim, or (without it) of a verdict of the replication."""
    name = claim.id if claim is not None else f"{verdict.hypothesis if verdict else NONE} again"
    given = cell(percent(claim.prediction.probability) if claim is not None else NONE)
    if verdict is None:
        return [cell(name), *(cell(NONE) for _ in range(5)), given, cell(NONE), cell(NONE)]
    same = verdict.equivalence
    return [
        cell(name), cell(_test(state, verdict)), cell(span(verdict.low, verdict.high, unit=_unit(state))),
        cell(percent(round(verdict.level, 4))), cell(_p(verdict)),
        cell(NONE if same is None else f"{span(same.low, same.high, unit=_unit(state))}, p {p_value(same.p)}"),
        given, cell(number(verdict.brier)), hash_cell(verdict.inputs_sha256),
    ]  # fmt: skip


def _unit(state: StudyState) -> str:
    return state.design.metric.unit if state.design is not None else ""


def _p(verdict: Verdict) -> str:
    plain = p_value(verdict.p)
    return plain if verdict.p_adjusted is None else f"{plain} ({p_value(verdict.p_adjusted)} adjusted)"


def _test(state: StudyState, verdict: Verdict) -> str:
    looks = len(state.design.looks) if state.design else 0
    return f"{verdict.test}, look {verdict.look} of {looks}" if looks > 1 else verdict.test
