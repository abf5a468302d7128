"""One controller of a voyage, with the shipped loop and lease: it waits for the lease, resumes, works, and ends.

What ends a real controller ends this one (`research.controller.session`, `controller`): a kill, a lost lease, a
planner that fails, which stops the study, and a disk or sandbox that cannot be had for longer than it is waited for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from research.controller.controller import RETRY_TIMEOUT_S, StudyController, TickResult
from research.errors import BadTopic, DesignRefused, PlannerFailed
from research.files import is_full
from sandboxes import SandboxError
from simlab.haul.clock import HaulClock
from simlab.haul.failing import FailingLog, Killed
from studies import ControllerLeaseLost, EventType, LeaseHeld, StoreError, StudyLog, StudyState
from studies.log.fold import WORKED
from studies.log.locks import ControllerLease, ControllerLeases, Holder, TakeoverAttempt

MakeController = Callable[[FailingLog, Callable[[], None]], StudyController]
"""Makes a controller that writes to a log and asks before anything it does whether it may."""


def elsewhere(number: int) -> Holder:
    """Return a process on a host of its own, of which no other can see whether it lives: only whether it renews."""
    return Holder(f"simulated-{number}", "simulated", os.getpid(), float(number), "simulated")


class Helm:
    """A controller; `over` says how it ended, None while it lives."""

    def __init__(self, number: int, study: str, log: FailingLog, clock: HaulClock, make: MakeController) -> None:
        self.over: str | None = None
        self.stalled = False
        """Whether its process is stopped: it lives, and does nothing."""
        self.log = log
        self._study = study
        self._clock = clock
        self._make = make
        self._challenge = TakeoverAttempt(ControllerLeases(log, clock=clock.steady), study, elsewhere(number))
        self._lease: ControllerLease | None = None
        self._controller: StudyController | None = None
        self._trouble: float | None = None
        """Since when it waits for a disk or a sandbox, in seconds of the stopwatch."""

    @property
    def at_work(self) -> bool:
        """Whether it drives the study, as far as it knows."""
        return self.over is None and self._controller is not None

    @property
    def in_trouble(self) -> bool:
        """Whether it waits for something that will soon be tried again: a lease, a disk, a sandbox."""
        return self.over is None and not self.stalled and (self._controller is None or self._trouble is not None)

    def step(self) -> TickResult | None:
        """Do what its process does now: take the lease, renew it, tick; None where that came to nothing."""
        if self.over is not None or self.stalled:
            return None
        try:
            if self._controller is None:
                self._begin()
            elif self._lease is not None:
                self._renew(self._lease)
            return self._tick() if self._controller is not None else None
        except Killed:
            self.over = "killed"
        except (ControllerLeaseLost, LeaseHeld) as error:
            self._leave(type(error).__name__)
        except (SandboxError, StoreError, OSError) as error:
            self._wait(error)
        return None

    def budget_left_s(self, state: StudyState) -> float:
        """Return the seconds that the study may still work, as far as this controller knows."""
        return float("inf") if self._controller is None else self._controller.budget_left(state)

    def take_the_helm(self) -> None:
        """Drive the study without a lease, beside whoever has it."""
        self._controller = self._make(self.log, lambda: None)

    def leave(self) -> None:
        """End as a controller does whose study is done, or that was told to."""
        self._leave("left")

    def kill(self) -> None:
        """End at once, and give nothing back."""
        self.over = self.over or "killed"

    def _begin(self) -> None:
        self._lease = self._challenge.attempt()
        if self._lease is None:
            return
        said = {"command": ["simlab", "resume"], WORKED: 0.0}
        StudyLog(self.log, self._study).change(lambda state: (EventType.STUDY_RESUMED, said), actor="user")
        self._controller = self._make(self.log, self._lease.check)

    def _renew(self, lease: ControllerLease) -> None:
        """Renew the lease, as its thread does; that it was lost is for the tick's own check to find."""
        with suppress(ControllerLeaseLost):
            lease.renew()

    def _tick(self) -> TickResult | None:
        assert self._controller is not None
        try:
            result = self._controller.tick()
        except (BadTopic, DesignRefused, PlannerFailed) as error:
            self._controller.halt(error.message)
            self._leave(type(error).__name__)
            return None
        self._trouble = None
        return result

    def _wait(self, error: Exception) -> None:
        """Wait for what is missing, as the driver does, and end where that takes too long."""
        if isinstance(error, OSError) and not is_full(error):
            raise error
        now = self._clock.seconds()
        self._trouble = now if self._trouble is None else self._trouble
        if self._controller is None or now - self._trouble >= RETRY_TIMEOUT_S:
            self._leave(type(error).__name__)

    def _leave(self, why: str) -> None:
        self.over = self.over or why
        if self._lease is not None:
            self._lease.give_back()
