"""What Prefect lists under a study's flow run, one row an attempt at a run: a pure function of the study's state.

A row has its states at the times of the study's log, so that it is the same whenever it is told. An attempt that was
lost or failed keeps its row, with its reason; the next try has a row of its own, which waits until it begins. A flow
run shows one session: an attempt that was over when the session began was another flow run's, and no time lies before.
The rows of an inquiry are named and tagged with their round, and those of rounds that are over stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Literal, NamedTuple

from research.scheduling.next_step import MOST_ATTEMPTS
from research.scheduling.required_runs import (
    RequiredRun,
    active,
    as_required,
    budget_decision,
    confirmation_runs,
    is_over,
    look_seeds,
    missing,
    planned,
    runs_left,
    wanted_look,
)
from research.scheduling.retry_policy import given_up
from research.study.progress_lines import came_to
from studies import RunState, StudyState
from studies.log.study_state import AttemptState
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
        """Whether it is not over."""
        return self.states[-1].kind in OPEN

    def then(self, kind: StateKind, name: str, at: str, message: str = "") -> TaskRow:
        """Return the row with one more state, which comes after the others whatever its time is."""
        time = datetime.fromisoformat(at)
        if self.states:
            time = max(time, self.states[-1].at + _INSTANT)
        return replace(self, states=(*self.states, RowState(kind, name, time, message)))


def rows(state: StudyState, since: StudyState) -> Iterator[TaskRow]:
    """Yield the planning and the attempts of the session that began at `since`, also those that are to come."""
    for entry in state.every_round:
        for row in _round_rows(entry, since):
            yield row if entry is state or not row.open else _closed(row, entry)
    yield from _next_look(state, since)


def _round_rows(state: StudyState, since: StudyState) -> Iterator[TaskRow]:
    if state.round > since.round or (state.round == since.round and since.locked_design is None):
        yield _planning(state, since)
    known = since.every_run
    for run in state.runs.values():
        before = known.get(run.run_id)
        if before is None or not is_over(before):
            yield from _Attempts(state, since, run, before).rows()


def _closed(row: TaskRow, over: StudyState) -> TaskRow:
    """Return how an open row of a round stands that is over: with a lock, the planning of none is open."""
    if over.locked is None and row.key.startswith(_PLANNING):
        return row.then("COMPLETED", "Given up", over.last_ts, "the round came to no lock; nothing was tested in it")
    return row.then("CANCELLED", "Not needed", over.last_ts, "its round was over without it")


def left(row: TaskRow, at: str) -> TaskRow:
    """Return how a row stands once its controller ended: nobody works on what is open."""
    if not row.open:
        return row
    return row.then("CANCELLED", "Cancelled", at, "its flow run ended; `ajet study resume` goes on with the study")


def not_needed(row: TaskRow, at: str) -> TaskRow:
    """Return how a row stands that was planned, and is not any more."""
    return row.then("CANCELLED", "Not needed", at, "the study came to need it no more")


def attempt_key(run: RunState, number: int, round: int = 1) -> str:
    """Return the key of the row of an attempt at a run of a round."""
    return _key(as_required(run), number, round)


def _key(required: RequiredRun, number: int, round: int) -> str:
    steps = "" if required.steps is None else f"-{required.steps}"
    later = "" if round == 1 else f"round-{round}-"
    return f"{later}{required.phase}-{required.arm}-{required.seed}{steps}-{number}"


def _of_round(state: StudyState) -> str:
    """Return what the name of a row of a later round begins with."""
    return "" if state.round == 1 else f"round {state.round}: "


def _row(state: StudyState, required: RequiredRun, number: int, *more: str) -> TaskRow:
    phase = "" if required.phase == "confirm" else f"{required.phase} "
    steps = "" if required.steps is None else f", {required.steps} steps"
    again = "" if number == 1 else f", try {number}"
    tried = () if number == 1 else (f"try:{number}",)  # first, because Prefect's list cuts off names and tags
    asked = () if state.most_rounds == 1 else (f"round:{state.round}",)
    tags = (*tried, *asked, f"arm:{required.arm}", f"seed:{required.seed}", f"phase:{required.phase}", state.id, *more)
    name = f"{_of_round(state)}{phase}{required.arm} seed {required.seed}{steps}{again}"
    return TaskRow(_key(required, number, state.round), name, tags, ())


def _planning(state: StudyState, since: StudyState) -> TaskRow:
    began, later = since.last_ts, "" if state.round == 1 else f"-round-{state.round}"
    if state.rounds_before:
        began = max(began, state.rounds_before[-1].last_ts)
    row = TaskRow(f"{_PLANNING}{later}", f"{_of_round(state)}planning", (state.id,), ())
    row = row.then("RUNNING", "Running", began)
    first = next((run.planned for run in state.runs_in("noise")), None)
    if first is not None and first > since.last_ts:
        row = row.then("RUNNING", "Awaiting A/A runs", first)
    if state.locked is not None:
        return row.then("COMPLETED", "Completed", state.locked.ts, f"locked as {(state.design_hash or '')[:16]}")
    if state.stopped_reason is not None:
        return row.then("FAILED", "Failed", state.last_ts, state.stopped_reason)
    return row


class _Attempts:
    """The rows of one run."""

    def __init__(self, state: StudyState, since: StudyState, run: RunState, before: RunState | None) -> None:
        self._state = state
        self._begin = since.last_ts
        self._run = run
        self._before = () if before is None else before.attempts
        self._required = as_required(run)

    def rows(self) -> Iterator[TaskRow]:
        """Yield a row for each attempt of the session, and for one that is to come."""
        over = {attempt.number for attempt in self._before if attempt.status not in (None, "finished")}
        previous = None
        for attempt in self._run.attempts:
            if attempt.number not in over:
                yield self._ended(self._begun(attempt, previous), attempt)
            previous = attempt
        if previous is None and self._run.invalid is not None:
            code, reason = self._run.invalid
            yield self._waiting(None).then("CANCELLED", "Not needed", self._run.settled, f"{code}: {reason}")
        elif previous is None or self._is_tried_again(previous):
            yield self._waiting(previous)

    def _is_tried_again(self, last: AttemptState) -> bool:
        design = self._state.design
        failed = self._run.status == "ended" and last.status != "finished"
        return failed and given_up(self._run, MOST_ATTEMPTS if design is None else design.max_attempts) is None

    def _waiting(self, previous: AttemptState | None) -> TaskRow:
        number = 1 if previous is None else previous.number + 1
        row = _row(self._state, self._required, number, f"run:{self._run.run_id}")
        if previous is None:
            return row.then("PENDING", "Planned", self._late(self._run.planned))
        said = f"try {previous.number} {previous.status}: {previous.reason}"
        return row.then("SCHEDULED", "AwaitingRetry", self._late(previous.ended), said)

    def _begun(self, attempt: AttemptState, previous: AttemptState | None) -> TaskRow:
        if attempt.launched < self._begin:
            row = _row(self._state, self._required, attempt.number, f"run:{self._run.run_id}")
            said = f"it began at {attempt.launched[:19].replace('T', ' ')} UTC, in an earlier flow run of this study"
            return row.then("RUNNING", "Running", self._begin, said)
        name = "Running" if previous is None else "Retrying"
        return self._waiting(previous).then("RUNNING", name, attempt.launched, attempt.why)

    def _ended(self, row: TaskRow, attempt: AttemptState) -> TaskRow:
        if attempt.status is None:
            return row
        last = attempt is self._run.attempts[-1]
        if attempt.status == "finished":
            row = row.then("RUNNING", "Collecting", self._late(attempt.ended))
            return self._settled(row) if last and is_over(self._run) else row
        row = row.then(*_ENDS[attempt.status], self._late(attempt.ended), _reason(attempt.code, attempt.reason))
        given = last and self._run.invalid is not None and attempt.status != "stopped"
        return self._settled(row) if given else row

    def _settled(self, row: TaskRow) -> TaskRow:
        run = self._run
        if run.invalid is not None:
            return row.then("FAILED", "Invalid", self._late(run.settled), _reason(*run.invalid))
        return row.then("COMPLETED", "Completed", self._late(run.settled), _result(run))

    def _late(self, at: str) -> str:
        """Return a time of this session: what was before is told as of its begin."""
        return max(at, self._begin)


def _reason(code: str, reason: str) -> str:
    return reason if code in ("", "lost", "stopped") else f"{code}: {reason}"


def _result(run: RunState) -> str:
    metric = run.spec.metric
    if metric.key == SUCCESS or metric.key not in run.measurements:
        return came_to(run)
    return f"{metric.name or metric.key} {run.measurements[metric.key].value:.4g}; {came_to(run)}"


def _next_look(state: StudyState, since: StudyState) -> Iterator[TaskRow]:
    """Yield what the next look will need if the one that is worked for leaves its question open."""
    design = state.design
    if design is None or design.screen is not None or state.locked is None:
        return
    if state.status not in ("running", "paused") or budget_decision(state) is not None:
        return
    look = max((wanted_look(state, claim.id) for claim in active(state, design)), default=0) + 1
    said = f"for look {look} of {len(design.looks)}, if look {look - 1} leaves a question open"
    for required in islice(_of_look(state, design, look), runs_left(state)):
        yield _row(state, required, 1).then("PENDING", "Planned", max(state.locked.ts, since.last_ts), said)


def _of_look(state: StudyState, design: Design, look: int) -> Iterator[RequiredRun]:
    if not 1 < look <= len(design.looks):
        return
    drawn = design.seeds[look_seeds(design, look - 1) : look_seeds(design, look)]
    seeds = {arm.name: set(design.seeds_of(arm.name, drawn)) for arm in design.arms}
    every = confirmation_runs(state, design, all_looks=True)
    yield from missing(planned(state), [required for required in every if required.seed in seeds[required.arm]])
