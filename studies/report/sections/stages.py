"""The stages of a study beside its confirmation: A/A runs, the screen, looks before the last, the replication.

Everything launched in them is shown; only a confirmation and a replication feed claims, and the tables say so.
"""

from __future__ import annotations

from statistics import fmean

from studies.log.study_state import RunState, StudyState
from studies.records.design import Arm
from studies.records.run_specs import NOISE_ARM
from studies.records.verdict import Verdict
from studies.report.parts.parts import Cell, Table, cell, table
from studies.report.parts.wording import NONE, counts_said, number, percent, plural, signed, span, value_of
from studies.report.sections.claims import verdict_cell
from studies.report.sections.procedure import screen_said
from studies.statistics.samples import spread


def noise_said(state: StudyState) -> str:
    """Return what the A/A runs showed, in a sentence; empty where there were none."""
    runs = [run for run in state.runs_in("noise") if run.spec.arm == NOISE_ARM]
    if state.noise_plan is None or not runs:
        return ""
    values = list(state.values(runs[0].spec.arm, phase="noise").values())
    sd = spread(values)
    showed = "too little"
    if sd is not None:
        unit = runs[0].spec.metric.unit
        showed = f"{number(fmean(values), unit=unit)} on average, standard deviation {number(sd, unit=unit)}"
    return (
        f"Before the design, one job was run with {plural(len(runs), 'seed')} that differ in nothing else, to learn "
        f"what seeds alone do: {plural(len(values), 'run')} gave {showed}. No claim rests on them."
    )


def noise_table(state: StudyState) -> Table | None:
    """Return the A/A runs; None where there were none."""
    rows = [
        [cell(run.run_id, "mono"), cell(str(run.spec.seed)), cell(_value(run))]
        for run in state.runs_in("noise")
        if run.spec.arm == NOISE_ARM
    ]
    return table(("Run", "Seed", "Value"), rows, numeric=(1, 2)) if rows else None


def screen_table(state: StudyState) -> Table | None:
    """Return every candidate of the screen with its score at each number of steps; None without a screen."""
    if not state.candidates:
        return None
    lengths = sorted({int(run.spec.job["steps"]) for run in state.runs_in("screen")})
    kept = state.selection.kept if state.selection else ()
    rows = [_candidate(state, arm, lengths, kept) for arm in state.candidates.values()]
    columns = ("Candidate", "Sets", *(f"after {plural(steps, 'step')}" for steps in lengths), "Ranked by", "")
    return table(columns, rows, numeric=range(2, len(lengths) + 3), cards=True)


def screen_led(state: StudyState) -> str:
    """Return what the screen led to; empty without one."""
    if state.locked_design is None or state.locked_design.screen is None:
        return ""
    return f"Confirmed: {state.selection.reason}." if state.selection else "The screen has not led to any arm."


def screen_rules(state: StudyState) -> str:
    """Return how the screen was to work; empty without one."""
    screen = state.locked_design.screen if state.locked_design is not None else None
    return screen_said(screen) if screen is not None else ""


def looks_taken(state: StudyState) -> Table | None:
    """Return each hypothesis' verdict at each look; None where there was but one look."""
    if state.design is None or len(state.design.looks) < 2:
        return None
    taken = sorted((*state.interim, *state.verdicts), key=lambda verdict: (verdict.hypothesis, verdict.look))
    rows = [_look(state, verdict) for verdict in taken]
    columns = ("Hypothesis", "Look", "n", "Difference", "Interval at the look's level", "Verdict", "Decision")
    return table(columns, rows, numeric=(1, 2, 3, 4), cards=True) if rows else None


def replication_table(state: StudyState) -> Table | None:
    """Return each replicated claim beside its confirmation; None where nothing was replicated."""
    rows = [_replicated(state, verdict) for verdict in state.replications]
    columns = ("Hypothesis", "Confirmed as", "In the other setting", "Difference", "Interval", "Runs")
    return table(columns, rows, numeric=(3, 4, 5), cards=True) if rows else None


def _candidate(state: StudyState, arm: Arm, lengths: list[int], kept: tuple[str, ...]) -> list[Cell]:
    runs = {int(run.spec.job["steps"]): run for run in state.runs_of(arm.name, "screen")}
    score = state.selection.scores.get(arm.name) if state.selection else None
    return [
        cell(arm.name), cell(", ".join(f"{name} = {value_of(value)}" for name, value in arm.overrides.items())),
        *(cell(_value(runs[steps]) if steps in runs else NONE) for steps in lengths),
        cell(number(score, unit=_unit(state))), cell("confirmed" if arm.name in kept else ""),
    ]  # fmt: skip


def _value(run: RunState) -> str:
    if run.invalid is not None:
        return f"invalid: {run.invalid[0]}"
    measured = run.measurements.get(run.spec.metric.key)
    return number(measured.value, unit=run.spec.metric.unit) if measured else run.status


def _look(state: StudyState, verdict: Verdict) -> list[Cell]:
    unit = _unit(state)
    decided = [d for d in state.decisions if (d.hypothesis, d.look) == (verdict.hypothesis, verdict.look)]
    return [
        cell(verdict.hypothesis), cell(str(verdict.look)), cell(counts_said(verdict)),
        cell(signed(verdict.estimate, unit=unit)),
        cell(f"{span(verdict.low, verdict.high, unit=unit)} ({percent(round(verdict.level, 4))})"),
        verdict_cell(state, verdict), cell("; ".join(f"{d.action} ({d.rule})" for d in decided)),
    ]  # fmt: skip


def _replicated(state: StudyState, verdict: Verdict) -> list[Cell]:
    confirmed, unit = state.verdict_on(verdict.hypothesis), _unit(state)
    return [
        cell(verdict.hypothesis), verdict_cell(state, confirmed), verdict_cell(state, verdict),
        cell(signed(verdict.estimate, unit=unit)),
        cell(span(verdict.low, verdict.high, unit=unit)), cell(counts_said(verdict)),
    ]  # fmt: skip


def _unit(state: StudyState) -> str:
    return state.locked_design.metric.unit if state.locked_design is not None else ""
