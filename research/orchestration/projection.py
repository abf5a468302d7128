"""What a study's flow run shows: a row for each training run, artifacts for what was found, and log lines.

A projection of the state: what changed since the last time is published, and counts as such once the server took it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from research.orchestration.pictures import with_pictures
from research.orchestration.rows import TaskRow, left, rows
from research.study.progress import StudyProgress, progress_of
from research.study.progress_lines import progress_lines
from studies import RunState, StudyState

if TYPE_CHECKING:
    from research.orchestration.flow_run import FlowRun  # imports Prefect, which reads its settings then


class Projection:
    """Publishes to the flow run of a session that began at `since`; `folder` is the study's."""

    def __init__(self, flow_run: FlowRun, since: StudyState, folder: Path) -> None:
        self._flow_run = flow_run
        self._since = since
        self._folder = folder
        self._rows: dict[str, TaskRow] = {}
        self._published: set[str] = set()
        self._progress: tuple[StudyProgress, UUID] | None = None
        past = progress_lines(since) if since.resumed_count else ()
        self._told = {key for key, _ in past}

    def tell(self, state: StudyState, *, over: bool = False) -> None:
        """Publish what is new; once the session is `over`, no row stays open."""
        for row in rows(state, self._since):
            self._put(left(row) if over else row)
        self._publish(state)
        lines = {key: line for key, line in progress_lines(state) if key not in self._told}
        if lines:
            self._flow_run.log(lines.values())
            self._told |= lines.keys()

    def _put(self, row: TaskRow) -> None:
        if self._rows.get(row.key) != row:
            self._flow_run.put(row)
            self._rows[row.key] = row

    def _publish(self, state: StudyState) -> None:
        self._show_progress(state)
        key, run = _Key(state), self._flow_run
        if state.design is not None:
            self._once(f"design {state.design_hash}", lambda: run.markdown(key("design"), _design_markdown(state)))
        if state.verdicts:
            seen = "".join(verdict.inputs_sha256 for verdict in state.verdicts)
            self._once(f"verdicts {seen}", lambda: run.table(key("verdicts"), _verdict_rows(state)))
        if state.report is not None:
            report = state.report["markdown"]
            self._once(f"results {state.head_hash}", lambda: run.table(key("results"), _result_rows(state)))
            self._once(f"report {report['sha256']}", lambda: run.markdown(key("report"), self._report(report["path"])))

    def _report(self, path: str) -> str:
        markdown = self._folder / path
        return with_pictures(markdown.read_text(), markdown.parent)

    def _once(self, name: str, publish: Callable[[], object]) -> None:
        if name not in self._published:
            publish()
            self._published.add(name)

    def _show_progress(self, state: StudyState) -> None:
        now = progress_of(state)
        if self._progress is None or self._progress[0] != now:
            before = None if self._progress is None else self._progress[1]
            shown = self._flow_run.progress(_Key(state)("progress"), now.percent, str(now), before)
            self._progress = now, shown


class _Key:
    """Names a study's artifacts as Prefect allows."""

    def __init__(self, state: StudyState) -> None:
        self._study = state.id.lower().replace("_", "-")

    def __call__(self, name: str) -> str:
        return f"{self._study}-{name}"


def _design_markdown(state: StudyState) -> str:
    assert state.design is not None
    design = state.design
    arms = "\n".join(
        f"- `{arm.name}`" + (" (control)" if arm.name == design.control_arm else "") for arm in design.arms
    )
    most = "At most " if len(design.looks) > 1 else ""
    return (
        f"# {state.topic}\n\nLocked design `{state.design_hash}`\n\n{arms}\n\n"
        f"{most}{len(design.seeds)} seeds per arm, metric `{design.metric.key}`: {design.metric.meaning}; "
        f"{design.test} test at alpha {design.alpha:g}.\n"
    )


def _verdict_rows(state: StudyState) -> list[dict[str, object]]:
    return [verdict.model_dump(mode="json", exclude={"inputs_sha256"}) for verdict in state.verdicts]


def _result_rows(state: StudyState) -> list[dict[str, object]]:
    return [_run_row(run) for run in state.runs.values()]


def _run_row(run: RunState) -> dict[str, object]:
    values = {key: f"{measurement.value:.4f}" for key, measurement in run.measurements.items()}
    return {"run": run.run_id, "arm": run.spec.arm, "seed": run.spec.seed, "status": run.status,
            "attempts": len(run.attempts), **values}  # fmt: skip
