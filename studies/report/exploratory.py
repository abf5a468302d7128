"""Numbers that were not in the lock: they may lead to the next question, and no claim rests on them."""

from __future__ import annotations

from studies.records import Design, Hypothesis
from studies.report.parts import Cell, Table, cell, table
from studies.report.wording import signed
from studies.standing import StudyState
from studies.statistics import hedges_g


def table_of(state: StudyState) -> Table | None:
    """Return effect sizes of each hypothesis that has a verdict; None before there is one."""
    if state.design is None:
        return None
    judged = {verdict.hypothesis for verdict in state.verdicts}
    rows = [_row(state, state.design, h) for h in state.design.hypotheses if h.id in judged]
    return table(("Hypothesis", "Hedges' g"), rows, numeric=(1,)) if rows else None


def _row(state: StudyState, design: Design, hypothesis: Hypothesis) -> list[Cell]:
    control, treatment = (
        list(state.values(design.arm_with(hypothesis.variable, value).name).values())
        for value in (hypothesis.control, hypothesis.treatment)
    )
    return [cell(hypothesis.id), cell(signed(hedges_g(control, treatment), 2))]
