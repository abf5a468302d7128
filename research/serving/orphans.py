"""Studies whose worker's process ended without ending them: each is handed over again, if that leads anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from research.installation.home import Home
from research.scheduling.next_step import is_done
from studies import EventLog, LogCorrupt, StudyLog, StudyState
from studies.log.leases import ControllerLeases, Holder, LeaseWatch, SteadyClock, steady

MOST_FRUITLESS = 5
"""Times that a study is taken up without anything happening to it, before only a person takes it up again."""


class Orphans:
    """Looks for them, again and again: a study is read where something was appended since the last look."""

    def __init__(self, log: EventLog, home: Home, me: Holder, clock: SteadyClock = steady) -> None:
        self._log = log
        self._home = home
        self._leases = ControllerLeases(log, clock=clock)
        self._watch = LeaseWatch(self._leases, me)
        self._me = me
        self._known: dict[str, tuple[str, StudyState | None]] = {}
        self._records: dict[str, StudyLog] = {}
        """Logs of the worker's studies, of which only what is new is read."""

    def found(self) -> Iterator[StudyState]:
        """Yield the studies of this installation that are a worker's, not over or stopped, and that nobody drives.

        A flow run of one may wait at Prefect's server, which is not known here. One whose log is corrupt is none:
        nobody could drive it.
        """
        heads = self._log.heads()
        self._known = {study: self._read(study, head) for study, head in heads.items()}
        for _, state in self._known.values():
            if state is not None and self._is_left(state.id):
                yield state

    def _read(self, study: str, head: str) -> tuple[str, StudyState | None]:
        if (known := self._known.get(study)) is not None and known[0] == head:
            return known
        record = self._records.pop(study, None) or StudyLog(self._log, study)
        try:
            state = record.state()
        except LogCorrupt:
            return head, None
        if not is_the_workers(state):
            return head, None
        self._records[study] = record
        return head, state

    def _is_left(self, study: str) -> bool:
        """Return whether the study lies here, and its last controller was of here and is gone, or there was none yet.

        Installations may share a log: where a study lies is where its folder is, which is made before it is created.
        """
        if not self._home.study(study).is_dir():
            return False
        row = self._leases.read(study)
        if row is None:  # handed over, and begun by nobody
            return True
        if Path(row.holder.home).resolve() != self._home.path.resolve():
            return False
        return self._watch.is_gone(study)  # of a host that was started anew: once its lease stood still long enough


def is_the_workers(state: StudyState) -> bool:
    """Return whether a worker takes this study up where nobody drives it: one that lacks its report is not over."""
    over = state.stopped_reason is not None or is_done(state)
    return state.served and not over and state.fruitless < MOST_FRUITLESS
