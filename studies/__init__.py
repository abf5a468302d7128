"""Studies remember and judge: event log, fold, statistics of verdicts, and report.

Packages of what is remembered, computed and reported from stored values. What plans, starts or watches runs is in
`research`. Finished studies that are kept as evidence lie in `gallery`.
"""

from studies.errors import ControllerLeaseLost, HeadMoved, LeaseHeld, LogCorrupt, ReportError, StoreError, StudiesError
from studies.log.entries import AttemptState, RunState
from studies.log.event import Event, EventType
from studies.log.event_log import BudgetClock, EventLog, StudyLog
from studies.log.fold import fold
from studies.log.study import StudyState
from studies.verdicts.judge import judge_hypothesis

__all__ = [
    "AttemptState", "BudgetClock", "ControllerLeaseLost", "Event", "EventLog", "EventType", "HeadMoved", "LeaseHeld",
    "LogCorrupt", "ReportError", "RunState", "StoreError", "StudiesError", "StudyLog", "StudyState", "fold",
    "judge_hypothesis",
]  # fmt: skip
