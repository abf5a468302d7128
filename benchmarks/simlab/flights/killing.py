"""Controllers that are killed: real processes, ended by SIGKILL at an event of their study, before or after its write.

What a killed controller leaves behind is what a later one finds: the event log, the study's folder, the sandbox's. The
later one flies the study to its end in this process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from research.installation.home import Home
from simlab.flights.clock import SimClock
from simlab.flights.flight import Flight, FlightResult, board, resume, scratch
from studies import Event, EventLog


class DeadlyLog(EventLog):
    """An event log that kills its process at its `at`-th append (from 0), before the event is written or after it."""

    def __init__(self, url: str, clock: SimClock, at: int, *, written: bool) -> None:
        super().__init__(url, clock=clock)
        self._left = at
        self._written = written

    def append(self, event: Event) -> None:
        """Append, or die."""
        if self._left > 0:
            self._left -= 1
            super().append(event)
            return
        if self._written:
            super().append(event)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")


def fly_killed(flight: Flight, at: int, *, written: bool) -> FlightResult | None:
    """Fly with a controller killed at its `at`-th event, and another after it; None if the study has fewer events."""
    with scratch() as folder:
        home = board(flight, folder)
        if not killed(lambda: _controller(flight, home, at, written)):
            return None
        return resume(flight, home)


def killed(body: Callable[[], object]) -> bool:
    """Run `body` in a process of its own; return whether SIGKILL ended it. Whatever else went wrong is raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"expected a controller that flies or is killed; it ended with {status}")
    return False


def _controller(flight: Flight, home: Home, at: int, written: bool) -> None:
    resume(flight, home, lambda url, clock: DeadlyLog(url, clock, at, written=written))
