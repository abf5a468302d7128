"""AttemptLauncher: launches an attempt once by name, adopts, watches and stops it.

The event `attempt.launched` is written before anything is started; a controller that was killed in between finds the
event and starts what it names. A launch is idempotent by name, so there is at most one process per attempt. When an
attempt ends, what it left running, its containers too, is ended before the event says so. So the next attempt can take
over what the server of an ended one kept (`research.runs.resume`): nobody else writes it any more.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from research.design.pricing import is_guess, price_of, runs_at_once
from research.environments.catalog import find_custom_environments
from research.environments.install import packages_of
from research.files import FULL_EXIT, LAUNCH_ROOM, read_json, require_room, write_json
from research.installation.base_job import require_unchanged, variables_of
from research.installation.home import Home
from research.installation.machine import MachineSlots, device_variables, devices_of
from research.isolation.mode import ENGINE_VARIABLES, UNISOLATED, Isolation, require_isolation
from research.models.fetch import check_loader
from research.own_process import thread_variables
from research.runs.collect import NOTHING_SAID, CollectedEvidence, collect, find_breakdown, measure
from research.runs.files import AttemptFolder, AttemptOutcome, AttemptSpec, RunEvaluation, prune_runs, read_progress
from research.runs.provenance import count_neighbours
from research.runs.remote import find_use, release
from research.runs.resume import ResumePlan, end_containers, plan_resume, transfer_files
from research.runs.wandb_log import ReadTracking
from sandboxes import Exit, Handle, ProcessSandbox, Sandbox, SandboxSpec
from sandboxes.preload import SWITCH
from studies import AttemptState, EventType, RunState, StudyLog, StudyState
from studies.checks.alarms import max_silence
from studies.checks.conditions import CollectError, find_untrained_run, read_collected
from studies.log.event_log import Clock
from studies.metrics import kind_of, other_environment
from studies.records.design import is_expression
from studies.records.runs import BLAMELESS_CODES, DISK_FULL, SERVER_AWAY, SERVER_TAKEN, WORST_CODES, Measurement
from swarm.client.async_client import EPISODE_TIMEOUT_S
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel

SERVERS = "servers"
"""Setting: the swarm servers elsewhere on which a study trains, by address or name; none where it starts its own."""
SERVER_ENDS = (SERVER_AWAY, SERVER_TAKEN)
"""After each of these ends in a row the next attempt waits twice as long."""
ANEW_AFTER_S = 600.0
"""A training whose server was not to be had for so long after its last attempt is begun anew at another one."""
ASK_AGAIN_S = 5.0
"""Servers of which none was free are asked again after so long."""
READ_AGAIN_S = 5.0
"""A tracker that was behind is read again after so long."""
LEAST_TIME_LIMIT_S = 900.0
TIME_LIMIT_FACTOR = 10.0
"""An attempt may take this many times the seconds of a run at present, and `LEAST_TIME_LIMIT_S` in any case.

While no run of a model or an environment has ended of which nothing is known beforehand, its price is a guess: its
first runs may take what is left of the study's budget."""
LATEST_LOG_S = 600.0
"""How long after an attempt's end its tracker may show the rest of its log: uploads lag by seconds, rarely minutes."""
LOG_TAIL_BYTES = 1000
_ATTEMPT = (
    "research.runs.attempt", "swarm.server.__main__", "swarm.environments.__main__", "wandb.apis.public", "requests",
    "uvloop",
)  # fmt: skip
PRELOADED: Mapping[str, tuple[str, ...]] = {
    "fake": _ATTEMPT,
    "local": (
        *_ATTEMPT, "swarm.backends.local.learner", "swarm.backends.local.loading",
        "transformers.models.auto.tokenization_auto", "transformers.models.auto.modeling_auto",
        "transformers.models.llama.modeling_llama",
    ),
}  # fmt: skip
"""What attempts' processes import, an engine and a tracker as they begin included, by backend."""


@dataclass(eq=False)
class AttemptLauncher:
    """Launches, watches and stops the attempts of one study, and writes their events."""

    home: Home
    record: StudyLog
    sandbox: Sandbox
    slots: MachineSlots
    clock: Clock
    isolation: Isolation = UNISOLATED
    read_tracking: ReadTracking | None = None
    waits_for: str = ""
    """Why no server elsewhere takes the next attempt, where a study trains there."""
    _servers: dict[str, str] = field(default_factory=dict)
    """The server that was found free for an attempt, by the attempt's name."""
    _asked: datetime | None = None
    _late: dict[str, datetime] = field(default_factory=dict)
    """When the tracker of an attempt that has ended was behind, by the attempt's name."""

    def launch(self, state: StudyState, run: RunState, number: int) -> None:
        """Launch attempt `number` at a run, for which a slot was taken: its spec, the event, then the sandbox. Raises
        InvalidRequest where the folder of its model or environment has changed since the study named it; BadEnvironment
        where packages cannot be had; SandboxError when the machine cannot start it now, which costs it no try; NotReady
        for a design with code that a planner wrote, without containers."""
        code = {} if state.design is None else state.design.code  # of whichever arm comes first
        if python := [name for name, source in code.items() if not is_expression(source)]:
            require_isolation(self.isolation.sandboxing, f"the code {', '.join(python)}")
        model = Job.from_record(run.spec.job).model
        if isinstance(model, PathModel):
            require_unchanged(model, self.home.models)
        for custom in find_custom_environments(_environments(run)):
            custom.require_unchanged()
        plan = plan_resume(run, lambda earlier: self._folder(run, earlier))
        server = self._servers.pop(self.attempt_name(run, number), "")
        if plan.resumes is not None and server != next(o.server for o in run.attempts if o.number == plan.resumes):
            plan = ResumePlan(why="the server that has its training was not to be had")
        if plan.resumes is None:
            plan = self._share_untrained(state, run, number, server)._replace(why=plan.why)
        attempt = AttemptState(
            number, self.attempt_name(run, number), "", resumes=plan.resumes, initial_sha256=plan.initial_sha256,
            initial_of=plan.initial_of, during_sha256=plan.during_sha256,
            server=server,
        )  # fmt: skip
        self._reap(run, attempt)  # there is nothing: it shows that the engine answers
        require_room(self.home.path, LAUNCH_ROOM)
        self._write_spec(state, run, attempt)
        chosen = self.isolation.sandboxing
        sandbox = {"kind": chosen.kind, **chosen.model_dump(mode="json", exclude_defaults=True)}
        begins = {name: value for name, value in plan._asdict().items() if value}
        said: dict[str, Any] = {"begins": begins} if run.attempts or begins else {}
        said |= {"server": attempt.server} if attempt.server else {}
        self._append(EventType.ATTEMPT_LAUNCHED, run, attempt=number, name=attempt.name, sandbox=sandbox, **said)
        self._start(state, run, attempt)

    def take_slot(self, state: StudyState, run: RunState, number: int) -> bool:
        """Take a slot of this machine for an attempt, or find a server elsewhere that is free; False: it has to
        wait."""
        name, job = self.attempt_name(run, number), Job.from_record(run.spec.job)
        if state.settings.get(SERVERS):
            return self._find(state, run, name)
        capacity = runs_at_once([job], check_loader(self.home.models)) if devices_of(job) else None
        return self.slots.take(name, int(state.settings["parallel"]), capacity)

    def _find(self, state: StudyState, run: RunState, name: str) -> bool:
        """Choose a free server for an attempt: where its training lies, or, once that one was not to be had for
        ANEW_AFTER_S, any; of several the one that has had fewest attempts of its arm."""
        ended = [one for one in run.attempts if one.status is not None]
        since = self._seconds_since(ended[-1].ended or ended[-1].launched) if ended else ANEW_AFTER_S
        spins = len(list(takewhile(lambda one: one.code in SERVER_ENDS, reversed(ended))))
        if self._asked is not None and self._seconds_since(self._asked.isoformat()) < ASK_AGAIN_S:
            return False
        if spins and since < (pause := min(ANEW_AFTER_S, ASK_AGAIN_S * 2**spins)):
            self.waits_for = f"run {run.run_id} waits {pause:.0f} s, as its last tries ({spins}) ended by their servers"
            return False
        plan = plan_resume(run, lambda earlier: self._folder(run, earlier))
        begun = next((one.server for one in run.attempts if one.number == plan.resumes), "")
        every = [one for other in state.every_run.values() for one in other.attempts]
        taken = {one.server: one.name.removeprefix(f"ajet-{self.record.study}-") for one in every if one.status is None}
        of_arm = Counter(one.server for other in state.runs_of(run.spec.arm) for one in other.attempts)
        known = sorted(state.settings[SERVERS], key=lambda server: (server != begun, of_arm[server]))
        why, fewest = [], len(every)
        for server in known[:1] if begun and since < ANEW_AFTER_S else known:
            if server in taken or of_arm[server] > fewest:  # a run of this study that ends makes room for the arm there
                fewest = min(fewest, of_arm[server]) if server != begun else fewest
                continue
            if not (reason := find_use(self.home, server, self.record.study, taken.values())):
                self._servers[name], self.waits_for, self._asked = server, "", None
                return True
            why.append(reason)
        self._asked = self.clock()
        self.waits_for = "; ".join(why)
        return False

    def _seconds_since(self, moment: str) -> float:
        return max(0.0, (self.clock() - datetime.fromisoformat(moment)).total_seconds())

    def attempt_name(self, run: RunState, number: int) -> str:
        return f"ajet-{self.record.study}-{run.run_id}-a{number}"

    def is_started(self, run: RunState) -> bool:
        return self.sandbox.adopt(_active_attempt(run).name) is not None

    def watch(self, state: StudyState, run: RunState) -> bool:
        """Check on the attempt that runs; return whether its end was recorded. One that never started is started, once
        it has a slot. One that ended while its tracker was behind is checked again after a while. Raises SandboxError
        while the disk is full."""
        attempt = _active_attempt(run)
        read_at = self._late.get(attempt.name)
        if read_at is not None and 0 <= (self.clock() - read_at).total_seconds() < READ_AGAIN_S:
            return False  # a clock that was set back is read again
        if (handle := self.sandbox.adopt(attempt.name)) is None:
            if not self._folder(run, attempt.number).spec.exists():  # another host's, whose controller is gone
                self._append_end(run, attempt, "stopped", "lost", "the host that launched it is gone", 0.0)
                return True
            # Claimed anew in any case: somebody may be about to take the slot of a controller that was killed.
            if not attempt.server and not self.take_slot(state, run, attempt.number):
                return False
            self._write_spec(state, run, attempt)
            handle = self._start(state, run, attempt)
        ended = handle.poll()
        if ended is None:
            require_room(self.home.path)  # its end cannot be written down without
            return False
        settled = self._record_end(state, run, attempt, handle, ended, patient=True)
        self.slots.give_back(attempt.name)
        if not settled:
            self._late[attempt.name] = self.clock()
        return settled

    def stop(self, state: StudyState, run: RunState, code: str) -> None:
        """End the attempt that runs; one that finished by itself meanwhile keeps its result. Unless its environment is
        gone, with which it would be checked: then it counts as stopped, to be gone on from."""
        attempt = _active_attempt(run)
        handle = self.sandbox.adopt(attempt.name)
        if handle is None:
            self._append_end(run, attempt, "stopped", code, "stopped before it began", 0.0)
            return
        ended = handle.poll()
        if ended is not None:
            with suppress(InvalidRequest):
                self._record_end(state, run, attempt, handle, ended, patient=False)
                return
        handle.stop()
        self._reap(run, attempt)
        worked = self._active_seconds(run, attempt, unknown=self._age_seconds(attempt))
        self._append_end(run, attempt, "stopped", code, "the study was stopped", worked)

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
        if run.collected is None:
            raise ValueError(f"expected a run that was collected; found run {run.run_id}, which is {run.status}")
        try:
            found = measure(self.home.study(self.record.study), run.collected, run.spec.metric)
        except CollectError as error:
            self.invalidate(run, error.code, error.reason)
            return
        for measurement in found:
            if measurement.key not in run.measurements:
                self.record.append(EventType.MEASUREMENT_RECORDED, measurement.model_dump(mode="json"))

    def invalidate(self, run: RunState, code: str, reason: str) -> None:
        self._append(EventType.RUN_INVALIDATED, run, code=code, reason=reason)

    def _share_untrained(self, state: StudyState, run: RunState, number: int, server: str) -> ResumePlan:
        """Copy the evaluation of the untrained policy that a run may share into an attempt's folder. Where there is
        none (`studies.records.runs.shares_untrained`), where what is measured is what a run adds to its own, or where
        its evidence was spoilt since, the run makes its own."""
        source = None if kind_of(run.spec.metric).reads_initial else find_untrained_run(state, run.spec)
        if source is None or source.collected is None or source.attempts[-1].server != server:
            return ResumePlan()  # each server elsewhere makes a model of its own
        try:
            data = read_collected(self.home.study(self.record.study), source.collected["evaluation"])
        except CollectError:
            return ResumePlan()
        initial = RunEvaluation.model_validate_json(data).initial.model_dump(mode="json", exclude_defaults=True)
        sha256 = write_json(self._folder(run, number).evaluation("initial"), initial)
        return ResumePlan(initial_sha256=sha256, initial_of=source.run_id)

    def _start(self, state: StudyState, run: RunState, attempt: AttemptState) -> Handle:
        if attempt.resumes is not None:
            transfer_files(self._folder(run, attempt.resumes), self._folder(run, attempt.number))
        folder, job = self._folder(run, attempt.number).path, Job.from_record(run.spec.job)
        self.preload(state, job)
        spec = SandboxSpec(
            name=attempt.name,
            command=(sys.executable, "-m", "research.runs.attempt", str(folder)),
            directory=folder,
            environment=self._environment(state, job.backend) | device_variables(self.slots.slot_of(attempt.name)),
            labels=self._labels(run, attempt),
            time_limit_s=_time_limit(state, run),
            trusted=True,
        )
        return self.sandbox.run(spec)

    def preload(self, state: StudyState, job: Job) -> None:
        """Begin to import what attempts at runs of a job import, once (`sandboxes.preload`), unless each has a GPU."""
        backend = "fake" if state.settings.get(SERVERS) else job.backend  # no model is loaded here
        alike = backend in PRELOADED and (backend == "fake" or not devices_of(job))
        if alike and isinstance(self.sandbox, ProcessSandbox) and os.environ.get(SWITCH) != "0":
            self.sandbox.preload(PRELOADED[backend], self._environment(state, backend))

    def _environment(self, state: StudyState, backend: str) -> dict[str, str]:
        contained = self.isolation.containers is not None
        return {
            **{name: os.environ[name] for name in ENGINE_VARIABLES if contained and name in os.environ},
            **variables_of(backend), **thread_variables(int(state.settings["parallel"])),
            "WANDB_ERROR_REPORTING": "false",  # read when W&B's client is imported
        }  # fmt: skip

    def _record_end(
        self, state: StudyState, run: RunState, attempt: AttemptState, handle: Handle, ended: Exit, *, patient: bool
    ) -> bool:
        """Record how an attempt ended, with its results; return False where the tracker is waited for (`patient`). A
        finished attempt whose results cannot be taken has failed: the run is tried again. One that says that its
        training broke down has failed by that only if its log shows it."""
        handle.stop()
        self._reap(run, attempt)
        outcome, evidence = self._outcome(run, attempt), None
        seconds = outcome.seconds if outcome is not None else self._active_seconds(run, attempt)
        try:
            if ended.reason == "finished" and outcome is not None and outcome.status == "finished":
                evidence = self._collect(state, run, attempt, outcome)
                status, code, reason = "finished", "ok", ""
            else:
                status, code, reason = _failure(ended, outcome, handle)
                if code in WORST_CODES:
                    spec = self._attempt_spec(state, run, attempt)
                    alarm = find_breakdown(self._folder(run, attempt.number), spec, self.read_tracking)
                    status, code, reason = "failed", alarm.code, alarm.sentence
        except CollectError as error:
            if error.late and patient and self._age_seconds(attempt) - seconds < LATEST_LOG_S:
                return False
            status, code, reason = "failed", error.code, error.reason
        self._append_end(run, attempt, status, code, reason, seconds, outcome)
        if evidence is not None:
            self._append_evidence(run, attempt, evidence, seconds)
        return True

    def _collect(
        self, state: StudyState, run: RunState, attempt: AttemptState, said: AttemptOutcome | None
    ) -> CollectedEvidence:
        # Where another host goes on between an attempt's end and what was collected of it, its files are not there.
        kept = self.home.study(self.record.study) / "runs" / run.run_id / "collected.json"
        if not self._folder(run, attempt.number).spec.exists() and (stored := read_json(kept)) is not None:
            return CollectedEvidence(stored["payload"], tuple(map(Measurement.model_validate, stored["measurements"])))

        def end(of: AttemptState, seconds: float) -> datetime:
            return datetime.fromisoformat(of.launched) + timedelta(seconds=seconds)

        seconds = self._active_seconds(run, attempt) if said is None else said.seconds
        ended = end(attempt, seconds)
        attempts = [one for other in state.every_run.values() for one in other.attempts]
        *earlier, last = run.lineage  # the attempts whose training the run's is
        trained = [*((one, end(one, one.seconds or 0.0)) for one in earlier), (last, ended)]
        others = self.slots.spans(ended)
        evidence = collect(
            self._folder(run, attempt.number), self._attempt_spec(state, run, attempt),
            self.home.study(self.record.study), self.read_tracking, said=said or NOTHING_SAID,
            neighbours=None if attempt.server else max(
                count_neighbours(attempts, one, until, others) for one, until in trained
            ),
        )  # fmt: skip
        if self.home.files.url:
            measured = [measurement.model_dump(mode="json") for measurement in evidence.measurements]
            write_json(kept, {"payload": dict(evidence.payload), "measurements": measured})
        return evidence

    def _append_evidence(
        self, run: RunState, attempt: AttemptState, evidence: CollectedEvidence, seconds: float
    ) -> None:
        self._append(EventType.RUN_COLLECTED, run, attempt=attempt.number, seconds=seconds, **evidence.payload)
        for measurement in evidence.measurements:
            self.record.append(EventType.MEASUREMENT_RECORDED, measurement.model_dump(mode="json"))
        self.prune(self.record.state(), run)

    def prune(self, state: StudyState, *runs: RunState) -> None:
        """Have servers elsewhere, and then this machine, keep of collected runs (all, if none is named) the last
        weights alone. What cannot be had now is left to the next report, or to `ajet study prune`."""
        silent = {""}
        for run in runs or [run for run in state.every_run.values() if run.status == "collected"]:
            for one in (one for one in run.attempts if one.server not in silent):
                if not release(self.home, one.server, self._attempt_spec(state, run, one).job):
                    silent.add(one.server)
        with suppress(OSError):
            prune_runs(self.home.study(self.record.study), state)

    def _append_end(
        self, run: RunState, attempt: AttemptState, status: str, code: str, reason: str, seconds: float,
        said: AttemptOutcome | None = None,
    ) -> None:  # fmt: skip
        more = {} if said is None else said.model_dump(include={"resumed_at", "step"})
        more |= {} if said is None else {"refused": dict(said.refused) or None}
        self._append(
            EventType.ATTEMPT_ENDED, run, attempt=attempt.number, status=status, code=code, reason=reason,
            seconds=seconds, **{name: value for name, value in more.items() if value is not None},
        )  # fmt: skip
        self.slots.give_back(attempt.name)

    def _append(self, type: EventType, run: RunState, **payload: object) -> None:
        self.record.append(type, {"run_id": run.run_id, **payload})

    def _labels(self, run: RunState, attempt: AttemptState) -> dict[str, str]:
        return {"study": self.record.study, "run_id": run.run_id, "attempt": str(attempt.number)}

    def _reap(self, run: RunState, attempt: AttemptState) -> None:
        folder = self._folder(run, attempt.number)
        if attempt.server and folder.server.exists() and not folder.outcome.exists():  # it was killed
            find_use(self.home, attempt.server, self.record.study)
        if self.isolation.containers is not None:
            end_containers(self.isolation.containers, self._labels(run, attempt), self._folder(run, attempt.number))

    def _attempt_spec(self, state: StudyState, run: RunState, attempt: AttemptState) -> AttemptSpec:
        contained = self.isolation.containers is not None
        return AttemptSpec(
            study=self.record.study, run_id=run.run_id, attempt=attempt.number, spec=run.spec,
            models=str(self.home.models), environments=str(self.home.environments), sandbox=self.isolation.sandboxing,
            containers=str(self.home.containers) if contained else "",
            watchdog=None if state.design is None else state.design.watchdog, resumes=attempt.resumes,
            initial_sha256=attempt.initial_sha256, initial_of=attempt.initial_of,
            initial_episodes=state.every_run[attempt.initial_of].spec.metric.episodes if attempt.initial_of else None,
            during_sha256=attempt.during_sha256, server=attempt.server,
            lineage=_lineage(run, attempt) if attempt.server else "",
        )  # fmt: skip

    def _write_spec(self, state: StudyState, run: RunState, attempt: AttemptState) -> None:
        limit = _time_limit(state, run)
        step_s = price_of(state, run.spec.phase) / int(str(run.spec.job["steps"]))
        packages: dict[str, None] = {}
        if self.isolation.containers is None:  # what comes first on the path of its processes; made again if gone
            for environment in _environments(run):
                packages |= dict.fromkeys(map(str, packages_of(environment, self.home, lambda _: None)))
        found = {
            "time_limit_s": limit,
            "play_s": max(EPISODE_TIMEOUT_S, limit / TIME_LIMIT_FACTOR),
            "silence_s": max_silence(step_s),
            "packages": tuple(packages),
        }
        spec = self._attempt_spec(state, run, attempt).model_copy(update=found)
        write_json(self._folder(run, attempt.number).spec, spec.model_dump(mode="json"))

    def _outcome(self, run: RunState, attempt: AttemptState) -> AttemptOutcome | None:
        path = self._folder(run, attempt.number).outcome
        try:
            value = read_json(path)
            return None if value is None else AttemptOutcome.model_validate(value)
        except ValueError as error:  # of JSON or of the model: the attempt is tried again, its word stays to be seen
            seconds, reason = self._active_seconds(run, attempt), f"cannot read {path}: {error}"
            return AttemptOutcome(status="failed", code="outcome_unreadable", reason=reason, seconds=seconds, stages={})

    def _folder(self, run: RunState, number: int) -> AttemptFolder:
        return AttemptFolder(self.home.attempt(self.record.study, run.run_id, number))

    def _active_seconds(self, run: RunState, attempt: AttemptState, unknown: float = 0.0) -> float:
        """Return the seconds that an attempt worked until its last sign of life; `unknown` where it left none."""
        progress = read_progress(self._folder(run, attempt.number))
        return unknown if progress is None else min(progress.seconds, self._age_seconds(attempt))

    def _age_seconds(self, attempt: AttemptState) -> float:
        return self._seconds_since(attempt.launched)


def _lineage(run: RunState, attempt: AttemptState) -> str:
    """Return the tracking id of the attempt that began an attempt's training."""
    earlier = {one.number: one for one in run.attempts}
    while attempt.resumes is not None:
        attempt = earlier[attempt.resumes]
    return f"{run.run_id}-a{attempt.number}"


def _environments(run: RunState) -> list[str]:
    other = other_environment(run.spec.metric, run.spec.job)
    return [run.spec.environment, *([other] if other is not None else [])]


def _time_limit(state: StudyState, run: RunState) -> float:
    limit = max(LEAST_TIME_LIMIT_S, TIME_LIMIT_FACTOR * price_of(state, run.spec.phase))
    guess = is_guess(state, run.spec.phase, Job.from_record(run.spec.job))
    return max(limit, state.budget_s - state.worked_s) if guess else limit


def _active_attempt(run: RunState) -> AttemptState:
    if run.active is None:
        raise ValueError(f"expected a run with an attempt that runs; found run {run.run_id}, which is {run.status}")
    return run.active


def _failure(ended: Exit, outcome: AttemptOutcome | None, handle: Handle) -> tuple[str, str, str]:
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
