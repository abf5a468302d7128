"""One study of the event log, read and written with optimistic locking: an event is appended only to what was read.

`state` reads, verifies and folds the events that are new. `append` writes an event directly after the last one that
this object has read or written. If another process wrote in between, it raises HeadMoved and writes nothing: read the
state again and decide again. It raises EventRefused, and writes nothing, where the fold refuses the event, so that the
log holds only what can follow. `change` does both in a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, overload

from studies.log.event import Event, EventType
from studies.log.event_log import EventLog
from studies.log.fold import WORKED, Folding
from studies.log.study_state import StudyState
from studies.records.errors import EventRefused, HeadMoved, LogCorrupt, StoreError

Change = tuple[EventType, Mapping[str, Any]]
_TRIES: Final = 200
"""Looks at a study that others write to all the while, before a change is given up."""


class WorkClock:
    """The seconds that a controller has worked and not yet charged to its study's budget.

    `seconds` is a monotonic clock that does not run while the machine sleeps.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._since = seconds()

    def uncharged(self) -> float:
        """Return the seconds worked since the last charge."""
        return max(0.0, self._seconds() - self._since)

    def charge(self, seconds: float) -> None:
        """Count so many seconds as charged."""
        self._since += seconds

    def skip(self) -> None:
        """Drop the uncharged seconds: nobody worked."""
        self._since = self._seconds()


class StudyLog:
    """Reads and writes one study of a log. A controller passes its `work`, which each event charges to the budget."""

    def __init__(self, log: EventLog, study: str, work: WorkClock | None = None) -> None:
        self.study: Final = study
        self._log = log
        self._work = work
        self._folding = Folding()
        self._last: Event | None = None
        self._state: StudyState | None = None
        self._sent: tuple[str, float] | None = None
        """Hash and seconds of an event whose write failed midway: it may be in the log all the same."""

    def state(self) -> StudyState:
        """Return the study's state as of the log's last event; raise what reading and folding raise.

        After a StoreError the next call reads on from the same event; after any other error, from the first.
        """
        at_rest = self._folding.at_rest
        try:
            events = self._log.read(self.study, self._last)
            self._folding.add(events)
        except StoreError:
            raise
        except BaseException:  # Ctrl-C too: part of them may be folded
            self._folding, self._last, self._state = Folding(), None, None
            raise
        self._count(events, at_rest)
        if events or self._state is None:
            self._last = events[-1] if events else self._last
            self._state = self._folding.state()
        return self._state

    def _count(self, events: Sequence[Event], at_rest: bool) -> None:
        """Drop from the stopwatch what events have charged already, and the rest before a resumption."""
        if self._work is None:
            return
        if self._sent is not None and any(event.hash == self._sent[0] for event in events):
            self._work.charge(self._sent[1])
            self._sent = None
        if at_rest and any(event.type is EventType.STUDY_RESUMED for event in events):
            self._work.skip()

    def worked_s(self) -> float:
        """Return the seconds worked in all events read so far, and by this controller since."""
        return self._folding.worked_s + (0.0 if self._work is None else self._work.uncharged())

    def append(self, type: EventType, payload: Mapping[str, Any], *, actor: str = "system") -> Event:
        """Write one event after the last one read, durably, and return it.

        Raise HeadMoved when there is a newer one, EventRefused when it cannot follow, ValueError for what cannot be
        stored, StoreError of the database; nothing is written then.
        """
        worked = None if self._work is None else round(self._work.uncharged(), 3)
        charged = payload if worked is None else {**payload, WORKED: worked}
        event = self._log.compose(self.study, type, charged, after=self._last, actor=actor)
        folding = self._folding.copy()
        try:
            folding.add([event])
        except LogCorrupt as error:
            raise EventRefused(self.study, error.type, error.difference) from error
        self._sent = (event.hash, worked or 0.0)
        self._log.append(event)
        self._sent = None
        if self._work is not None and worked is not None:
            self._work.charge(worked)
        self._folding, self._last, self._state = folding, event, None
        return event

    @overload
    def change(self, decide: Callable[[StudyState], Change], *, actor: str = "system") -> Event: ...
    @overload
    def change(self, decide: Callable[[StudyState], Change | None], *, actor: str = "system") -> Event | None: ...
    def change(self, decide: Callable[[StudyState], Change | None], *, actor: str = "system") -> Event | None:
        """Append what `decide` returns for the newest state, asking again while others write; None appends nothing."""
        for _ in range(_TRIES):
            if (change := decide(self.state())) is None:
                return None
            try:
                return self.append(*change, actor=actor)
            except HeadMoved as error:
                moved = error
        raise moved
