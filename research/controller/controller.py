"""StudyController: drives a study tick by tick.

A tick remembers nothing that the log does not say: it may be killed anywhere, and the next one, in this process or
another, goes on from the event log. One controller works on a study at a time (`research.controller.session`); a stop,
a pause, an amendment and a veto may come from any process, as events: what was decided before one of them is decided
again after it.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from research.controller.closing import Closing
from research.controller.mirror import WandbMirror
from research.controller.planning import DrawSecret, Planning
from research.design.known_findings import load_findings
from research.design.noise_bank import NoiseBank
from research.design.pricing import Pricing, local_pricing, place_of
from research.errors import ModelFailed
from research.files import is_full
from research.installation.base_job import base_job_of
from research.installation.home import Home
from research.installation.machine import MachineSlots
from research.installation.shared_files import FilesAway
from research.installation.tiny_model import Note, prepare_model
from research.isolation.mode import UNISOLATED, Isolation
from research.planners.context import Planner
from research.runs.launcher import SERVERS, AttemptLauncher
from research.runs.wandb_log import ReadTracking
from research.scheduler import steps
from research.scheduler.next_step import is_done, next_step
from research.scheduler.required_runs import attempts_running, is_over
from sandboxes import Sandbox, SandboxError
from studies import BudgetClock, EventLog, EventType, HeadMoved, RunState, StoreError, StudyLog, StudyState
from studies.checks.conditions import find_spoilt_runs
from studies.log.event_log import Change, Clock, lock_error
from studies.log.study import REPAIR_RULE
from studies.records.design import MODEL
from studies.records.procedure import Phase
from studies.records.runs import CODE_REPAIRED, NOISE_ARM
from studies.records.statements import claims, model_name, select_arms
from studies.report import Report, build_report
from studies.verdicts.judge import decide_length, judge_hypothesis, size_study
from swarm.job import Job, PathModel

ReportBuilder = Callable[[StudyState, Path], Report]
"""Writes the report on a state into the study's folder."""
LEAST_CHARGED_S = 1.0
"""Least work on an abandoned step that is worth an event."""
TAKES_LONG = (
    steps.PlanStudy, steps.PlanRound, steps.PrepareModel, steps.AskLook, steps.AskRepair, steps.AskWords,
    steps.BuildReport,
)  # fmt: skip
"""Steps before which a study lets others by in the line for a slot."""
BEAT_S = 60.0
"""A waiting controller appends the time it worked after so many seconds: no more is lost if it dies."""
RETRY_TIMEOUT_S = 300.0
"""How long a machine that starts nothing, or an engine that does not answer, is waited for."""
PAUSE_S = 2.0
INTERRUPTED = "interrupted by the user"


def now() -> datetime:
    return datetime.now(UTC)


def budget_left(state: StudyState) -> float:
    """Return about how many seconds a study may still work (never below 0), for an observer now. The log has it with
    each event, at least once in `BEAT_S`; an observer adds at most that since the last event."""
    over = state.concluded_reason is not None or state.stopped_reason is not None
    over = over or (state.open_question is not None and not any(attempts_running(state)))
    since = 0.0 if over else (now() - datetime.fromisoformat(state.last_ts)).total_seconds()
    return max(0.0, state.budget_s - state.worked_s - min(BEAT_S, max(0.0, since)))


def build_stop_event(state: StudyState, reason: str) -> Change | None:
    if state.status in ("stopped", "concluded"):
        return None
    return EventType.STUDY_STOPPED, {"reason": reason}


class StudyController:
    """The controller of one study. The caller holds the study's lease."""

    def __init__(
        self, *, home: Home, log: EventLog, study: str, planner: Planner, sandbox: Sandbox,
        isolation: Isolation = UNISOLATED, clock: Clock = now, seconds: Callable[[], float] = time.monotonic,
        pricing: Pricing | None = None, base: Job | None = None, note: Note = lambda line: None,
        read_tracking: ReadTracking | None = None, build_report: ReportBuilder = build_report,
        draw_secret: DrawSecret = secrets.token_hex, noise_bank: Callable[[EventLog], NoiseBank] = NoiseBank.of,
        planning: Planning | None = None, closing: Closing | None = None, mirror: WandbMirror | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`sandbox` is for attempts, `isolation` for the clients and evaluators in them. `clock` is wall time for
        people and files, `seconds` measures the time worked. `check` raises ControllerLeaseLost, before each act."""
        self._home = home
        self._clock = clock
        self._note = note
        self._check = check
        self._noted_waiting = False
        self._mirror = mirror
        self._budget_clock = BudgetClock(seconds)
        self._record = StudyLog(log, study, self._budget_clock, home.files.push)
        self._slots = MachineSlots(log, home, study, sandbox)
        self._launcher = AttemptLauncher(home, self._record, sandbox, self._slots, clock, isolation, read_tracking)
        settings = self.state().settings

        def prices() -> Pricing:
            place = place_of(isolation.sandboxing.kind, settings.get(SERVERS))
            return pricing or local_pricing(home, log, int(settings["parallel"]), place, study)

        self._planning = planning or Planning(
            home, log, self._record, planner, prices, base or base_job_of(settings), draw_secret, noise_bank,
            lambda: load_findings(home, log).findings, isolation,
        )  # fmt: skip
        self._closing = closing or Closing(self._planning)
        self._folder = home.study(study)
        self._build_report = build_report

    def state(self) -> StudyState:
        return self._record.state()

    def budget_left(self, state: StudyState) -> float:
        return max(0.0, state.budget_s - self._record.active_seconds())

    def plan(self) -> StudyState:
        """Lock a design unless there is one, or the run that it waits for; raises what `tick` raises while planning."""
        while isinstance(step := self._find_next_step(state := self.state()), steps.PlanStudy):
            with suppress(HeadMoved), self._charge_time():
                self._run_step(state, step)
        return state

    def tick(self) -> StudyState:
        """Do all that can be done now; return the state then. The study can be resumed after any error. Raises
        BadTopic, DesignRefused and PlannerFailed while planning, StoreError, LogCorrupt, OSError, SandboxError."""
        while True:
            self._check()
            try:
                with self._charge_time():
                    self._watch(self.state())
                    self._record_copies()
                    while (step := self._find_next_step(state := self.state())) is not None and self._may_begin(
                        state, step
                    ):
                        self._run_step(state, step)
                        if self.state().head_hash == state.head_hash:
                            raise RuntimeError(f"a step of a study leaves an event; this one left none: {step}")
                    self._slots.yield_slot()
                    at_work = state.stopped_reason is None and state.concluded_reason is None
                    if at_work and self._budget_clock.pending_seconds() >= BEAT_S:  # nothing was appended for a while
                        self._append(EventType.STUDY_WORKED)
                break
            except HeadMoved:  # somebody else appended in between
                continue
        return self.state()

    def stop(self, reason: str, actor: str = "user") -> StudyState:
        self.halt(reason, actor)
        return self.tick()

    def halt(self, reason: str, actor: str = "system") -> None:
        """Append that the study is stopped, unless it is; its attempts are ended by the next tick."""
        self._check()
        self._record.change(lambda state: build_stop_event(state, reason), actor=actor)

    @contextmanager
    def _charge_time(self) -> Iterator[None]:
        """Charge the work on a step that leaves no event: overtaken by somebody's event, or left by a second Ctrl-C."""
        try:
            yield
        except (HeadMoved, KeyboardInterrupt):
            self._check()
            if self._budget_clock.pending_seconds() >= LEAST_CHARGED_S:
                worked = EventType.STUDY_WORKED, dict[str, Any]()
                self._record.change(lambda state: worked if state.concluded_reason is None else None)
            raise

    def _watch(self, state: StudyState) -> None:
        self._slots.poll([run.active.name for run in attempts_running(state) if run.active is not None])
        still = is_done(state) or state.paused_reason is not None or state.stopped_reason is not None
        if still or state.open_question is not None:
            idle = not any(attempts_running(state))
        else:  # other studies may have all slots
            waits = self._slots.waits or bool(self._launcher.waits_for)
            idle = waits and not any(map(self._launcher.is_started, attempts_running(state)))
        if idle:
            self._budget_clock.skip()
        if state.stopped_reason is None:
            for run in attempts_running(state):
                self._launcher.watch(state, run)

    def _record_copies(self) -> bool:
        news = False
        for copy in () if self._mirror is None else self._mirror.updates():
            payload = copy.payload()
            self._record.change(lambda state, payload=payload: (EventType.ATTEMPT_COPIED, payload))  # type: ignore[misc]
            news = True
        return news

    def _find_next_step(self, state: StudyState) -> steps.Step | None:
        return next_step(state, self.budget_left(state), int(state.settings["parallel"]))

    def _may_begin(self, state: StudyState, step: steps.Step) -> bool:
        if isinstance(step, TAKES_LONG):
            self._slots.yield_slot()
        if not isinstance(step, steps.Launch):
            self._launcher.waits_for = ""
            return True
        self._check()
        if self._launcher.take_slot(state, state.runs[step.run_id], step.attempt):
            return True
        if self._launcher.waits_for:  # an observer shows a line once
            self._note(f"this study waits for a swarm server: {self._launcher.waits_for}; it is not charged meanwhile")
        if not self._noted_waiting and (holders := self._slots.holders()):
            self._noted_waiting = True
            taken = ", ".join(f"{count} by study {study}" for study, count in holders.items())
            left = [study for study in holders if not self._slots.is_driven(study)]
            undriven = f". No controller looks after {', '.join(left)}: ajet study resume {left[0]}" if left else ""
            self._note(
                f"this study waits for a slot of the machine, taken {taken}; it goes on in its turn, and is not "
                f"charged while none of its runs goes. Sooner by: ajet study stop {next(iter(holders))}{undriven}"
            )
        return False

    def _run_step(self, state: StudyState, step: steps.Step) -> None:
        self._check()
        match step:
            case steps.PlanStudy():
                if (reason := self._planning.plan(state, lambda: self.budget_left(state))) is not None:
                    self._complete(state, steps.ConcludeStudy(reason))
            case steps.PlanRound():
                self._planning.begin_round(state, lambda: self.budget_left(state))
            case steps.AskCandidate(index, arm):
                self._append(EventType.CANDIDATE_ASKED, index=index, arm=arm.model_dump(mode="json"))
            case steps.AskApproval(question):
                self._append(
                    EventType.APPROVAL_ASKED, question=question.model_dump(mode="json"), digest=question.hash()
                )
            case steps.DecideScreen(selection):
                assert state.design is not None
                arms = select_arms(state.design, tuple(state.candidates.values()), selection)
                self._append(
                    EventType.SCREEN_DECIDED,
                    selection=selection.model_dump(mode="json"),
                    arms=[arm.model_dump(mode="json") for arm in arms],
                    hypotheses=[claim.model_dump(mode="json") for claim in claims(state.design, arms)],
                )
            case steps.SizeDesign(affordable):
                self._append(EventType.DESIGN_SIZED, **size_study(state, affordable).model_dump(mode="json"))
            case steps.PlanRun(spec):
                self._append(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
            case steps.PrepareModel(phase):
                self._prepare_model(state, phase)
            case steps.Launch(run_id, attempt):
                self._launcher.launch(state, state.runs[run_id], attempt)
            case steps.StopAttempt(run_id, code):
                self._launcher.stop(state, state.runs[run_id], code)
            case steps.Collect(run_id):
                self._launcher.collect(state, state.runs[run_id])
            case steps.Measure(run_id):
                self._launcher.measure(state.runs[run_id])
            case steps.Invalidate(run_id, code, reason):
                self._launcher.invalidate(state.runs[run_id], code, reason)
            case _:
                self._complete(state, step)

    def _complete(self, state: StudyState, step: steps.CompletionStep) -> None:
        match step:
            case steps.Judge():
                self._judge(state, step)
            case steps.DecideLength(carried):
                self._append(EventType.LENGTH_DECIDED, **decide_length(state, carried).model_dump(mode="json"))
            case steps.Decide():
                about = {} if step.hypothesis is None else {"hypothesis": step.hypothesis, "look": step.look}
                self._append(EventType.DECISION_TAKEN, rule=step.rule, action=step.action, reason=step.reason, **about)
            case steps.AskLook(decisions):
                for decision in self._closing.decide_look(state, decisions, self.budget_left(state)):
                    self._complete(state, decision)
            case steps.AskRepair(run_id):
                self._repair(state, state.runs[run_id])
            case steps.AskWords():
                self._record.append(EventType.PLANNER_SPOKE, self._ask_words(state), actor="planner")
            case steps.StopStudy(reason):
                self._append(EventType.STUDY_STOPPED, reason=reason)
            case steps.ConcludeStudy(reason):
                words, lead = self._ask_words(state), self._closing.suggest_next(state)
                self._append(EventType.STUDY_CONCLUDED, reason=reason, **words, **({"next": lead} if lead else {}))
            case steps.BuildReport():
                if self._mirror is not None:
                    self._mirror.settle()
                if self._record_copies():  # the next state is reported on
                    return
                self._launcher.prune(state)  # a controller that was killed may have left some
                report = self._build_report(state, self._folder)
                for line in report.backups:
                    self._note(line)
                self._append(EventType.REPORT_BUILT, **report.payload())

    def _judge(self, state: StudyState, step: steps.Judge) -> None:
        spoilt = tuple(find_spoilt_runs(state, self._folder, step.phase))
        for run, code, reason in spoilt:
            self._launcher.invalidate(run, code, reason)
        if not spoilt:
            error, look, phase = lock_error(state, self._folder), step.look, step.phase
            verdict = judge_hypothesis(state, step.hypothesis, look=look, phase=phase, lock_error=error)
            self._append(EventType.VERDICT_COMPUTED, **verdict.model_dump(mode="json"))

    def _repair(self, state: StudyState, crash: RunState) -> None:
        answer = self._closing.ask_repair(state, crash, self.budget_left(state))
        if isinstance(answer, str):
            return self._append(EventType.DECISION_TAKEN, rule=REPAIR_RULE, action="end", reason=answer)
        for run in (run for run in state.runs.values() if run.spec.phase == "confirm"):
            if run.active is not None:
                self._launcher.stop(state, run, CODE_REPAIRED)
            if not is_over(self.state().runs[run.run_id]):
                self._launcher.invalidate(run, CODE_REPAIRED, "code of its question was repaired: all arms begin anew")
        return self._planning.lock_repair(self.state(), crash, answer)

    def _ask_words(self, state: StudyState) -> dict[str, Any]:
        message = self._closing.write_final_message(state, self.budget_left(state))
        return {} if message is None else {"said": message.model_dump(mode="json")}

    def _prepare_model(self, state: StudyState, phase: Phase) -> None:
        jobs = {arm: Job.from_record(job) for arm, job in _jobs_by_arm(state, phase).items()}
        for job in jobs.values():  # beside the making
            self._launcher.preload(state, job)
        made: dict[str, Mapping[str, Any]] = {arm: {"sha256": None, "seconds": 0.0} for arm in jobs}
        if not state.settings.get(SERVERS):  # a server elsewhere makes its own
            made = {arm: prepare_model(job, self._home.models, self._note) for arm, job in jobs.items()}
        models = [
            {
                "arm": arm, "name": model_name(job.model.model_dump()),
                "folder": job.model.sha256 if isinstance(job.model, PathModel) else None, "sha256": made[arm]["sha256"],
            }
            for arm, job in jobs.items()
        ]  # fmt: skip
        prepared = {
            "sha256": next(iter(made.values()))["sha256"],
            "seconds": round(sum(each["seconds"] for each in made.values()), 3),
            **({"models": models} if len(jobs) > 1 else {}),
            **({} if phase == "confirm" else {"phase": phase}),
        }
        self._append(EventType.MODEL_PREPARED, **prepared)

    def _append(self, type: EventType, **payload: Any) -> None:
        self._record.append(type, payload)


def _jobs_by_arm(state: StudyState, phase: Phase) -> dict[str, Mapping[str, Any]]:
    if phase == "noise":
        assert state.noise_plan is not None
        return {NOISE_ARM: state.noise_plan.job}
    if phase == "explore":
        plan = state.explorations[-1].plan
        compared = [arm for arm in plan.arms if MODEL in arm.overrides]
        own: dict[str, Mapping[str, Any]] = {
            arm.name: {**plan.base_job, MODEL: arm.overrides[MODEL]} for arm in compared
        }
        return own or {plan.arms[0].name: plan.base_job}
    design = state.design
    assert design is not None
    base = design.base_job
    if phase == "replicate" and (setting := design.replication) is not None:
        base = {**base, **setting.overrides, "environment": setting.environment}
    others = [arm for arm in design.arms if MODEL in arm.overrides and arm.name != design.control_arm]
    return {design.control_arm: base, **{arm.name: {**base, MODEL: arm.overrides[MODEL]} for arm in others}}


class Observer(Protocol):
    """Shows a study to somebody: a terminal, Prefect, a log. It must not change it."""

    def observe(self, state: StudyState) -> None: ...

    def note(self, line: str) -> None: ...


def drive(
    loop: StudyController, observers: Sequence[Observer], interrupted: Event, poll_s: float = 0.5,
    pause_s: float = PAUSE_S, interruption: Callable[[], str | None] = lambda: INTERRUPTED,
) -> StudyState:  # fmt: skip
    """Tick until the study is done, or stop it cleanly once `interrupted` is set; return its last state. `interruption`
    then returns the reason; where it returns None, KeyboardInterrupt leaves the study as it is. Sandboxes, a database
    or a disk may fail for less than `RETRY_TIMEOUT_S`; other errors of a tick pass through."""
    trouble: float | None = None
    while True:
        try:
            if not interrupted.is_set():
                state = loop.tick()
            elif (reason := interruption()) is not None:
                state = loop.stop(reason)
            else:
                raise KeyboardInterrupt
        except ModelFailed:
            if not interrupted.is_set():
                raise
            continue
        except (SandboxError, StoreError, OSError) as error:
            if isinstance(error, OSError) and not is_full(error):
                raise
            first, trouble = trouble is None, trouble or time.monotonic()
            if interrupted.is_set() or time.monotonic() - trouble >= RETRY_TIMEOUT_S:
                raise
            names = {SandboxError: "a sandbox", FilesAway: "the shared files", OSError: "room on the disk"}
            missing = next((name for kind, name in names.items() if isinstance(error, kind)), "the event log")
            for observer in observers if first else ():
                observer.note(f"waiting for {missing}: {' '.join(str(error).split())}")
            interrupted.wait(pause_s)
            continue
        trouble = None
        for observer in observers:
            observer.observe(state)
        if is_done(state):
            return state
        interrupted.wait(poll_s)
