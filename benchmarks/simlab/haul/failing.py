"""Fakes behind the controller's seams that fail as the weather has it: event log, sandbox, tracker and planner.

The log under `FailingLog` is the real one: a write that is refused is not written, one that is torn is written and not
acknowledged, and whoever is killed at a write is gone before it or right after.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from research.errors import PlannerFailed
from research.files import FULL_EXIT
from research.planners.context import PlannerContext
from research.planners.protocol import Check, Planner, PlannerTurn
from research.runs.files import AttemptSpec
from research.runs.wandb_log import TrackedRun, TrackingLate
from sandboxes import Handle, SandboxError, SandboxSpec
from simlab.flights.attempt_files import SimTracker, SimulatedFiles
from simlab.flights.clock import BEGIN
from simlab.flights.faults import Faults
from simlab.flights.sandbox import SimSandbox
from simlab.haul.clock import HaulClock
from simlab.haul.weather import Stretch, Weather
from simlab.worlds.world import Played, World
from studies import Event, EventLog, StoreError
from studies.records.runs import DISK_FULL


class Killed(BaseException):
    """Stands for kill -9: nothing of the product may catch it."""


@dataclass
class Troubles:
    """What is broken now."""

    weather: Weather
    clock: HaulClock
    draws: Random = field(init=False)

    def __post_init__(self) -> None:
        self.draws = Random(self.weather.seed)

    def now(self, kind: Stretch) -> bool:
        """Return whether something lasts now."""
        return self.weather.goes_on(kind, self.clock.seconds())


class FailingLog(EventLog):
    """The event log of one process, which may be killed at an append, be too late, or find no room."""

    def __init__(self, url: str, troubles: Troubles) -> None:
        super().__init__(url, clock=troubles.clock)
        self._troubles = troubles
        self.deadly: int | None = None
        """Appends until this process is killed at one."""
        self.before: Callable[[], None] = lambda: None
        """What somebody else does between this process's look and its append."""

    def append(self, event: Event) -> None:
        """Append; raise StoreError where there is no room, or Killed."""
        self.before()
        draws = self._troubles.draws
        dies = self.deadly == 0
        self.deadly = None if self.deadly is None else self.deadly - 1
        full = self._troubles.now("disk")
        written = draws.random() < 0.5 if dies else not full or draws.random() < 0.2
        if written:
            super().append(event)
        if dies:
            raise Killed
        if full:
            raise StoreError("could not write the event log: database or disk is full (simulated)")


class FailingSandbox(SimSandbox):
    """A sandbox on a disk that is full at times: nothing starts then, and what ends then has no room to say how."""

    def __init__(self, root: Path, world: World, troubles: Troubles, faults: Faults) -> None:
        super().__init__(root, world, troubles.clock, faults=faults, alter=self._unless_full)
        self._troubles = troubles
        self.most_at_once = 0

    def run(self, spec: SandboxSpec) -> Handle:
        """Launch an attempt, or adopt it."""
        if self.adopt(spec.name) is None and self._troubles.now("disk"):
            raise SandboxError("expected room on the disk; found none (simulated)")
        handle = super().run(spec)
        now = self.clock.seconds()
        self.most_at_once = max(self.most_at_once, sum(end > now for end in self.ends_s()))
        return handle

    def ends_s(self) -> list[float]:
        """Return when each attempt that nobody has seen end will, or did, in seconds since the begin."""
        return [(end - BEGIN).total_seconds() for end in self.running().values()]

    def _unless_full(self, order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
        if left.outcome is None or not self._troubles.now("disk"):
            return left
        said = {**left.outcome, "status": "failed", "code": DISK_FULL, "reason": "the disk was full (simulated)"}
        return replace(left, final=None, tracked=None, outcome=said, code=FULL_EXIT)


class FailingTracker:
    """Reads the simulated tracker, unless that shows nothing for a while or what is read cannot be stored."""

    def __init__(self, troubles: Troubles) -> None:
        self._read = SimTracker(lambda: troubles.clock.true)
        self._troubles = troubles

    def __call__(self, directory: Path, run_id: str) -> TrackedRun:
        """Return what a tracked run logged."""
        if self._troubles.now("disk"):
            raise OSError(errno.ENOSPC, "No space left on device (simulated)")
        if self._troubles.now("tracker"):
            raise TrackingLate(f"the simulated tracker does not answer for {run_id}")
        return self._read(directory, run_id)


class FailingPlanner:
    """A planner whose endpoint is down at times."""

    def __init__(self, planner: Planner, troubles: Troubles) -> None:
        self._planner = planner
        self._troubles = troubles
        self.name = planner.name
        self.model = planner.model

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        """Return the due action; raise PlannerFailed while nobody answers."""
        if self._troubles.now("planner"):
            raise PlannerFailed("expected an answer of the planner; found a simulated outage. Resume later")
        return self._planner.act(digest, check)
