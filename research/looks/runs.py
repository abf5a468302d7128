"""The table of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from research.looks.evidence import PlacedRun, placed_runs
from research.looks.requests import LookAtRuns
from research.planner.looks import LookRefused
from studies import StudyState
from studies.checks.run_facts import INITIAL
from studies.records.design import SUCCESS

MOST_RUNS: Final = 60
"""Rows of a table: the latest."""
COLUMNS: Final = ("run", "round", "phase", "arm", "seed", "status", "code", "before", "after", "judged_by")


def run_table(state: StudyState, request: LookAtRuns) -> dict[str, Any]:
    """Return the runs that are asked for, with hidden success before and after training and what each is judged by."""
    found = [placed for placed in placed_runs(state) if _fits(placed, request)]
    if not found:
        raise LookRefused(f"expected a round and an arm that have runs; found none of {_asked(request)}")
    told = {"columns": list(COLUMNS), "rows": [_row(placed) for placed in found[-MOST_RUNS:]]}
    left = len(found) - MOST_RUNS
    return told | ({"left_out": f"the first {left} runs; ask for a round or an arm"} if left > 0 else {})


def _fits(placed: PlacedRun, request: LookAtRuns) -> bool:
    return request.round in (None, placed.round) and request.arm in ("", placed.run.spec.arm)


def _asked(request: LookAtRuns) -> str:
    return f"{'any round' if request.round is None else f'round {request.round}'}, {request.arm or 'any arm'}"


def _row(placed: PlacedRun) -> Sequence[Any]:
    run = placed.run
    code = run.invalid[0] if run.invalid is not None else run.attempts[-1].code if run.attempts else ""
    before, after, judged = (_value(placed, key) for key in (SUCCESS + INITIAL, SUCCESS, run.spec.metric.key))
    return (
        placed.name, placed.round, run.spec.phase, run.spec.arm, run.spec.seed, run.status, code, before, after, judged,
    )  # fmt: skip


def _value(placed: PlacedRun, key: str) -> float | None:
    found = placed.run.measurements.get(key)
    return None if found is None else round(found.value, 4)
