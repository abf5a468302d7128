"""Who may drive a study: one controller, on whichever host, with its lease in the event log's database.

Studies of one installation are driven side by side, each by a controller of its own; what they train at once is a
question of slots (`research.installation.slots`). A study's evidence and attempts lie in one installation: it is driven
from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from research.errors import StudyBusy, StudyElsewhere
from research.installation.home import Home
from research.installation.tiny_model import Note
from studies import EventLog, LeaseHeld, StudyState
from studies.log.leases import ControllerLease, ControllerLeases, Holder, kept


@contextmanager
def controlling(home: Home, log: EventLog, study: str, note: Note) -> Iterator[ControllerLease]:
    """Hold the lease of a study, which beginning or ending its attempts takes; raises StudyBusy, naming the other.

    `note` is told where a controller that may be dead has to be watched for a while.
    """
    try:
        lease = ControllerLeases(log).take(study, Holder.here(home.path), note)
    except LeaseHeld as error:
        raise StudyBusy(str(error)) from error
    with kept(lease):
        yield lease


def is_driven(home: Home, log: EventLog, study: str) -> bool:
    """Return whether a controller works on a study; one of another host, which cannot be looked at, counts as alive."""
    row = ControllerLeases(log).read(study)
    if row is None or row.given_back:
        return False
    return not (row.holder.is_beside(Holder.here(home.path)) and row.holder.is_gone())


def is_driven_beside(home: Home, log: EventLog, study: str) -> bool:
    """Return whether a controller is seen to work on a study: one of this host, since it was started last, that lives.

    What another host or an earlier boot left is none, as its lease may stand there for ever.
    """
    row, me = ControllerLeases(log).read(study), Holder.here(home.path)
    return row is not None and not row.given_back and row.holder.is_beside(me) and not row.holder.is_gone()


def require_here(home: Home, log: EventLog, state: StudyState) -> None:
    """Raise StudyElsewhere unless what a study has made lies in this installation."""
    begun = state.hypotheses or state.noise_plan is not None or state.design is not None
    if not begun or home.study(state.id).is_dir():
        return
    row = ControllerLeases(log).read(state.id)
    where = "another one" if row is None else f"{row.holder.home} on {row.holder.host}"
    raise StudyElsewhere(
        f"expected the folder of study {state.id}, with its runs and evidence, in {home.path}; it is in {where}. "
        "Go on with it there, or bring its folder here once no run of it goes on there"
    )


def require_files(home: Home, log: EventLog, study: str) -> None:
    """Raise StudyElsewhere where a study's files lie in another installation of the database, and so prove nothing."""
    if home.study(study).is_dir() or (row := ControllerLeases(log).read(study)) is None:
        return
    holder, me = row.holder, Holder.here(home.path)
    if (holder.host, holder.home) != (me.host, me.home):
        raise StudyElsewhere(
            f"expected the files of study {study} in {home.path}; they are in {holder.home} on {holder.host}. Ask "
            "there, or bring the study's folder here"
        )
