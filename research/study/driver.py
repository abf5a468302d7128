"""Driving a study: tick, tell the observers, wait a little, until the study is done.

The loop itself decides nothing and remembers nothing; a tick is idempotent and does all the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Protocol

from research.errors import ModelFailed
from research.installation.disk import is_full
from sandboxes import SandboxError
from studies import StoreError, StudyState

PATIENCE_S = 300.0
"""How long a machine that starts nothing, or an engine that does not answer, is waited for."""
PAUSE_S = 2.0
INTERRUPTED = "interrupted by the user"


class Ticking(Protocol):
    """A controller: `tick` moves the study on and returns its state and whether it is done."""

    def tick(self) -> TickOutcome:
        """Do all that can be done now."""
        ...

    def stop(self, reason: str) -> TickOutcome:
        """Stop the study and end what it runs."""
        ...


class TickOutcome(Protocol):
    """The result of one tick."""

    @property
    def state(self) -> StudyState:
        """The study after the tick."""
        ...

    @property
    def done(self) -> bool:
        """Whether the study is concluded or stopped, with nothing left to do."""
        ...


class Observer(Protocol):
    """Shows a study to somebody: a terminal, Prefect, a log. It must not change it."""

    def observe(self, state: StudyState) -> None:
        """Take the state after a tick."""
        ...

    def note(self, line: str) -> None:
        """Take a line on what a long step is doing."""
        ...


def drive(
    loop: Ticking,
    observers: Sequence[Observer],
    interrupted: Event,
    poll_s: float = 0.5,
    patience_s: float = PATIENCE_S,
    pause_s: float = PAUSE_S,
    interruption: Callable[[], str | None] = lambda: INTERRUPTED,
) -> StudyState:
    """Tick until the study is done, or stop it cleanly once `interrupted` is set; return its last state.

    `interruption` then returns the reason of the stop; where it returns None, KeyboardInterrupt leaves the study as it
    is.

    Errors of a tick pass through; the log then holds all that was done. Two are none: a model whose making Ctrl-C
    ended with the study's own process group, and sandboxes, a database or room on a disk that cannot be had for less
    than `patience_s` (a controller that could not renew its lease for so long that another may have it gives up
    before).
    """
    trouble: float | None = None
    while True:
        try:
            outcome = loop.stop(_reason(interruption)) if interrupted.is_set() else loop.tick()
        except ModelFailed:
            if not interrupted.is_set():
                raise
            continue
        except (SandboxError, StoreError, OSError) as error:
            if isinstance(error, OSError) and not is_full(error):
                raise
            first, trouble = trouble is None, trouble or time.monotonic()
            if interrupted.is_set() or time.monotonic() - trouble >= patience_s:
                raise
            for observer in observers if first else ():
                observer.note(f"waiting for {_awaited(error)}: {' '.join(str(error).split())}")
            interrupted.wait(pause_s)
            continue
        trouble = None
        for observer in observers:
            observer.observe(outcome.state)
        if outcome.done:
            return outcome.state
        interrupted.wait(poll_s)


def _reason(interruption: Callable[[], str | None]) -> str:
    if (reason := interruption()) is None:
        raise KeyboardInterrupt
    return reason


def _awaited(error: Exception) -> str:
    if isinstance(error, OSError):
        return "room on the disk"
    return "a sandbox" if isinstance(error, SandboxError) else "the event log"
