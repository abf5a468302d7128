"""A study as Prefect shows it: one flow run, a task run per training run, artifacts for what was found.

`run_as_flow` runs the study's loop inside a real Prefect flow. Each training run gets a task run that waits
for the loop to report the run's end, so that Prefect's timeline is the study's. A flow run left RUNNING by a
killed controller is marked Crashed when its study is resumed.

A study never waits for Prefect, let alone fails with it: whatever its client raises, before, while or after the
study runs, ends the view and nothing else, and is said in one line.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect import flow, task
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Crashed, Failed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from research.loop import Observer
from research.story import story
from studies import RunState, StudyState

_OVER = {"collected", "invalid"}
_CLOSING_S = 30.0
"""How long a closing flow run waits for its task runs to say their end."""

Warn = Callable[[str], None]
"""Takes one line for whoever watches."""


class RunBoard:
    """Where the loop posts the end of each run, and each task run waits for its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ended: dict[str, RunState] = {}
        self._closed = False

    def post(self, run: RunState) -> None:
        """Make the end of a run known."""
        with self._changed:
            self._ended[run.run_id] = run
            self._changed.notify_all()

    def close(self) -> None:
        """Let everyone who still waits go: the loop is over."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, run_id: str) -> RunState | None:
        """Block until the run ended; None when the board was closed before."""
        with self._changed:
            self._changed.wait_for(lambda: run_id in self._ended or self._closed)
            return self._ended.get(run_id)


class FlowProjection:
    """Observes the loop and makes task runs and artifacts of what it sees, each once."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self._lost = False
        self._board = RunBoard()
        self._tasks: dict[str, PrefectFuture[Any]] = {}
        self._progress: UUID | None = None
        self._shown: set[str] = set()
        self._fraction = -1.0
        self._told: set[str] = set()

    def observe(self, state: StudyState) -> None:
        """Submit a task run for each newly started run, post ended ones, publish artifacts."""
        self.attempt(lambda: self._show(state))

    def attempt(self, show: Callable[[], object]) -> None:
        """Show something, unless Prefect was lost; its first failure, of any kind, is told and is its last."""
        if self._lost:
            return
        try:
            show()
        except Exception as error:  # noqa: BLE001 - a client's errors are many; none may end what it only shows
            self.lose(error)

    def lose(self, error: Exception) -> None:
        """Show nothing from now on, and say so once."""
        if not self._lost:
            self._lost = True
            self._warn(f"lost the Prefect server ({type(error).__name__}); the study goes on without Prefect's view")

    def _show(self, state: StudyState) -> None:
        for run in state.runs.values():
            if run.attempts and run.run_id not in self._tasks:
                self._tasks[run.run_id] = _submit(run, self._board)
            if run.status in _OVER:
                self._board.post(run)
        self._publish(state)
        for key, line in story(state):
            if key not in self._told:
                self._told.add(key)
                get_run_logger().info(line)

    def note(self, line: str) -> None:
        """Prefect shows runs and results, not what happens in between."""

    def close(self) -> None:
        """Release and await all task runs."""
        self._board.close()
        for future in self._tasks.values():
            future.wait(timeout=_CLOSING_S)

    def _publish(self, state: StudyState) -> None:
        if state.design is not None:
            self._once("design", lambda: create_markdown_artifact(_design_markdown(state), key=_key(state, "design")))
            self._show_progress(state)
        if state.verdicts:
            looked = "verdicts" + "".join(verdict.inputs_sha256 for verdict in state.verdicts)
            self._once(looked, lambda: create_table_artifact(_verdict_rows(state), key=_key(state, "verdicts")))
        if state.report is not None:
            self._once("results", lambda: create_table_artifact(_result_rows(state), key=_key(state, "results")))

    def _once(self, name: str, publish: Callable[[], object]) -> None:
        if name not in self._shown:
            self._shown.add(name)
            publish()

    def _show_progress(self, state: StudyState) -> None:
        total = max(1, len(state.runs))
        fraction = 100.0 * sum(run.status in _OVER for run in state.runs.values()) / total
        if fraction == self._fraction:
            return
        self._fraction = fraction
        text = "training runs finished"
        if self._progress is None:
            created = create_progress_artifact(fraction, key=_key(state, "progress"), description=text)
            self._progress = cast(UUID, created)  # the synchronous form returns the id itself
        else:
            update_progress_artifact(self._progress, fraction, description=text)


def run_as_flow(study: str, topic: str, folder: Path, body: Callable[[Observer], StudyState], warn: Warn) -> StudyState:
    """Run `body` inside a Prefect flow run, handing it the observer to feed; return the final state.

    `folder` is the study's; the flow run's id is kept there, so that a resumed study can close the flow run
    of a killed controller. What `body` raises passes through; what Prefect raises goes to `warn`.
    """
    logging.raiseExceptions = False  # else the sender of logs writes over the terminal when the server is gone
    projection = FlowProjection(warn)
    inner = _Body(body, projection)

    @flow(
        name="ajet study",
        flow_run_name=f"{study}: {topic[:80]}",
        task_runner=cast(TaskRunner[PrefectFuture[Any]], ThreadPoolTaskRunner(max_workers=512)),
        validate_parameters=False,
    )
    def study_flow(study: str, topic: str) -> State | None:
        _remember(folder)
        state = inner.run()
        projection.attempt(lambda: _publish_report(state, folder))
        return Cancelled(message=state.stopped_reason) if state.status == "stopped" else None

    def shown() -> None:
        _close_abandoned(folder)
        study_flow(study, topic, return_state=True)

    projection.attempt(shown)
    (folder / "prefect.json").unlink(missing_ok=True)
    return inner.outcome()


class _Body:
    """What a flow is run around: begun once at most by the flow, and without it when there was none."""

    def __init__(self, body: Callable[[Observer], StudyState], projection: FlowProjection) -> None:
        self._body = body
        self._projection = projection
        self._state: StudyState | None = None
        self._error: BaseException | None = None

    def run(self) -> StudyState:
        """Run the body and keep how it ended, whatever the flow makes of it."""
        try:
            self._state = self._body(self._projection)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._projection.close()
        return self._state

    def outcome(self) -> StudyState:
        """Return the body's state or raise its error; run it now if no flow run came to be."""
        if self._error is not None:
            raise self._error
        return self._state or self.run()


@task(name="training run", task_run_name="{label}", cache_policy=NO_CACHE, persist_result=False)
def _training_run(label: str, run_id: str, board: RunBoard) -> State | None:
    run = board.wait(run_id)
    if run is None:
        return Cancelled(message="the controller stopped; `ajet study resume` adopts this run")
    create_table_artifact([_run_row(run)], key=f"run-{run_id}")
    if run.invalid is not None:
        return Failed(message=f"{run.invalid[0]}: {run.invalid[1]}")
    return None


def _submit(run: RunState, board: RunBoard) -> PrefectFuture[Any]:
    label = f"{run.spec.arm} seed {run.spec.seed} ({run.run_id})"
    return _training_run.submit(label, run.run_id, board)


def _remember(folder: Path) -> None:
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        (folder / "prefect.json").write_text(json.dumps({"flow_run": str(context.flow_run.id)}))


def _close_abandoned(folder: Path) -> None:
    path = folder / "prefect.json"
    if not path.exists():
        return
    message = "the controller ended without closing this flow run; the study was resumed in a new one"
    # a new server's database does not know the flow run, a note cut short names none: nothing is left to close
    with suppress(ObjectNotFound, json.JSONDecodeError, KeyError), get_client(sync_client=True) as client:
        client.set_flow_run_state(json.loads(path.read_text())["flow_run"], Crashed(message=message), force=True)
    path.unlink(missing_ok=True)


def _publish_report(state: StudyState, folder: Path) -> None:
    if state.report is not None:
        text = (folder / state.report["markdown"]["path"]).read_text()
        create_markdown_artifact(text, key=_key(state, "report"))


def _key(state: StudyState, name: str) -> str:
    return f"{state.id}-{name}".lower().replace("_", "-")


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
