"""What Prefect lists under a study's flow run, one row a training run: a pure function of the study's state.

A session shows the runs that it worked on: those that were over when it began were another flow run's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from research.scheduling.required_runs import is_over
from research.study.progress_lines import hidden_success
from studies import RunState, StudyState

StateKind = Literal["RUNNING", "SCHEDULED", "COMPLETED", "FAILED", "CANCELLED"]
"""Prefect's types of states, as far as rows use them."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A row as it stands: `key` names it within the flow run, `kind`, `state` and `message` say how it goes."""

    key: str
    name: str
    kind: StateKind
    state: str
    message: str = ""


def rows(state: StudyState, since: StudyState) -> Iterator[TaskRow]:
    """Yield the planning and the runs of the session that began at `since`."""
    if since.locked_design is None:
        yield _planning(state)
    for run in state.runs.values():
        before = since.runs.get(run.run_id)
        if run.attempts and (before is None or not is_over(before)):
            yield _training(run)


def left(row: TaskRow) -> TaskRow:
    """Return how a row stands once its controller ended: nobody works on what is open."""
    if row.kind not in ("RUNNING", "SCHEDULED"):
        return row
    return TaskRow(row.key, row.name, "CANCELLED", "Cancelled", "its study ended; `ajet study resume` goes on with it")


def _planning(state: StudyState) -> TaskRow:
    if state.locked_design is not None:
        return TaskRow("planning", "planning", "COMPLETED", "Completed", f"locked as {(state.design_hash or '')[:16]}")
    if state.noise_plan is not None:
        return TaskRow("planning", "planning", "RUNNING", "Awaiting A/A runs")
    if state.stopped_reason is not None:
        return TaskRow("planning", "planning", "FAILED", "Failed", state.stopped_reason)
    return TaskRow("planning", "planning", "RUNNING", "Running")


def _training(run: RunState) -> TaskRow:
    phase = "" if run.spec.phase == "confirm" else f"{run.spec.phase} "
    name = f"{phase}{run.spec.arm} seed {run.spec.seed} ({run.run_id})"
    last = run.attempts[-1]
    if run.invalid is not None:
        return TaskRow(run.run_id, name, "FAILED", "Failed", f"{run.invalid[0]}: {run.invalid[1]}")
    if is_over(run):
        return TaskRow(run.run_id, name, "COMPLETED", "Completed", f"hidden success {hidden_success(run)}")
    if last.status not in (None, "finished"):
        return TaskRow(
            run.run_id, name, "SCHEDULED", "AwaitingRetry", f"try {last.number} {last.status}: {last.reason}"
        )
    again = last.number > 1
    return TaskRow(
        run.run_id, name, "RUNNING", "Retrying" if again else "Running", f"try {last.number}" if again else ""
    )
