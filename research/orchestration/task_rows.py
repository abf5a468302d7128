"""Task runs at Prefect: one row per attempt, with the log's times and its training's lines.

Rows are a pure function of the study's state, so they are the same whenever told. States are told as events, as
Prefect's engine does, because a state set through the API gets the server's time; their ids follow from their content,
so that telling again changes nothing. What was told just before the server went away is in doubt and told again.

Import only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from prefect.client.orchestration import SyncPrefectClient

from research.controller.progress import describe_result
from research.runs.files import STAGES, AttemptFolder, AttemptProgress
from research.scheduler.next_step import MOST_ATTEMPTS
from research.scheduler.required_runs import RequiredRun, find_failure, is_over, to_required_run
from studies import RunState, StudyState
from studies.log.entries import AttemptState
from studies.records.design import SUCCESS

StateKind = Literal["PENDING", "SCHEDULED", "RUNNING", "COMPLETED", "FAILED", "CRASHED", "CANCELLED"]
"""Prefect's types of states, as far as rows use them."""
OPEN: Final = frozenset({"PENDING", "SCHEDULED", "RUNNING"})
_ENDS: Final[dict[str, tuple[StateKind, str]]] = {
    "failed": ("FAILED", "Failed"),
    "timeout": ("FAILED", "TimedOut"),
    "lost": ("CRASHED", "Crashed"),
    "stopped": ("CANCELLED", "Cancelled"),
}
_PLANNING: Final = "planning"
"""Key of the row of a planning, or how that of a later round's begins."""
_INSTANT: Final = timedelta(microseconds=1)
"""Prefect orders a row's states by their times."""


class RowState(NamedTuple):
    """What a row says from a time on."""

    kind: StateKind
    name: str
    at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A row: `key` names it within the flow run; its states are in the order in which they came to be."""

    key: str
    name: str
    tags: tuple[str, ...]
    states: tuple[RowState, ...]

    @property
    def open(self) -> bool:
        return self.states[-1].kind in OPEN

    def add_state(self, kind: StateKind, name: str, at: str, message: str = "") -> "TaskRow":
        """Return the row with one more state, which comes after the others whatever its time is."""
        time = datetime.fromisoformat(at)
        if self.states:
            time = max(time, self.states[-1].at + _INSTANT)
        return replace(self, states=(*self.states, RowState(kind, name, time, message)))


def build_rows(state: StudyState) -> Iterator[TaskRow]:
    """Yield the planning and the attempts of a study, also those that are to come."""
    for entry in state.every_round:
        for row in (_planning(entry), *(row for run in entry.all_runs.values() for row in attempt_rows(entry, run))):
            if entry is state or not row.open:
                yield row
            elif entry.locked is None and row.key.startswith(_PLANNING):
                why = "the round came to no lock; nothing was tested in it"
                yield row.add_state("COMPLETED", "Given up", entry.last_ts, why)
            else:
                yield row.add_state("CANCELLED", "Not needed", entry.last_ts, "its round was over without it")


def close_row(row: TaskRow, at: str, name: str, why: str) -> TaskRow:
    return row.add_state("CANCELLED", name, at, why) if row.open else row


def reopen_row(row: TaskRow, begun: StudyState) -> TaskRow:
    """Return how an open row stands in a session that began as of `begun`, where an earlier one may have ended it."""
    last = row.states[-1]
    if not row.open or not begun.resumed_count or last.at >= datetime.fromisoformat(begun.last_ts):
        return row
    return row.add_state(last.kind, last.name, begun.last_ts, last.message)


def attempt_key(run: RunState, number: int, round: int = 1) -> str:
    return _key(to_required_run(run), number, round)


def _key(required: RequiredRun, number: int, round: int) -> str:
    steps = "" if required.steps is None else f"-{required.steps}"
    later = "" if round == 1 else f"round-{round}-"
    return f"{later}{required.phase}-{required.arm}-{required.seed}{steps}-{number}"


def _round_prefix(state: StudyState) -> str:
    return "" if state.round == 1 else f"round {state.round}: "


def _row(state: StudyState, required: RequiredRun, number: int, *more: str) -> TaskRow:
    phase = "" if required.phase == "confirm" else f"{required.phase} "
    steps = "" if required.steps is None else f", {required.steps} steps"
    again = "" if number == 1 else f", try {number}"
    tried = () if number == 1 else (f"try:{number}",)  # first, because Prefect's list cuts off names and tags
    asked = () if state.most_rounds == 1 else (f"round:{state.round}",)
    tags = (*tried, *asked, f"arm:{required.arm}", f"seed:{required.seed}", f"phase:{required.phase}", state.id, *more)
    name = f"{_round_prefix(state)}{phase}{required.arm} seed {required.seed}{steps}{again}"
    return TaskRow(_key(required, number, state.round), name, tags, ())


def _planning(state: StudyState) -> TaskRow:
    later = "" if state.round == 1 else f"-round-{state.round}"
    began = state.rounds_before[-1].last_ts if state.rounds_before else state.created
    row = TaskRow(f"{_PLANNING}{later}", f"{_round_prefix(state)}planning", (state.id,), ())
    row = row.add_state("RUNNING", "Running", began)
    if (first := next((run.planned for run in state.runs_in("noise")), None)) is not None:
        row = row.add_state("RUNNING", "Awaiting first runs", first)
    if state.locked is not None:
        return row.add_state("COMPLETED", "Completed", state.locked.ts, f"locked as {(state.design_hash or '')[:16]}")
    if state.stopped_reason is not None:
        return row.add_state("FAILED", "Failed", state.last_ts, state.stopped_reason)
    return row


def attempt_rows(state: StudyState, run: RunState) -> Iterator[TaskRow]:
    required, previous = to_required_run(run), None

    def pending(previous: AttemptState | None) -> TaskRow:
        number = 1 if previous is None else previous.number + 1
        row = _row(state, required, number, f"run:{run.run_id}")
        if previous is None:
            return row.add_state("PENDING", "Planned", run.planned)
        why = f"try {previous.number} {previous.status}: {previous.reason}"
        return row.add_state("SCHEDULED", "AwaitingRetry", previous.ended, why)

    for attempt in run.attempts:
        name = "Running" if previous is None else "Retrying"
        row, settled = pending(previous).add_state("RUNNING", name, attempt.launched, attempt.why), False
        if attempt.status == "finished":
            row, settled = row.add_state("RUNNING", "Collecting", attempt.ended), is_over(run)
        elif attempt.status is not None:
            row = row.add_state(*_ENDS[attempt.status], attempt.ended, _reason(attempt.code, attempt.reason))
            settled = run.invalid is not None and attempt.status != "stopped"
        if settled and attempt is run.attempts[-1] and run.invalid is not None:
            row = row.add_state("FAILED", "Invalid", run.settled, _reason(*run.invalid))
        elif settled and attempt is run.attempts[-1]:
            metric, result = run.spec.metric, describe_result(run)
            if metric.key != SUCCESS and metric.key in run.measurements:
                result = f"{metric.name or metric.key} {run.measurements[metric.key].value:.4g}; {result}"
            row = row.add_state("COMPLETED", "Completed", run.settled, result)
        yield row
        previous = attempt
    most = MOST_ATTEMPTS if state.design is None else state.design.max_attempts
    if previous is None and run.invalid is not None:
        yield pending(None).add_state("CANCELLED", "Not needed", run.settled, ": ".join(run.invalid))
    elif previous is None or (
        run.status == "ended" and previous.status != "finished" and find_failure(run, most) is None
    ):
        yield pending(previous)


def _reason(code: str, reason: str) -> str:
    return reason if code in ("", "lost", "stopped") else f"{code}: {reason}"


MOST_STEPS: Final = 20
"""Most lines on steps of one training."""


class TrainingLine(NamedTuple):
    """A line of an attempt's log."""

    key: str
    at: datetime
    text: str


def state_lines(row: TaskRow) -> Iterator[TrainingLine]:
    """Yield a line for each state of a row that says why it is so: Prefect's page of a task run does not show that."""
    for state in row.states:
        if state.message and state.kind != "PENDING":
            yield TrainingLine(f"{state.kind} {state.name}", state.at, f"{state.name}: {state.message}")


def training_lines(attempt: AttemptState, progress: AttemptProgress) -> Iterator[TrainingLine]:
    """Yield the lines that follow from the progress as it is: its stage, its step if that is told, its evaluation."""
    at = datetime.fromisoformat(attempt.launched) + timedelta(seconds=progress.seconds)
    yield TrainingLine(progress.stage, at, STAGES[progress.stage])
    if progress.step:
        part = progress.step * MOST_STEPS // max(1, progress.steps)
        reward = "" if progress.train_reward is None else f", reward {progress.train_reward:.3f}"
        solved = "" if progress.train_success is None else f", solved {progress.train_success:.3f}"
        yield TrainingLine(f"step-{part}", at, f"step {progress.step} of {progress.steps}{reward}{solved}")
    if progress.hidden_success is not None:
        when = "after training" if progress.stage == "stop" else f"at step {progress.step}"
        key = "hidden-last" if progress.stage == "stop" else f"hidden-{progress.hidden_success}"
        yield TrainingLine(key, at, f"hidden success {progress.hidden_success:.3f} {when}")


def tracking_lines(attempt: AttemptState, folder: AttemptFolder, study: Path) -> Iterator[TrainingLine]:
    """Yield the lines on its W&B run: where its log is in the study's folder, and its page, as far as known."""
    at = datetime.fromisoformat(attempt.launched)
    if (log := max((folder.path / "wandb").glob("*run-*"), default=None)) is not None:
        yield TrainingLine("log", at, f"W&B log: {log.relative_to(study).as_posix()}")
    if attempt.url:
        yield TrainingLine("page", at, f"W&B run: {attempt.url}")


_AT_ONCE: Final = 200
"""Events of one request, and task runs of one answer. Prefect's queue holds 10,000 events and drops what is beyond."""


class TaskRuns:
    """The task runs of a flow run."""

    def __init__(self, client: SyncPrefectClient, flow_run: UUID) -> None:
        self._client, self._flow_run = client, flow_run
        self._told: set[str] = set()
        self.needs_resend = False
        """Whether the server was away since rows were put, so that all of them are to be put again."""

    def mark_unsent(self) -> None:
        self._told.clear()
        self.needs_resend = True

    def put(self, rows: Iterable[TaskRow]) -> None:
        new = [event for row in rows for event in self._events(row)]
        for start in range(0, len(new), _AT_ONCE):
            self._client.request("POST", "/events", json=new[start : start + _AT_ONCE])
        self._told |= {event["id"] for event in new}
        self.needs_resend = False

    def log(self, lines: Iterable[tuple[str, TrainingLine]]) -> None:
        self._client.create_logs(
            {"name": "training", "level": logging.INFO, "task_run_id": str(self._id(key)), "message": line.text,
             "timestamp": line.at.isoformat()}
            for key, line in lines
        )  # fmt: skip

    def _id(self, key: str) -> UUID:
        return uuid5(NAMESPACE_URL, f"{self._flow_run}/{key}")

    def _events(self, row: TaskRow) -> Iterator[dict[str, Any]]:
        """Yield events that were not told, as `prefect.utilities.engine.emit_task_run_state_change_event` does."""
        task_run, before = self._id(row.key), None
        related = [{"prefect.resource.id": f"prefect.flow-run.{self._flow_run}", "prefect.resource.role": "flow-run"}]
        related += [{"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in row.tags]
        for place, state in enumerate(row.states, start=1):
            at = state.at.isoformat()
            details = {"scheduled_time": at} if state.kind == "SCHEDULED" else {}
            shown = {
                "type": state.kind, "name": state.name, "message": state.message or None, "state_details": details,
            }  # fmt: skip
            identity = str(uuid5(task_run, f"{state.kind}/{state.name}/{at}"))
            if identity not in self._told:
                yield {
                    "id": identity,
                    "occurred": at,
                    "event": f"prefect.task-run.{state.name}",
                    "resource": {
                        "prefect.resource.id": f"prefect.task-run.{task_run}", "prefect.resource.name": row.name,
                        "prefect.state-message": state.message, "prefect.state-name": state.name,
                        "prefect.state-timestamp": at, "prefect.state-type": state.kind,
                        "prefect.orchestration": "client",
                    },
                    "related": related,
                    "payload": {
                        "intended": {"from": before and before["type"], "to": state.kind}, "initial_state": before,
                        "validated_state": {**shown, "data": None}, "task_run": _task_run(row, row.states[:place]),
                    },
                }  # fmt: skip
            before = shown


def _task_run(row: TaskRow, states: Sequence[RowState]) -> dict[str, Any]:
    end = next((state.at for state in states if state.kind not in OPEN), None)
    start = next((state.at for state in states if state.kind == "RUNNING"), None)
    # The bar of one that never began would reach from when it was expected to its end.
    expected = end if end is not None and start is None else states[0].at
    about: dict[str, Any] = {
        "name": row.name, "task_key": "ajet", "dynamic_key": row.key, "tags": list(row.tags),
        "expected_start_time": expected.isoformat(),
        "end_time": None if end is None else end.isoformat(),  # a row that was ended may go on
    }  # fmt: skip
    if start is not None:
        took = ((end or states[-1].at) - start).total_seconds()
        about |= {"run_count": 1, "start_time": start.isoformat(), "total_run_time": took}
    return about
