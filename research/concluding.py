"""The end of a study, step by step: verdicts, decisions, the conclusion and the report, each as an event.

Before a verdict the lock's file and the collected files are compared with the log: a run whose files are spoilt is
given up, and a lock that was changed makes the verdict invalid. What takes a while (a verdict, the planner's last word,
a report) is thrown away if somebody appended to the log meanwhile, such as an amendment (HeadMoved), and done again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from research.evidence import spoilt
from research.runner import Runner
from research.steps import BuildReport, ClosingStep, Conclude, Decide, Judge, StopStudy
from studies import EventType, StudyLog, StudyState
from studies.judging import judge_hypothesis
from studies.lock import lock_error
from studies.report import Report
from studies.said import Said

BuildsReport = Callable[[StudyState, Path], Report]
"""Writes the report on a state into the study's folder."""


class Plans(Protocol):
    """What a study's planner is asked through: `research.planning` is the one."""

    def plan(self, state: StudyState, seconds_left: Callable[[], float]) -> None:
        """Lock the design, or the A/A runs that it waits for."""
        ...

    def conclusion(self, state: StudyState, seconds_left: float) -> Said | None:
        """Return the planner's last words; None when it has none."""
        ...


class Concluding:
    """Carries out what needs no run any more."""

    def __init__(
        self,
        record: StudyLog,
        folder: Path,
        planning: Plans,
        runner: Runner,
        build_report: BuildsReport,
        note: Callable[[str], None],
    ) -> None:
        self._record = record
        self._folder = folder
        self._planning = planning
        self._runner = runner
        self._build_report = build_report
        self._note = note

    def do(self, state: StudyState, step: ClosingStep, seconds_left: float) -> None:
        """Carry out one step; it leaves an event."""
        match step:
            case Judge():
                self._judge(state, step)
            case Decide():
                self._decide(state, step)
            case StopStudy(reason):
                self._record.append(EventType.STUDY_STOPPED, {"reason": reason})
            case Conclude(reason):
                said = self._planning.conclusion(state, seconds_left)
                quoted = {} if said is None else {"said": said.model_dump(mode="json")}
                self._record.append(EventType.STUDY_CONCLUDED, {"reason": reason, **quoted})
            case BuildReport():
                self._report(state)

    def _judge(self, state: StudyState, step: Judge) -> None:
        bad = tuple(spoilt(state, self._folder, step.phase))
        for run, code, reason in bad:
            self._runner.invalidate(run, code, reason)
        if bad:
            return
        error = lock_error(state, self._folder)
        verdict = judge_hypothesis(state, step.hypothesis, look=step.look, phase=step.phase, lock_error=error)
        self._record.append(EventType.VERDICT_COMPUTED, verdict.model_dump(mode="json"))

    def _decide(self, state: StudyState, step: Decide) -> None:
        payload: dict[str, Any] = {"rule": step.rule, "action": step.action, "reason": step.reason}
        if step.hypothesis is not None:
            payload |= {"hypothesis": step.hypothesis, "look": step.look}
        self._record.append(EventType.DECISION_TAKEN, payload)

    def _report(self, state: StudyState) -> None:
        report = self._build_report(state, self._folder)
        for line in report.said():
            self._note(line)
        self._record.append(EventType.REPORT_BUILT, report.payload(self._folder))
