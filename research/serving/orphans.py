"""Studies whose worker's process ended without ending them: each is handed over again, if that leads anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from studies import EventLog, LogCorrupt, StudyState, fold
from studies.log.leases import ControllerLeases, Holder

MOST_FRUITLESS = 5
"""Times that a study is taken up without anything happening to it, before only a person takes it up again."""


class Orphans:
    """Looks for them, again and again: a study is read where something was appended since the last look."""

    def __init__(self, log: EventLog, me: Holder) -> None:
        self._log = log
        self._leases = ControllerLeases(log)
        self._me = me
        self._known: dict[str, tuple[str, StudyState | None]] = {}

    def found(self) -> Iterator[StudyState]:
        """Yield the studies of this installation that a worker drove, that are not over or stopped, and nobody drives.

        One whose log is corrupt is none: nobody could drive it.
        """
        heads = self._log.heads()
        self._known = {study: self._read(study, head) for study, head in heads.items()}
        for _, state in self._known.values():
            if state is not None and self._is_left(state.id):
                yield state

    def _read(self, study: str, head: str) -> tuple[str, StudyState | None]:
        if (known := self._known.get(study)) is not None and known[0] == head:
            return known
        try:
            state = fold(self._log.read(study))
        except LogCorrupt:
            return head, None
        return head, state if is_the_workers(state) else None

    def _is_left(self, study: str) -> bool:
        """Return whether the study's last controller was of this installation and is gone."""
        row = self._leases.read(study)
        if row is None or row.holder.home != self._me.home:
            return False
        return row.given_back or (row.holder.is_beside(self._me) and row.holder.is_gone())


def is_the_workers(state: StudyState) -> bool:
    """Return whether a worker takes this study up where nobody drives it."""
    over = state.stopped_reason is not None or state.concluded_reason is not None
    return state.served and not over and state.fruitless < MOST_FRUITLESS
