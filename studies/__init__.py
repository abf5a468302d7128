"""Studies remember and judge: the event log, its fold, the statistics of a verdict, and the report."""

from studies.errors import (
    EventRefused,
    ExportError,
    HeadMoved,
    LeaseHeld,
    LeaseLost,
    LogCorrupt,
    ReportError,
    StoreError,
    StudiesError,
    UnknownStudy,
)
from studies.events import Event, EventLog, EventType
from studies.state import AttemptState, RunState, StudyState, fold
from studies.statistics import judge
from studies.study_log import StudyLog, WorkClock

__all__ = [
    "AttemptState",
    "Event",
    "EventLog",
    "EventRefused",
    "EventType",
    "ExportError",
    "HeadMoved",
    "LeaseHeld",
    "LeaseLost",
    "LogCorrupt",
    "ReportError",
    "RunState",
    "StoreError",
    "StudiesError",
    "StudyLog",
    "StudyState",
    "UnknownStudy",
    "WorkClock",
    "fold",
    "judge",
]
