"""Studies remember and judge: the event log, its fold, the statistics of a verdict, and the report."""

from studies.errors import LogCorrupt, ReportError, StoreError, StudiesError, UnknownStudy
from studies.events import Event, EventLog, EventType
from studies.state import AttemptState, RunState, StudyState, fold
from studies.statistics import judge

__all__ = [
    "AttemptState",
    "Event",
    "EventLog",
    "EventType",
    "LogCorrupt",
    "ReportError",
    "RunState",
    "StoreError",
    "StudiesError",
    "StudyState",
    "UnknownStudy",
    "fold",
    "judge",
]
