"""The study tick: read the log, look after running attempts, and take step after step until only waiting is left.

A tick remembers nothing: it may be killed anywhere, and the next one, in this process or another, goes on from
the event log. One controller works on a study at a time (`Home.lock`); a stop may come from any process, as an
event. What comes next is decided by `research.steps`, a pure function.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from research.collect import ReadTracking
from research.home import Home
from research.machine import parallel
from research.model import Note, prepare_model
from research.observed import observed_seconds
from research.planner.protocol import Planner
from research.planning import DrawSecret, Planning
from research.pricing import Pricing, make_pricing
from research.runner import Runner
from research.sandboxing import UNISOLATED, Isolation
from research.steps import (
    BuildReport,
    Collect,
    Conclude,
    Decide,
    Invalidate,
    Judge,
    Launch,
    Measure,
    Plan,
    PlanRun,
    PrepareModel,
    Step,
    StopAttempt,
    StopStudy,
    attempts_running,
    is_done,
    next_step,
)
from sandboxes import Sandbox
from studies import EventLog, EventType, StudyState, fold, judge
from studies.events import Clock
from studies.report import Report, build_report
from swarm.job import Job

BuildsReport = Callable[[StudyState, Path], Report]
"""Writes the report on a state into the study's folder."""


def now() -> datetime:
    """Return the present moment, UTC."""
    return datetime.now(UTC)


def budget_left(state: StudyState, at: datetime | None = None) -> float:
    """Return the seconds of wall clock a study may still work (never below 0), at a moment (default: now).

    A study works from event to event; what passed before a stop or a resumption does not count, as nobody may have
    been working. A killed controller's time after its last event is therefore not counted either.
    """
    over = state.concluded_reason is not None or state.stopped_reason is not None
    since = 0.0 if over else ((at or now()) - datetime.fromisoformat(state.last_ts)).total_seconds()
    return max(0.0, float(state.settings["budget_s"]) - state.worked_s - max(0.0, since))


@dataclass(frozen=True, slots=True)
class TickResult:
    """What a tick left behind: the state, the attempts that began and ended in it, whether all is done."""

    state: StudyState
    launched: tuple[str, ...]
    ended: tuple[str, ...]
    done: bool


class StudyLoop:
    """The controller of one study. The caller holds the home's lock."""

    def __init__(
        self,
        *,
        home: Home,
        log: EventLog,
        study: str,
        planner: Planner,
        sandbox: Sandbox,
        isolation: Isolation = UNISOLATED,
        clock: Clock = now,
        pricing: Pricing | None = None,
        base: Job | None = None,
        note: Note = lambda line: None,
        read_tracking: ReadTracking | None = None,
        build_report: BuildsReport = build_report,
        draw_secret: DrawSecret = secrets.token_hex,
    ) -> None:
        """`sandbox` is for attempts, `isolation` for the clients and evaluators in them.

        `pricing` defaults to this installation's; `base` is the job under all arms, `Job()` by default.

        `note` is told what a step that takes long is doing. `read_tracking` reads the tracker's log of an attempt,
        W&B's by default; `build_report` makes the report; `draw_secret` is where seeds come from.
        """
        self._home = home
        self._log = log
        self._study = study
        self._clock = clock
        self._note = note
        self._build_report = build_report
        self._runner = Runner(home, log, study, sandbox, clock, isolation, read_tracking)
        prices = pricing or make_pricing(parallel(), observed_seconds(log))
        self._planning = Planning(home, log, study, planner, prices, base or Job(), draw_secret)

    def state(self) -> StudyState:
        """Return the study's state as its log has it now."""
        return fold(self._log.read(self._study))

    def plan(self) -> StudyState:
        """Lock a design unless there is one; raises what `tick` raises while planning."""
        state = self.state()
        while isinstance(step := self._next(state), Plan):
            self._do(state, step)
            state = self.state()
        return state

    def tick(self) -> TickResult:
        """Do all that can be done now.

        Raises BadTopic, DesignRefused and PlannerFailed while planning, StoreError and LogCorrupt of the log, OSError
        of a full disk, SandboxError of a machine that starts nothing; after any of them the study can be resumed.
        """
        before = self.state()
        for run in attempts_running(before):
            if before.stopped_reason is None:
                self._runner.watch(before, run)
        state = self.state()
        while (step := self._next(state)) is not None:
            self._do(state, step)
            head, state = state.head_hash, self.state()
            assert state.head_hash != head, f"the step {step} left no event"
        return _result(before, state)

    def stop(self, reason: str) -> TickResult:
        """Stop the study and end its attempts; `study.resumed` lets it go on."""
        state = self.state()
        if state.status not in ("stopped", "concluded"):
            self._log.append(self._study, EventType.STUDY_STOPPED, {"reason": reason}, actor="user")
        return self.tick()

    def _next(self, state: StudyState) -> Step | None:
        return next_step(state, budget_left(state, self._clock()), int(state.settings["parallel"]))

    def _do(self, state: StudyState, step: Step) -> None:
        match step:
            case Plan():
                self._planning.plan(state, lambda: budget_left(state, self._clock()))
            case Judge() | Decide() | StopStudy() | Conclude() | BuildReport():
                self._close(state, step)
            case PlanRun(spec):
                payload = {"run_id": spec.run_id, "spec": spec.model_dump(mode="json")}
                self._log.append(self._study, EventType.RUN_PLANNED, payload)
            case PrepareModel():
                self._prepare_model(state)
            case _:
                self._run(state, step)

    def _prepare_model(self, state: StudyState) -> None:
        assert state.design is not None
        job = Job.model_validate(state.design.base_job)
        self._log.append(self._study, EventType.MODEL_PREPARED, prepare_model(job, self._home.models, self._note))

    def _run(self, state: StudyState, step: Launch | StopAttempt | Collect | Measure | Invalidate) -> None:
        run = state.runs[step.run_id]
        match step:
            case Launch(_, attempt):
                self._runner.launch(state, run, attempt)
            case StopAttempt(_, code):
                self._runner.stop(run, code)
            case Collect():
                self._runner.collect(run)
            case Measure():
                self._runner.measure(run)
            case Invalidate(_, code, reason):
                self._runner.invalidate(run, code, reason)

    def _close(self, state: StudyState, step: Judge | Decide | StopStudy | Conclude | BuildReport) -> None:
        match step:
            case Judge(hypothesis):
                self._judge(state, hypothesis)
            case Decide(rule, action, reason):
                payload = {"rule": rule, "action": action, "reason": reason}
                self._log.append(self._study, EventType.DECISION_TAKEN, payload)
            case StopStudy(reason):
                self._log.append(self._study, EventType.STUDY_STOPPED, {"reason": reason})
            case Conclude():
                said = self._planning.conclusion(state, budget_left(state, self._clock()))
                reason = said or state.decisions[-1].reason
                self._log.append(self._study, EventType.STUDY_CONCLUDED, {"reason": reason})
            case BuildReport():
                self._report(state)

    def _judge(self, state: StudyState, name: str) -> None:
        design = state.design
        assert design is not None
        hypothesis = next(h for h in design.hypotheses if h.id == name)
        treatment = design.arm_with(hypothesis.variable, hypothesis.treatment).name
        verdict = judge(
            hypothesis,
            state.values(design.control_arm),
            state.values(treatment),
            alpha=design.alpha,
            test=design.test,
        )
        self._log.append(self._study, EventType.VERDICT_COMPUTED, verdict.model_dump(mode="json"))

    def _report(self, state: StudyState) -> None:
        folder = self._home.study(self._study)
        report = self._build_report(state, folder)
        payload = {
            "markdown": {"path": str(report.markdown.relative_to(folder)), "sha256": report.markdown_sha256},
            "html": {"path": str(report.html.relative_to(folder)), "sha256": report.html_sha256},
        }
        self._log.append(self._study, EventType.REPORT_BUILT, payload)


def _result(before: StudyState, after: StudyState) -> TickResult:
    def attempts(state: StudyState, *, ended: bool) -> set[str]:
        return {a.name for run in state.runs.values() for a in run.attempts if not ended or a.status is not None}

    launched = attempts(after, ended=False) - attempts(before, ended=False)
    ended = attempts(after, ended=True) - attempts(before, ended=True)
    return TickResult(after, tuple(sorted(launched)), tuple(sorted(ended)), is_done(after))
