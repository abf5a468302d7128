"""All studies of an installation, each read by itself: one whose log is corrupt is reported, and hides no other."""

from __future__ import annotations

from collections.abc import Iterator

from studies import EventLog, LogCorrupt, StudyState, fold


def every_study(log: EventLog) -> Iterator[tuple[str, StudyState | LogCorrupt]]:
    """Yield each study's name and state, or what is wrong with its log, the newest first."""
    for study in log.studies():
        try:
            yield study, fold(log.read(study))
        except LogCorrupt as error:
            yield study, error


def readable(log: EventLog) -> Iterator[StudyState]:
    """Yield the state of each study whose log can be read."""
    for _, state in every_study(log):
        if isinstance(state, StudyState):
            yield state
