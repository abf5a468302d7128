"""Driving a study: tick, tell the observers, wait a little, until the study is done.

The loop itself decides nothing and remembers nothing; a tick is idempotent and does all the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Protocol

from research.errors import ModelFailed
from studies import StudyState


class Ticking(Protocol):
    """What is driven: `tick` moves the study on and returns its state and whether it is done."""

    def tick(self) -> TickOutcome:
        """Do all that can be done now."""
        ...

    def stop(self, reason: str) -> TickOutcome:
        """Stop the study and end what it runs."""
        ...


class TickOutcome(Protocol):
    """What one tick left behind."""

    @property
    def state(self) -> StudyState:
        """The study after the tick."""
        ...

    @property
    def done(self) -> bool:
        """Whether no tick can move the study on any more."""
        ...


class Observer(Protocol):
    """Shows a study to somebody: a terminal, Prefect, a log. It must not change it."""

    def observe(self, state: StudyState) -> None:
        """Take the state after a tick."""
        ...

    def note(self, line: str) -> None:
        """Take one line on what a long step is doing now."""
        ...


def drive(loop: Ticking, observers: Sequence[Observer], interrupted: Event, poll_s: float = 0.5) -> StudyState:
    """Tick until the study is done, or stop it cleanly once `interrupted` is set; return its last state.

    Errors of a tick pass through; the log then holds all that was done. The making of a model that Ctrl-C ended
    with the study's own process group is no error.
    """
    while True:
        try:
            outcome = loop.stop("interrupted by the user") if interrupted.is_set() else loop.tick()
        except ModelFailed:
            if not interrupted.is_set():
                raise
            continue
        for observer in observers:
            observer.observe(outcome.state)
        if outcome.done:
            return outcome.state
        interrupted.wait(poll_s)
