"""The state of a study for one who looks again and again: only new events are read, verified and folded.

Each look verifies the chain from the last event seen, which must still be there; what lies before it was verified when
it was read. A log that another process goes on with is followed; one that was written anew is refused.
"""

from __future__ import annotations

from studies.events import Event, EventLog
from studies.standing import StudyState
from studies.state import Folding


class Following:
    """Follows one study of a log."""

    def __init__(self, log: EventLog, study: str) -> None:
        self._log = log
        self._study = study
        self._folding = Folding()
        self._last: Event | None = None
        self._state: StudyState | None = None

    def state(self) -> StudyState:
        """Return the state as the log has it now; raises what reading and folding raise, and then begins anew."""
        try:
            events = self._log.read(self._study, self._last)
            self._folding.add(events)
        except Exception:
            self._folding, self._last, self._state = Folding(), None, None
            raise
        if events or self._state is None:
            self._last = events[-1] if events else self._last
            self._state = self._folding.state()
        return self._state
