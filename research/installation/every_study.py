"""The studies of an installation: the one that a name means, and all, of which a corrupt one hides no other."""

from __future__ import annotations

from collections.abc import Iterator

from research.errors import NoSuchStudy
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


def find_study(log: EventLog, name: str | None) -> str:
    """Return the id of the study that `name` names or begins; the newest when it is None."""
    known = log.studies()
    if not known:
        raise NoSuchStudy('there is no study yet; begin one with: ajet research "..."')
    if name is None:
        return known[0]
    fitting = [study for study in known if study == name] or [study for study in known if study.startswith(name)]
    if len(fitting) != 1:
        found = "none" if not fitting else ", ".join(fitting[:5])
        raise NoSuchStudy(f"expected one study named {name!r}, found {found}; `ajet study list` shows all")
    return fitting[0]
