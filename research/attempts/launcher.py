"""Attempts at runs, through a sandbox: launched by name exactly once, watched, stopped, collected.

The event `attempt.launched` is written before anything is started; a controller that was killed in between finds
the event and starts what it names. A launch is idempotent by name, so there is at most one process per attempt.
When an attempt ends, what it left running, its containers too, is ended before the event says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

from research.attempts.backoff import Backoff
from research.attempts.cleanup import reaping
from research.design.pricing import price_of
from research.files import read_json, write_json
from research.installation.cotenants import CoTenants
from research.installation.disk import FULL_EXIT, LAUNCH_ROOM, require_room
from research.installation.home import Home
from research.isolation.mode import ENGINE_VARIABLES, UNISOLATED, Isolation, require_isolation
from research.results.attempt_files import AttemptFolder, AttemptOutcome, AttemptSpec
from research.results.collect import (
    NOTHING_SAID,
    CollectedEvidence,
    CollectError,
    ReadTracking,
    breakdown,
    collect,
    measure,
)
from research.results.conditions import neighbours_of
from research.results.failure_codes import BLAMELESS_CODES, DISK_FULL, WORST_CODES
from sandboxes import Exit, Handle, Sandbox, SandboxSpec
from studies import AttemptState, EventType, RunState, StudyLog, StudyState
from studies.log.event_log import Clock

LEAST_TIME_LIMIT_S = 900.0
TIME_LIMIT_FACTOR = 10.0
"""An attempt may take this many times the seconds of a run at present, and `LEAST_TIME_LIMIT_S` in any case."""
LATEST_LOG_S = 600.0
"""How long after an attempt's end its tracker may show the rest of its log: uploads lag by seconds, rarely minutes."""
LOG_TAIL_BYTES = 1000
NOTHING_REFUSED: Mapping[str, int] = MappingProxyType({})


class AttemptLauncher:
    """Launches, watches and stops the attempts of one study, and writes their events."""

    def __init__(
        self,
        home: Home,
        record: StudyLog,
        sandbox: Sandbox,
        clock: Clock,
        isolation: Isolation = UNISOLATED,
        read_tracking: ReadTracking | None = None,
    ) -> None:
        self._home = home
        self._record = record
        self._study = record.study
        self._sandbox = sandbox
        self.others = CoTenants(sandbox, record.study)
        self._clock = clock
        self._isolation = isolation
        self._read_tracking = read_tracking
        self._late = Backoff(clock)

    def launch(self, state: StudyState, run: RunState, number: int) -> None:
        """Launch attempt `number` at a run: its spec, the event, then the sandbox.

        Raises SandboxError when the machine cannot start it now, or has no room on its disk: no fault of the run, so
        it costs it no try; NotIsolated for a design with code that a planner wrote, without containers.
        """
        if state.design is not None and state.design.code:  # whichever arm comes first
            require_isolation(self._isolation.sandboxing, f"the reward {', '.join(state.design.code)}")
        attempt = AttemptState(number, f"ajet-{self._study}-{run.run_id}-a{number}", "")
        self._reap(run, attempt)  # there is nothing: it shows that the engine answers
        require_room(self._home.path, LAUNCH_ROOM)
        self._write_spec(state, run, number)
        chosen = self._isolation.sandboxing
        sandbox = {"kind": chosen.kind, **chosen.model_dump(mode="json", exclude_defaults=True)}
        self._append(EventType.ATTEMPT_LAUNCHED, run, attempt=number, name=attempt.name, sandbox=sandbox)
        self._sandbox.run(self._sandbox_spec(state, run, attempt))

    def watch(self, state: StudyState, run: RunState) -> bool:
        """Check on the attempt that runs; return whether its end was recorded. One that never started is started.

        One that ended while its tracker was behind is checked again with exponential backoff. Raises SandboxError
        while the disk is full.
        """
        attempt = _active(run)
        if not self._late.is_due(attempt.name):
            return False
        handle = self._sandbox.adopt(attempt.name) or self._relaunch(state, run, attempt)
        ended = handle.poll()
        if ended is None:
            require_room(self._home.path)  # its end cannot be written down without
            return False
        settled = self._settle(state, run, attempt, handle, ended, patient=True)
        (self._late.found if settled else self._late.in_vain)(attempt.name)
        return settled

    def stop(self, state: StudyState, run: RunState, code: str) -> None:
        """End the attempt that runs; one that finished by itself meanwhile keeps its result."""
        attempt = _active(run)
        handle = self._sandbox.adopt(attempt.name)
        if handle is None:
            self._append_end(run, attempt, "stopped", code, "stopped before it began", 0.0)
            return
        ended = handle.poll()
        if ended is not None:
            self._settle(state, run, attempt, handle, ended, patient=False)
            return
        handle.stop()
        self._reap(run, attempt)
        self._append_end(run, attempt, "stopped", code, "the study was stopped", self._seconds(attempt))

    def collect(self, state: StudyState, run: RunState) -> None:
        """Store what the last, finished attempt left, or give the run up if that is not its whole, own result."""
        attempt = run.attempts[-1]
        try:
            evidence = self._collect(state, run, attempt, self._outcome(run, attempt))
        except CollectError as error:
            self.invalidate(run, error.code, error.reason)
            return
        self._append_evidence(run, attempt, evidence, attempt.seconds or 0.0)

    def measure(self, run: RunState) -> None:
        """Record the measurements of a collected run that are not recorded yet."""
        if run.collected is None:
            raise ValueError(f"expected a run that was collected; found run {run.run_id}, which is {run.status}")
        try:
            found = measure(self._home.study(self._study), run.collected, run.spec.metric.key)
        except CollectError as error:
            self.invalidate(run, error.code, error.reason)
            return
        for measurement in found:
            if measurement.key not in run.measurements:
                self._record.append(EventType.MEASUREMENT_RECORDED, measurement.model_dump(mode="json"))

    def invalidate(self, run: RunState, code: str, reason: str) -> None:
        """Give a run up."""
        self._append(EventType.RUN_INVALIDATED, run, code=code, reason=reason)

    def _relaunch(self, state: StudyState, run: RunState, attempt: AttemptState) -> Handle:
        self._write_spec(state, run, attempt.number)
        return self._sandbox.run(self._sandbox_spec(state, run, attempt))

    def _settle(
        self, state: StudyState, run: RunState, attempt: AttemptState, handle: Handle, ended: Exit, *, patient: bool
    ) -> bool:
        """Record how an attempt ended, and its results if it has them; return whether that was done.

        While the tracker is behind nothing is written if `patient`: it is waited for.
        """
        handle.stop()
        self._reap(run, attempt)
        outcome = self._outcome(run, attempt)
        seconds = outcome.seconds if outcome is not None else self._seconds(attempt)
        if ended.reason == "finished" and outcome is not None and outcome.status == "finished":
            return self._finish(state, run, attempt, outcome, patient)
        try:
            status, code, reason = self._confirmed(state, run, attempt, _failure(ended, outcome, handle))
        except CollectError as error:
            if self._is_waited_for(error, attempt, seconds, patient):
                return False
            status, code, reason = "failed", error.code, error.reason
        self._append_end(run, attempt, status, code, reason, seconds, outcome.refused if outcome is not None else {})
        return True

    def _confirmed(
        self, state: StudyState, run: RunState, attempt: AttemptState, failure: tuple[str, str, str]
    ) -> tuple[str, str, str]:
        """Return a failure as reported; CollectError if it is a breakdown of which the log shows nothing."""
        if failure[1] not in WORST_CODES:
            return failure
        spec = self._attempt_spec(state, run, attempt.number)
        alarm = breakdown(self._folder(run, attempt.number), spec, self._read_tracking)
        return "failed", alarm.code, alarm.sentence

    def _is_waited_for(self, error: CollectError, attempt: AttemptState, seconds: float, patient: bool) -> bool:
        """Return whether what was not found after an attempt of so many seconds may still come."""
        return error.late and patient and self._seconds(attempt) - seconds < LATEST_LOG_S

    def _finish(
        self, state: StudyState, run: RunState, attempt: AttemptState, outcome: AttemptOutcome, patient: bool
    ) -> bool:
        """A finished attempt whose results cannot be taken has failed: the run is tried again."""
        try:
            evidence = self._collect(state, run, attempt, outcome)
        except CollectError as error:
            if self._is_waited_for(error, attempt, outcome.seconds, patient):
                return False
            self._append_end(run, attempt, "failed", error.code, error.reason, outcome.seconds, outcome.refused)
            return True
        self._append_end(run, attempt, "finished", "ok", "", outcome.seconds, outcome.refused)
        self._append_evidence(run, attempt, evidence, outcome.seconds)
        return True

    def _collect(
        self, state: StudyState, run: RunState, attempt: AttemptState, said: AttemptOutcome | None
    ) -> CollectedEvidence:
        seconds = self._seconds(attempt) if said is None else said.seconds
        ended = datetime.fromisoformat(attempt.launched) + timedelta(seconds=seconds)
        return collect(
            self._folder(run, attempt.number),
            self._attempt_spec(state, run, attempt.number),
            self._home.study(self._study),
            self._read_tracking,
            said=said or NOTHING_SAID,
            neighbours=neighbours_of(
                (a for r in state.runs.values() for a in r.attempts), attempt, ended, self.others.spans(ended)
            ),
        )

    def _append_evidence(
        self, run: RunState, attempt: AttemptState, evidence: CollectedEvidence, seconds: float
    ) -> None:
        self._append(
            EventType.RUN_COLLECTED, run, attempt=attempt.number, seconds=seconds, **evidence.payload(),
        )  # fmt: skip
        for measurement in evidence.measurements:
            self._record.append(EventType.MEASUREMENT_RECORDED, measurement.model_dump(mode="json"))

    def _append_end(
        self,
        run: RunState,
        attempt: AttemptState,
        status: str,
        code: str,
        reason: str,
        seconds: float,
        refused: Mapping[str, int] = NOTHING_REFUSED,
    ) -> None:
        self._append(
            EventType.ATTEMPT_ENDED, run, attempt=attempt.number, status=status, code=code, reason=reason,
            seconds=seconds, **({"refused": dict(refused)} if refused else {}),
        )  # fmt: skip

    def _append(self, type: EventType, run: RunState, **payload: object) -> None:
        self._record.append(type, {"run_id": run.run_id, **payload})

    def _sandbox_spec(self, state: StudyState, run: RunState, attempt: AttemptState) -> SandboxSpec:
        folder = self._folder(run, attempt.number).path
        return SandboxSpec(
            name=attempt.name,
            command=(sys.executable, "-m", "research.attempts.attempt", str(folder)),
            directory=folder,
            environment=self._engine_variables(),
            labels=self._labels(run, attempt),
            time_limit_s=_time_limit(state, run),
            trusted=True,
            after_kill=() if self._isolation.containers is None else reaping(folder),
        )

    def _labels(self, run: RunState, attempt: AttemptState) -> dict[str, str]:
        return {"study": self._study, "run_id": run.run_id, "attempt": str(attempt.number)}

    def _engine_variables(self) -> Mapping[str, str]:
        if self._isolation.containers is None:
            return {}
        return {name: os.environ[name] for name in ENGINE_VARIABLES if name in os.environ}

    def _reap(self, run: RunState, attempt: AttemptState) -> None:
        if self._isolation.containers is not None:
            self._isolation.containers.reap(self._labels(run, attempt))

    def _attempt_spec(self, state: StudyState, run: RunState, number: int) -> AttemptSpec:
        contained = self._isolation.containers is not None
        return AttemptSpec(
            study=self._study,
            run_id=run.run_id,
            attempt=number,
            spec=run.spec,
            models=str(self._home.models),
            sandbox=self._isolation.sandboxing,
            containers=str(self._home.containers) if contained else "",
            watchdog=None if state.design is None else state.design.watchdog,
        )

    def _write_spec(self, state: StudyState, run: RunState, number: int) -> None:
        spec = self._attempt_spec(state, run, number).model_copy(update={"time_limit_s": _time_limit(state, run)})
        write_json(self._folder(run, number).spec, spec.model_dump(mode="json"))

    def _outcome(self, run: RunState, attempt: AttemptState) -> AttemptOutcome | None:
        """Return what the attempt said of its end; None when it said nothing."""
        path = self._folder(run, attempt.number).outcome
        try:
            value = read_json(path)
            return None if value is None else AttemptOutcome.model_validate(value)
        except ValueError as error:  # of JSON or of the model: the attempt is tried again, its word stays to be seen
            seconds, reason = self._seconds(attempt), f"cannot read {path}: {error}"
            return AttemptOutcome(status="failed", code="outcome_unreadable", reason=reason, seconds=seconds, stages={})

    def _folder(self, run: RunState, number: int) -> AttemptFolder:
        return AttemptFolder(self._home.attempt(self._study, run.run_id, number))

    def _seconds(self, attempt: AttemptState) -> float:
        return max(0.0, (self._clock() - datetime.fromisoformat(attempt.launched)).total_seconds())


def _time_limit(state: StudyState, run: RunState) -> float:
    return max(LEAST_TIME_LIMIT_S, TIME_LIMIT_FACTOR * price_of(state, run.spec.phase))


def _active(run: RunState) -> AttemptState:
    if run.active is None:
        raise ValueError(f"expected a run with an attempt that runs; found run {run.run_id}, which is {run.status}")
    return run.active


def _failure(ended: Exit, outcome: AttemptOutcome | None, handle: Handle) -> tuple[str, str, str]:
    """Return status, code and reason of an attempt that gave no result."""
    if ended.reason == "timeout":
        return "timeout", "timeout", "the attempt took longer than its time limit"
    if ended.reason == "stopped":
        return "stopped", "stopped", "the attempt was stopped from outside"
    if ended.reason == "lost":
        return "lost", "lost", "the attempt and its shim were killed from outside; nobody saw it end"
    if outcome is not None and outcome.status == "failed":
        return "stopped" if outcome.code in BLAMELESS_CODES else "failed", outcome.code, outcome.reason
    if outcome is None and ended.code == FULL_EXIT:
        return "stopped", DISK_FULL, "the disk was full, and the attempt could not even write that down"
    said = " | ".join(handle.logs(tail_bytes=LOG_TAIL_BYTES).strip().splitlines()[-3:]) or "nothing"
    return "failed", "attempt_died", f"the attempt ended with code {ended.code} and no outcome; it last said: {said}"
