"""What becomes of a wish to go on with a study: a stop or pause after it stays, and so does what a terminal took back.

A wish is the time for which somebody asked; None where a worker takes up by itself what was left.
"""

from __future__ import annotations

from datetime import datetime

from studies import EventLog, EventType, StudyState, fold

_HALTS = (EventType.STUDY_STOPPED, EventType.STUDY_PAUSED)


def undoes(log: EventLog, study: str, wished: datetime | None) -> bool:
    """Return whether somebody wished to go on with a study after it was stopped or paused last."""
    halts = (each.ts for each in log.read(study) if each.type in _HALTS)
    return wished is not None and all(datetime.fromisoformat(at) <= wished for at in halts)


def taken_back(state: StudyState) -> str | None:
    """Return why a study is not a worker's to go on with; None where it is."""
    return state.stopped_reason or (None if state.served else "a terminal went on with it since")


def is_kept(state: StudyState) -> bool:
    """Return whether a study stays as it is unless somebody wishes otherwise: stopped, paused or a terminal's."""
    return state.paused_reason is not None or taken_back(state) is not None


def leads_on(log: EventLog, study: str, wished: datetime | None) -> bool:
    """Return whether a flow run with this wish will go on with a study, as it is now."""
    return undoes(log, study, wished) or not is_kept(fold(log.read(study)))
