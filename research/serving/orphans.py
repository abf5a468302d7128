"""Studies whose worker's process ended without ending them: each is handed over again, if that leads anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from research.installation.every_study import readable
from studies import EventLog, StudyState
from studies.log.leases import ControllerLeases, Holder

MOST_FRUITLESS = 5
"""Times that a study is taken up without anything happening to it, before only a person takes it up again."""


def orphans(log: EventLog, leases: ControllerLeases, me: Holder) -> Iterator[StudyState]:
    """Yield the studies of this machine that a worker drove, that are not over or stopped, and that nobody drives."""
    for state in readable(log):
        if is_the_workers(state) and _is_left(leases, state.id, me):
            yield state


def is_the_workers(state: StudyState) -> bool:
    """Return whether a worker takes this study up where nobody drives it."""
    over = state.stopped_reason is not None or state.concluded_reason is not None
    return state.served and not over and state.fruitless < MOST_FRUITLESS


def _is_left(leases: ControllerLeases, study: str, me: Holder) -> bool:
    """Return whether the study's last controller was of this installation and is gone."""
    row = leases.read(study)
    if row is None or row.holder.home != me.home:
        return False
    return row.given_back or (row.holder.is_beside(me) and row.holder.is_gone())
