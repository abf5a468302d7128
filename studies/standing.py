"""Where a study stands: frozen values for the study, its runs and their attempts.

They hold what the events said and answer questions about it; `studies.state.fold` is what makes them. They open
no file: that a file still is what was collected is for the report to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from studies.records import Design, Hypothesis, Measurement, RunSpec, Verdict

StudyStatus = Literal["planning", "running", "judged", "concluded", "stopped"]
RunStatus = Literal["planned", "running", "ended", "collected", "invalid"]
AttemptStatus = Literal["finished", "failed", "timeout", "stopped", "lost"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where in the log something happened: the event's number and its time (ISO-8601 UTC)."""

    seq: int
    ts: str


@dataclass(frozen=True, slots=True)
class AttemptState:
    """One try at a run; `status` is None while it runs."""

    number: int
    name: str
    launched: str
    status: AttemptStatus | None = None
    code: str = ""
    reason: str = ""
    seconds: float | None = None
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    """Where its client and evaluators ran: `kind`, and for containers the `image`; empty for processes of old logs."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """What its containers asked for and were refused, by who asked and why."""


@dataclass(frozen=True, slots=True)
class RunState:
    """One run with all its attempts. `collected` is the payload of `run.collected`; `invalid` is (code, reason)."""

    run_id: str
    spec: RunSpec
    attempts: tuple[AttemptState, ...] = ()
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    collected: Mapping[str, Any] | None = None
    invalid: tuple[str, str] | None = None

    @property
    def active(self) -> AttemptState | None:
        """The attempt that runs now, if one does."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].status is None else None

    @property
    def status(self) -> RunStatus:
        """How far the run is; an invalid run stays invalid whatever was collected."""
        if self.invalid is not None:
            return "invalid"
        if self.collected is not None:
            return "collected"
        if self.active is not None:
            return "running"
        return "ended" if self.attempts else "planned"

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of all its ended attempts."""
        return sum(attempt.seconds or 0.0 for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class PlannerAct:
    """One call on the planner: `tokens` counts prompt and completion, `rejected` holds the errors sent back."""

    action: str
    tries: int
    tokens: Mapping[str, int]
    rejected: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a rule decided, and why."""

    rule: str
    action: str
    reason: str
    ts: str


@dataclass(frozen=True, slots=True)
class StudyState:
    """Everything known about a study. Times are ISO-8601 UTC; `elapsed_s` runs from the first to the last event."""

    id: str
    topic: str
    planner: Mapping[str, Any]
    settings: Mapping[str, Any]
    command: Any
    versions: Mapping[str, Any]
    machine: Mapping[str, Any]
    created: str
    hypotheses: tuple[Hypothesis, ...]
    design: Design | None
    design_hash: str | None
    locked: Stamp | None
    first_launch: Stamp | None
    runs: Mapping[str, RunState]
    verdicts: tuple[Verdict, ...]
    superseded: tuple[Verdict, ...]
    decisions: tuple[Decision, ...]
    planner_acts: tuple[PlannerAct, ...]
    model: Mapping[str, Any] | None
    report: Mapping[str, Any] | None
    """Payload of `report.built` while that was the last event; None when the newest report shows an older state."""
    stopped_reason: str | None
    """Why the study stands still; None while it does not."""
    concluded_reason: str | None
    resumed_count: int
    last_ts: str
    event_count: int
    head_hash: str
    worked_s: float
    """Seconds that count against the budget: between events, without the waits before a stop or a resumption."""

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds from the first to the last event, pauses included."""
        span = datetime.fromisoformat(self.last_ts) - datetime.fromisoformat(self.created)
        return max(0.0, span.total_seconds())

    @property
    def status(self) -> StudyStatus:
        """Where the study stands."""
        if self.concluded_reason is not None:
            return "concluded"
        if self.stopped_reason is not None:
            return "stopped"
        if self.design is None:
            return "planning"
        judged = {verdict.hypothesis for verdict in self.verdicts}
        return "judged" if all(h.id in judged for h in self.design.hypotheses) else "running"

    def runs_of(self, arm: str) -> tuple[RunState, ...]:
        """Return the runs of an arm, in the order they were planned."""
        return tuple(run for run in self.runs.values() if run.spec.arm == arm)

    def values(self, arm: str, key: str | None = None) -> dict[str, float]:
        """Return the measured value of each valid collected run of an arm, by run id: what a verdict rests on.

        `key` defaults to the design's metric. An invalid run, or one without the measurement, is left out.
        """
        wanted = key or (self.design.metric.key if self.design else "")
        return {
            run.run_id: run.measurements[wanted].value
            for run in self.runs_of(arm)
            if run.status == "collected" and wanted in run.measurements
        }
