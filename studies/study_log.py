"""One study of the event log, followed and written: read what is new, append only after what was seen.

`state` reads, verifies and folds new events only; the last one seen must still be there. `append` writes an event only
directly after the last one that this object has seen, its own included, and only if the fold takes it. So whoever
decides by a state and then writes has decided by the newest one: if anybody wrote in between, HeadMoved is raised,
nothing is written, and it is to look and decide again. What cannot follow (EventRefused) never gets into the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, overload

from studies.errors import EventRefused, HeadMoved, LogCorrupt, StoreError
from studies.events import Event, EventLog, EventType
from studies.standing import StudyState
from studies.state import WORKED, Folding

Change = tuple[EventType, Mapping[str, Any]]
_TRIES: Final = 200
"""Looks at a study that others write to all the while, before a change is given up."""


class WorkClock:
    """The seconds that a controller worked and has not charged to its study yet.

    `seconds` is a clock that only goes forward and stands while the machine sleeps.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._since = seconds()

    def uncharged(self) -> float:
        """Return the seconds worked since the last charge."""
        return max(0.0, self._seconds() - self._since)

    def charge(self, seconds: float) -> None:
        """Take note that so many of them are written down."""
        self._since += seconds

    def skip(self) -> None:
        """Forget them: nobody worked."""
        self._since = self._seconds()


class StudyLog:
    """Follows and writes one study of a log; a controller gives its `work`, which is charged with each event."""

    def __init__(self, log: EventLog, study: str, work: WorkClock | None = None) -> None:
        self.study: Final = study
        self._log = log
        self._work = work
        self._folding = Folding()
        self._last: Event | None = None
        self._state: StudyState | None = None
        self._sent: tuple[str, float] | None = None
        """Hash and seconds of an event whose writing was not answered for: it may be in the log all the same."""

    def state(self) -> StudyState:
        """Return the state as the log has it now; raises what reading and folding raise.

        A log that cannot be reached now is read on from where it was; one that is corrupt, from its beginning.
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
        """Let the work that events charge, and rest before a resumption, be charged no more."""
        if self._work is None:
            return
        if self._sent is not None and any(event.hash == self._sent[0] for event in events):
            self._work.charge(self._sent[1])
            self._sent = None
        if at_rest and any(event.type is EventType.STUDY_RESUMED for event in events):
            self._work.skip()

    def worked_s(self) -> float:
        """Return the seconds worked by all that was seen of the log, and by this controller until now."""
        return self._folding.worked_s + (0.0 if self._work is None else self._work.uncharged())

    def append(self, type: EventType, payload: Mapping[str, Any], *, actor: str = "system") -> Event:
        """Write one event after the last one seen and return it, durable.

        Raise HeadMoved when there is another one by now, EventRefused when it cannot follow, ValueError for what cannot
        be stored, StoreError of the database; nothing is written then.
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
        """Append what `decide` makes of the newest state, deciding anew as long as others write; None for nothing."""
        for _ in range(_TRIES):
            if (change := decide(self.state())) is None:
                return None
            try:
                return self.append(*change, actor=actor)
            except HeadMoved as error:
                moved = error
        raise moved
