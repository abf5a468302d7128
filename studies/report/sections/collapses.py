"""Trainings that collapsed, by the locked rule: how many of each arm, how high their rate may be, and which runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from studies.checks.collapse import rate
from studies.log.study_state import StudyState
from studies.metrics import Refused, kind_of
from studies.records.design import Design, Hypothesis
from studies.records.design_parts import CollapseRule
from studies.records.verdict import CollapseRate, Verdict
from studies.report.parts.parts import Cell, Table, cell, table
from studies.report.parts.wording import number, one_line, percent, setting
from studies.verdicts.judge import gather


def rule_said(rule: CollapseRule) -> str:
    """Return when a run counts as collapsed, in words."""
    return (
        f"it ended below where it began, or its training success fell by more than {percent(rule.lost)} of what it had "
        f"gained, by more than {rule.errors:g} standard errors each; or it broke down. It is no part of a mean, and is "
        "counted"
    )


def table_of(state: StudyState) -> Table | None:
    """Return each arm's rate of collapse with exact limits, and the runs; None for a design without a rule of it."""
    if state.design is None or (state.design.collapse is None and not reads_collapses(state.design)):
        return None
    columns = ("Arm", "Collapsed", "Rate, 95 % limits", "Not ruled out: up to", "Runs")
    return table(columns, [*_rows(state)], numeric=(1, 2, 3), cards=True)


def reads_collapses(design: Design) -> bool:
    """Return whether collapsed trainings count with their value: they are told all the same, by the usual rule."""
    try:
        return bool(design.metric.kind) and kind_of(design.metric).reads_collapses
    except Refused:  # the package that brought it is gone
        return False


def _rows(state: StudyState) -> Iterator[list[Cell]]:
    design = state.design
    assert design is not None
    if design.collapse is None:  # what is told by the usual rule decides nothing
        state = replace(state, design=design.model_copy(update={"collapse": CollapseRule()}))
    for arm, data in gather(state, look=max(1, len(design.looks))).items():
        found = rate(arm, data.broken, len(data.values) + len(data.worst))
        ways = {**data.collapsed, **{run: f"it broke down ({code})" for run, code in data.worst.items()}}
        runs = "; ".join(f"{run}: {one_line(how)}" for run, how in sorted(ways.items()))
        yield [
            cell(arm), cell(f"{found.count} of {found.of}"), cell(f"{number(found.low, 2)} to {number(found.high, 2)}"),
            cell(_most(found)), cell(runs or "none"),
        ]  # fmt: skip


def _most(found: CollapseRate) -> str:
    """Return the highest rate that is not ruled out, in whole percent."""
    return percent(round(found.upper, 2))


def scope_said(claim: Hypothesis, verdict: Verdict) -> str:
    """Return of which trainings a verdict speaks, as a sentence; empty where no rule of collapse was locked."""
    if not verdict.collapses or verdict.verdict == "invalid" or verdict.estimate is None:
        return ""
    if verdict.scope == "all":
        return " It holds for all trainings: no rate of collapse that the runs leave open would undo it."
    if verdict.arms:
        return f" This is where training does not collapse: {_by_arm(verdict.collapses)}."
    control, treatment = verdict.collapses
    return f" This is where training does not collapse: {_counted(claim, control, treatment)}."


def _by_arm(rates: Sequence[CollapseRate]) -> str:
    """Return the rates of more than two arms, by the arms' names."""
    told = (
        f"{found.count} of {found.of} did with {found.arm} (up to {_most(found)} is not ruled out)" for found in rates
    )
    return ", ".join(told)


def _counted(claim: Hypothesis, control: CollapseRate, treatment: CollapseRate) -> str:
    uppers = {_most(found) for found in (control, treatment)}
    if not control.count and not treatment.count and len(uppers) == 1:
        return f"none of {control.of} + {treatment.of} did, but up to {uppers.pop()} per arm is not ruled out"
    told = [
        f"{found.count} of {found.of} did with {setting(claim, value)} (up to {_most(found)} is not ruled out)"
        for found, value in ((treatment, claim.treatment), (control, claim.control))
    ]
    differ = ", and which ones survive may differ" if control.count != treatment.count else ""
    return f"{' and '.join(told)}{differ}"
