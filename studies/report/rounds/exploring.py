"""What was tried in a round without a claim: single short runs, labelled as explorations wherever they are shown."""

from __future__ import annotations

from dataclasses import dataclass

from studies.log.study_state import PlannedExploration, RunState, StudyState
from studies.records.design import Arm
from studies.records.planner_words import checked
from studies.records.sentences import metric_name
from studies.report.parts.parts import Cell, Table, cell, table
from studies.report.parts.wording import NONE, number, plural, value_of


@dataclass(frozen=True, slots=True)
class ExploredTable:
    """One exploration: what its planner wanted to see, what it is, and its runs."""

    why: str
    said: str
    runs: Table


def explored(state: StudyState) -> tuple[ExploredTable, ...]:
    """Return the explorations that were planned in a round, in order."""
    return tuple(_explored(state, entry) for entry in state.explorations)


def _explored(state: StudyState, entry: PlannedExploration) -> ExploredTable:
    plan = entry.plan
    runs = {run.spec.arm: run for run in state.runs_in("explore") if run.spec.design_hash == plan.hash()}
    said = (
        f"Exploration: {plural(len(plan.arms), 'single run')} in {plan.environment}, one seed for all ({plan.seed}), "
        f"scored on {plan.metric.split} tasks. No claim rests on them, and they draw on no ledger."
    )
    rows = [_row(arm, runs.get(arm.name)) for arm in plan.arms]
    columns = ("Arm", "Sets", "Run", f"{metric_name(plan.metric)}, one run")
    why = checked(plan.why, [verdict for each in state.rounds for verdict in each.verdicts])
    return ExploredTable(why, said, table(columns, rows, numeric=(3,), cards=True))


def _row(arm: Arm, run: RunState | None) -> list[Cell]:
    sets = ", ".join(f"{name} = {value_of(value)}" for name, value in arm.overrides.items()) or "the base job"
    if run is None:
        return [cell(arm.name), cell(sets), cell(NONE), cell("not begun")]
    measured = run.measurements.get(run.spec.metric.key)
    value = run.status if measured is None else number(measured.value, unit=run.spec.metric.unit)
    said = f"invalid: {run.invalid[0]}" if run.invalid is not None else value
    return [cell(arm.name), cell(sets), cell(run.run_id, "mono"), cell(said)]
