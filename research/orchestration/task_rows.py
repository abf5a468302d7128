"""Task runs at Prefect: one row per attempt, with the log's times and its training's lines.

Rows are a pure function of the study's state, with the times of its log, so they are the same whenever told. A lost or
failed attempt keeps its row; the next try has its own. A flow run that is made later has the rows of all that was.

States are told as events, as Prefect's engine does, because a state set through the API gets the server's time. Many go
in one request, and their ids follow from their content, so that telling again changes nothing. The server writes them a
second or two later: what was told just before it went away is in doubt and told again (`doubt`).

Import only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from prefect.client.orchestration import SyncPrefectClient

from research.controller.progress import describe_result
from research.files import read_json
from research.runs.files import AttemptFolder, AttemptOutcome, AttemptProgress, Stage
from research.scheduler.next_step import MOST_ATTEMPTS
from research.scheduler.required_runs import (
    RequiredRun,
    budget_decision,
    confirmation_runs,
    count_seeds,
    find_failure,
    is_over,
    missing_runs,
    next_analysis,
    open_hypotheses,
    planned_runs,
    runs_left,
    to_required_run,
)
from studies import RunState, StudyState
from studies.log.study import AttemptState
from studies.records.design import SUCCESS, Design

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

    def add_state(self, kind: StateKind, name: str, at: str, message: str = "") -> TaskRow:
        """Return the row with one more state, which comes after the others whatever its time is."""
        time = datetime.fromisoformat(at)
        if self.states:
            time = max(time, self.states[-1].at + _INSTANT)
        return replace(self, states=(*self.states, RowState(kind, name, time, message)))


def build_rows(state: StudyState) -> Iterator[TaskRow]:
    """Yield the planning and the attempts of a study, also those that are to come."""
    for entry in state.every_round:
        for row in _round_rows(entry):
            yield row if entry is state or not row.open else _close_row(row, entry)
    yield from _next_analysis_rows(state)


def _round_rows(state: StudyState) -> Iterator[TaskRow]:
    yield _planning(state)
    for run in state.runs.values():
        yield from _AttemptRows(state, run).rows()


def _close_row(row: TaskRow, over: StudyState) -> TaskRow:
    """Return how an open row of a round stands that is over: with a lock, the planning of none is open."""
    if over.locked is None and row.key.startswith(_PLANNING):
        return row.add_state(
            "COMPLETED", "Given up", over.last_ts, "the round came to no lock; nothing was tested in it"
        )
    return row.add_state("CANCELLED", "Not needed", over.last_ts, "its round was over without it")


def end_row(row: TaskRow, at: str) -> TaskRow:
    """Return how a row stands once its controller ended: nobody works on what is open."""
    if not row.open:
        return row
    return row.add_state("CANCELLED", "Cancelled", at, "its flow run ended; `ajet study resume` goes on with the study")


def reopen_row(row: TaskRow, begun: StudyState) -> TaskRow:
    """Return how an open row stands in a session that began as of `begun`, where an earlier one may have ended it."""
    last = row.states[-1]
    if not row.open or not begun.resumed_count or last.at >= datetime.fromisoformat(begun.last_ts):
        return row
    return row.add_state(last.kind, last.name, begun.last_ts, last.message)


def cancel_row(row: TaskRow, at: str) -> TaskRow:
    """Return how a row stands that was planned, and is not any more."""
    return row.add_state("CANCELLED", "Not needed", at, "the study came to need it no more")


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
        row = row.add_state("RUNNING", "Awaiting A/A runs", first)
    if state.locked is not None:
        return row.add_state("COMPLETED", "Completed", state.locked.ts, f"locked as {(state.design_hash or '')[:16]}")
    if state.stopped_reason is not None:
        return row.add_state("FAILED", "Failed", state.last_ts, state.stopped_reason)
    return row


class _AttemptRows:
    def __init__(self, state: StudyState, run: RunState) -> None:
        self._state = state
        self._run = run
        self._required = to_required_run(run)

    def rows(self) -> Iterator[TaskRow]:
        previous = None
        for attempt in self._run.attempts:
            yield self._add_end(self._running_row(attempt, previous), attempt)
            previous = attempt
        if previous is None and self._run.invalid is not None:
            code, reason = self._run.invalid
            yield self._pending_row(None).add_state("CANCELLED", "Not needed", self._run.settled, f"{code}: {reason}")
        elif previous is None or self._has_retry(previous):
            yield self._pending_row(previous)

    def _has_retry(self, last: AttemptState) -> bool:
        design = self._state.design
        failed = self._run.status == "ended" and last.status != "finished"
        return failed and find_failure(self._run, MOST_ATTEMPTS if design is None else design.max_attempts) is None

    def _pending_row(self, previous: AttemptState | None) -> TaskRow:
        number = 1 if previous is None else previous.number + 1
        row = _row(self._state, self._required, number, f"run:{self._run.run_id}")
        if previous is None:
            return row.add_state("PENDING", "Planned", self._run.planned)
        said = f"try {previous.number} {previous.status}: {previous.reason}"
        return row.add_state("SCHEDULED", "AwaitingRetry", previous.ended, said)

    def _running_row(self, attempt: AttemptState, previous: AttemptState | None) -> TaskRow:
        name = "Running" if previous is None else "Retrying"
        return self._pending_row(previous).add_state("RUNNING", name, attempt.launched, attempt.why)

    def _add_end(self, row: TaskRow, attempt: AttemptState) -> TaskRow:
        if attempt.status is None:
            return row
        last = attempt is self._run.attempts[-1]
        if attempt.status == "finished":
            row = row.add_state("RUNNING", "Collecting", attempt.ended)
            return self._add_result(row) if last and is_over(self._run) else row
        row = row.add_state(*_ENDS[attempt.status], attempt.ended, _reason(attempt.code, attempt.reason))
        given = last and self._run.invalid is not None and attempt.status != "stopped"
        return self._add_result(row) if given else row

    def _add_result(self, row: TaskRow) -> TaskRow:
        run = self._run
        if run.invalid is not None:
            return row.add_state("FAILED", "Invalid", run.settled, _reason(*run.invalid))
        return row.add_state("COMPLETED", "Completed", run.settled, _result(run))


def _reason(code: str, reason: str) -> str:
    return reason if code in ("", "lost", "stopped") else f"{code}: {reason}"


def _result(run: RunState) -> str:
    metric = run.spec.metric
    if metric.key == SUCCESS or metric.key not in run.measurements:
        return describe_result(run)
    return f"{metric.name or metric.key} {run.measurements[metric.key].value:.4g}; {describe_result(run)}"


def _next_analysis_rows(state: StudyState) -> Iterator[TaskRow]:
    """Yield what the next look will need if the one that is worked for leaves its question open."""
    design = state.design
    if design is None or design.screen is not None or state.locked is None:
        return
    if state.status not in ("running", "paused") or budget_decision(state) is not None:
        return
    analysis = max((next_analysis(state, claim.id) for claim in open_hypotheses(state, design)), default=0) + 1
    said = f"for look {analysis} of {len(design.looks)}, if look {analysis - 1} leaves a question open"
    for required in islice(_analysis_runs(state, design, analysis), runs_left(state)):
        yield _row(state, required, 1).add_state("PENDING", "Planned", state.locked.ts, said)


def _analysis_runs(state: StudyState, design: Design, analysis: int) -> Iterator[RequiredRun]:
    if not 1 < analysis <= len(design.looks):
        return
    drawn = design.seeds[count_seeds(design, analysis - 1) : count_seeds(design, analysis)]
    seeds = {arm.name: set(design.seeds_of(arm.name, drawn)) for arm in design.arms}
    every = confirmation_runs(state, all_analyses=True)
    yield from missing_runs(
        planned_runs(state), [required for required in every if required.seed in seeds[required.arm]]
    )


MOST_STEPS: Final = 20
"""Most lines on steps of one training."""
_STAGES: Final[Mapping[Stage, str]] = {
    "boot": "its server starts",
    "initial": "hidden tasks are played before training",
    "train": "training begins",
    "other": "the last policy plays in another environment",
    "final": "hidden tasks are played after training",
    "stop": "its server stops",
}


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
    yield TrainingLine(progress.stage, at, _STAGES[progress.stage])
    if progress.step:
        part = progress.step * MOST_STEPS // max(1, progress.steps)
        yield TrainingLine(f"step-{part}", at, _step(progress))
    if progress.hidden_success is not None:
        when = "after training" if progress.stage == "stop" else f"at step {progress.step}"
        key = "hidden-last" if progress.stage == "stop" else f"hidden-{progress.hidden_success}"
        yield TrainingLine(key, at, f"hidden success {progress.hidden_success:.3f} {when}")


def tracking_lines(attempt: AttemptState, log: str | None) -> Iterator[TrainingLine]:
    """Yield the lines on its W&B run: where its log is (see `find_tracking_log`), and its page, as far as known."""
    at = datetime.fromisoformat(attempt.launched)
    if log is not None:
        yield TrainingLine("log", at, f"W&B log: {log}")
    if attempt.url:
        yield TrainingLine("page", at, f"W&B run: {attempt.url}")


def outcome_lines(attempt: AttemptState, folder: AttemptFolder) -> Iterator[TrainingLine]:
    """Yield the lines on an attempt that is over, from the outcome that it wrote; none where it wrote none."""
    outcome = _outcome(folder)
    if outcome is None:
        return
    at = datetime.fromisoformat(attempt.ended)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in outcome.stages.items())
    yield TrainingLine("end", at, f"{outcome.status} after {outcome.seconds:.0f} s: {stages}")
    for why, count in outcome.refused.items():
        yield TrainingLine(f"refused-{why}", at, f"{count} requests of its containers were refused: {why}")


def find_tracking_log(folder: AttemptFolder, study: Path) -> str | None:
    """Return the folder of an attempt's W&B log, relative to the study's; None while there is none."""
    newest = max((folder.path / "wandb").glob("*run-*"), default=None)
    return None if newest is None else newest.relative_to(study).as_posix()


def _step(progress: AttemptProgress) -> str:
    reward = "" if progress.train_reward is None else f", reward {progress.train_reward:.3f}"
    solved = "" if progress.train_success is None else f", solved {progress.train_success:.3f}"
    return f"step {progress.step} of {progress.steps}{reward}{solved}"


def _outcome(folder: AttemptFolder) -> AttemptOutcome | None:
    try:
        return AttemptOutcome.model_validate(read_json(folder.outcome))
    except ValueError:  # of JSON or of the model: it was killed, or a power cut left half of it
        return None


_AT_ONCE: Final = 200
"""Events of one request, and task runs of one answer. Prefect's queue holds 10,000 events and drops what is beyond."""
_TASK: Final = "ajet"
"""Key of the task that all of them are runs of."""


class TaskRuns:
    """The task runs of a flow run."""

    def __init__(self, client: SyncPrefectClient, flow_run: UUID) -> None:
        self._client = client
        self._flow_run = flow_run
        self._told: set[str] = set()
        self.needs_resend = False
        """Whether the server was away since rows were put, so that all of them are to be put again."""

    def mark_unsent(self) -> None:
        self._told.clear()
        self.needs_resend = True

    def put(self, rows: Iterable[TaskRow]) -> None:
        new = [event for row in rows for event in self._events(row)]
        self._send(new)
        self._told |= {event["id"] for event in new}
        self.needs_resend = False

    def log(self, lines: Iterable[tuple[str, TrainingLine]]) -> None:
        """Add lines to the logs of task runs, by their rows' keys; the flow run's own log does not show them."""
        self._client.create_logs(
            {"name": "training", "level": logging.INFO, "task_run_id": str(self._id(key)), "message": line.text,
             "timestamp": line.at.isoformat()}
            for key, line in lines
        )  # fmt: skip

    def _send(self, events: Sequence[Mapping[str, Any]]) -> None:
        for start in range(0, len(events), _AT_ONCE):
            self._client.request("POST", "/events", json=events[start : start + _AT_ONCE])

    def _id(self, key: str) -> UUID:
        return uuid5(NAMESPACE_URL, f"{self._flow_run}/{key}")

    def _events(self, row: TaskRow) -> Iterator[dict[str, Any]]:
        task_run = self._id(row.key)
        for place, state in enumerate(row.states):
            identity = str(uuid5(task_run, f"{state.kind}/{state.name}/{state.at.isoformat()}"))
            if identity not in self._told:
                before = row.states[place - 1] if place else None
                about = _task_run(row, row.states[: place + 1])
                yield self._event(identity, task_run, about, before, state)

    def _event(
        self, identity: str, task_run: UUID, about: Mapping[str, Any], before: RowState | None, state: RowState
    ) -> dict[str, Any]:
        """Return an event as `prefect.utilities.engine.emit_task_run_state_change_event` writes it."""
        return {
            "id": identity,
            "occurred": state.at.isoformat(),
            "event": f"prefect.task-run.{state.name}",
            "resource": {
                "prefect.resource.id": f"prefect.task-run.{task_run}",
                "prefect.resource.name": about["name"],
                "prefect.state-message": state.message,
                "prefect.state-name": state.name,
                "prefect.state-timestamp": state.at.isoformat(),
                "prefect.state-type": state.kind,
                "prefect.orchestration": "client",
            },
            "related": [
                {"prefect.resource.id": f"prefect.flow-run.{self._flow_run}", "prefect.resource.role": "flow-run"},
                *({"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}
                  for tag in about.get("tags", ())),
            ],
            "payload": {
                "intended": {"from": before.kind if before is not None else None, "to": state.kind},
                "initial_state": None if before is None else _state(before),
                "validated_state": {**_state(state), "data": None},
                "task_run": dict(about),
            },
        }  # fmt: skip


def _task_run(row: TaskRow, states: Sequence[RowState]) -> dict[str, Any]:
    last = states[-1]
    about: dict[str, Any] = {
        "name": row.name,
        "task_key": _TASK,
        "dynamic_key": row.key,
        "tags": list(row.tags),
        "expected_start_time": states[0].at.isoformat(),
    }
    end = next((state.at for state in states if state.kind not in OPEN), None)
    about["end_time"] = None  # a row that was ended may go on
    if end is not None:
        about |= _end_times(end, begun=any(state.kind == "RUNNING" for state in states))
    if (start := next((state.at for state in states if state.kind == "RUNNING"), None)) is not None:
        took = ((end or last.at) - start).total_seconds()
        about |= {"run_count": 1, "start_time": start.isoformat(), "total_run_time": took}
    return about


def _end_times(at: datetime, begun: bool) -> dict[str, Any]:
    """Return how a task run ended; the bar of one that never began would reach from when it was expected to its end."""
    end = at.isoformat()
    return {"end_time": end} if begun else {"end_time": end, "expected_start_time": end}


def _state(state: RowState) -> dict[str, Any]:
    scheduled = {"scheduled_time": state.at.isoformat()} if state.kind == "SCHEDULED" else {}
    return {"type": state.kind, "name": state.name, "message": state.message or None, "state_details": scheduled}
