"""The end of a study: verdicts, decisions, conclusion and report, each as an event.

Before a verdict the lock's file and the collected files are compared with the log: a run whose files are spoilt is
given up, and a lock that was changed makes the verdict invalid. What takes a while (a verdict, the planner's last word,
a report) is thrown away if somebody appended to the log meanwhile, such as an amendment (HeadMoved), and done again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from research.controller.planning import Planning
from research.runs.launcher import AttemptLauncher
from research.scheduler.steps import BuildReport, CompletionStep, ConcludeStudy, Decide, Judge, StopStudy
from studies import EventType, StudyLog, StudyState
from studies.checks.evidence import find_spoilt_runs
from studies.errors import ControllerLeaseLost, HeadMoved, StoreError
from studies.log.event_log import lock_error
from studies.report import Report
from studies.verdicts.judge import judge_hypothesis

log = logging.getLogger(__name__)
ReportBuilder = Callable[[StudyState, Path], Report]
"""Writes the report on a state into the study's folder."""


class Completion:
    """Carries out the steps that need no run: verdicts, decisions, the conclusion, the report."""

    def __init__(
        self,
        record: StudyLog,
        folder: Path,
        planning: Planning,
        launcher: AttemptLauncher,
        build_report: ReportBuilder,
        note: Callable[[str], None],
    ) -> None:
        self._record = record
        self._folder = folder
        self._planning = planning
        self._launcher = launcher
        self._build_report = build_report
        self._note = note

    def run_step(self, state: StudyState, step: CompletionStep, seconds_left: float) -> None:
        match step:
            case Judge():
                self._judge(state, step)
            case Decide():
                payload: dict[str, Any] = {"rule": step.rule, "action": step.action, "reason": step.reason}
                if step.hypothesis is not None:
                    payload |= {"hypothesis": step.hypothesis, "look": step.look}
                self._record.append(EventType.DECISION_TAKEN, payload)
            case StopStudy(reason):
                self._record.append(EventType.STUDY_STOPPED, {"reason": reason})
            case ConcludeStudy(reason):
                said = self._planning.write_final_message(state, seconds_left)
                quoted = {} if said is None else {"said": said.model_dump(mode="json")}
                self._record.append(
                    EventType.STUDY_CONCLUDED, {"reason": reason, **quoted, **self._suggest_next(state)}
                )
            case BuildReport():
                report = self._build_report(state, self._folder)
                for line in report.describe_backups():
                    self._note(line)
                self._record.append(EventType.REPORT_BUILT, report.payload())

    def _suggest_next(self, state: StudyState) -> dict[str, Any]:
        """Return what is worth doing next. Whatever goes wrong with it keeps no study from its end."""
        try:
            return {"next": self._planning.suggest_next(state)}
        except (StoreError, HeadMoved, ControllerLeaseLost):
            raise
        except Exception as error:
            log.exception("event=no_advice error=%r", str(error))
            return {}

    def _judge(self, state: StudyState, step: Judge) -> None:
        bad = tuple(find_spoilt_runs(state, self._folder, step.phase))
        for run, code, reason in bad:
            self._launcher.invalidate(run, code, reason)
        if bad:
            return
        error = lock_error(state, self._folder)
        verdict = judge_hypothesis(state, step.hypothesis, look=step.look, phase=step.phase, lock_error=error)
        self._record.append(EventType.VERDICT_COMPUTED, verdict.model_dump(mode="json"))
