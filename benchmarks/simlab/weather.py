"""What goes wrong around a study in many days, and the fakes that fail so.

What goes wrong around a study in many days, by a plan: every kind at least once, when and how long at random.

Moments are seconds for which the machine was awake. A plan knows nothing of the study; that is what it is for.

Stands for a flow run's page: a state that people click on and the study's view sets; its server may forget.

What follows from a click is decided by the shipped rule (`research.orchestration.prefect_api`) and carried out by the
shipped requests, as the view does it; the page and its server are fake, and whoever clicks is a plan.

Fakes behind the controller's seams that fail as the weather has it: event log, sandbox, tracker and planner.

The log under `FailingLog` is the real one: a write that is refused is not written, one that is torn is written and not
acknowledged, and whoever is killed at a write is gone before it or right after.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, get_args

from research.controller.controller import build_stop_event
from research.controller.interventions import request_continue, request_pause
from research.errors import PlannerFailed
from research.files import FULL_EXIT
from research.orchestration.prefect_api import Activity, UserAction, activity, reconcile
from research.planners.context import PlannerContext
from research.planners.protocol import Check, Planner, PlannerTurn
from research.runs.files import AttemptSpec
from research.runs.wandb_log import TrackedRun, TrackingLate
from sandboxes import Handle, SandboxError, SandboxSpec
from simlab.sim_clock import BEGIN, HaulClock
from simlab.sim_sandbox import NO_FAULTS, Fault, Faults, Rates, SimSandbox, SimTracker, SimulatedFiles
from simlab.worlds import Played, World
from studies import Event, EventLog, StoreError, StudyLog, StudyState
from studies.log.event_log import Change
from studies.records.runs import DISK_FULL

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
Stretch = Literal["planner", "disk", "tracker", "page", "rival", "stall", "paused"]
"""What lasts: the planner's endpoint is down, the disk is full, the tracker shows no log, the page's server is down; a
second controller works beside the first, the first one is stopped and goes on later, somebody pauses on the page."""
Blow = Literal["kill", "torn", "forget", "cancel", "jump", "sleep"]
"""What happens at once: all controllers are killed, between two ticks or (`torn`) at an append; the page's server loses
its database; somebody cancels on the page; the wall clock is set; the machine sleeps."""


class _Habit(NamedTuple):
    """How often something happens in ten days, and how long it lasts or how far it goes, in hours."""

    times: int
    least: float
    most: float


_STRETCHES: Mapping[Stretch, _Habit] = {
    "planner": _Habit(2, 24.0, 24.0),
    "disk": _Habit(4, 0.02, 3.0),
    "tracker": _Habit(6, 0.02, 0.13),
    "page": _Habit(6, 0.05, 5.0),
    "rival": _Habit(4, 0.5, 8.0),
    "stall": _Habit(3, 0.5, 6.0),
    "paused": _Habit(3, 0.5, 6.0),
}
_BLOWS: Mapping[Blow, _Habit] = {
    "kill": _Habit(5, 0.0, 0.0),
    "torn": _Habit(10, 0.0, 0.0),
    "forget": _Habit(3, 0.0, 0.0),
    "cancel": _Habit(2, 0.0, 0.0),
    "jump": _Habit(6, -30.0, 30.0),
    "sleep": _Habit(5, 0.3, 14.0),
}


@dataclass(frozen=True, slots=True)
class Shock:
    """Something that happens at once; `size_s` is how long a sleep is, and how far the wall clock is set."""

    kind: Blow
    at_s: float
    size_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Spell:
    """Something that lasts."""

    kind: Stretch
    at_s: float
    until_s: float


_OFTEN = Rates(crash=0.06, hang=0.02, out_of_memory=0.03, lost=0.06, garbled=0.04, lag=0.06)


class FirstTriesFail(Faults):
    """A plan in which only a run's first attempts end badly: so that every run has its value in the end."""

    def of(self, order: AttemptSpec) -> Fault:
        """Return what happens to an attempt."""
        return super().of(order) if order.attempt == 1 else "none"


@dataclass(frozen=True, slots=True)
class Weather:
    """All that goes wrong; `calm` for nothing."""

    seed: int = 0
    spells: tuple[Spell, ...] = ()
    blows: tuple[Shock, ...] = ()
    """In the order of their moments."""
    faults: Faults = NO_FAULTS
    """What goes wrong within attempts."""

    @classmethod
    def of(cls, seed: int, days: float) -> Weather:
        """Return a plan for so many days; its first planner's outage meets the planning."""
        draws = Random(seed)
        spells = [
            cls._spell(kind, habit, draws, days) for kind, habit in _STRETCHES.items() for _ in range(habit.times)
        ]
        first = Spell("planner", 0.0, draws.uniform(1.0, 24.0) * HOUR_S)
        blows = [
            Shock(kind, draws.uniform(0.0, days * DAY_S), draws.uniform(habit.least, habit.most) * HOUR_S)
            for kind, habit in _BLOWS.items()
            for _ in range(habit.times)
        ]
        return cls(
            seed, (first, *spells), tuple(sorted(blows, key=lambda blow: blow.at_s)), FirstTriesFail(_OFTEN, seed)
        )

    @staticmethod
    def _spell(kind: Stretch, habit: _Habit, draws: Random, days: float) -> Spell:
        begin = draws.uniform(0.0, days * DAY_S)
        return Spell(kind, begin, begin + draws.uniform(habit.least, habit.most) * HOUR_S)

    def goes_on(self, kind: Stretch, at_s: float) -> bool:
        """Return whether something lasts at a moment."""
        return any(spell.kind == kind for spell in self.spells_at(at_s))

    def spells_at(self, at_s: float) -> list[Spell]:
        """Return what lasts at a moment."""
        return [spell for spell in self.spells if spell.at_s <= at_s < spell.until_s]

    def moments(self) -> Iterator[float]:
        """Yield every moment at which something begins, ends or happens."""
        for spell in self.spells:
            yield from (spell.at_s, spell.until_s)
        yield from (blow.at_s for blow in self.blows)


CALM = Weather()
KINDS: tuple[str, ...] = (*get_args(Stretch), *get_args(Blow))


CANCELLED = "cancelled in the simulated UI"


class FakePage:
    """One page and the view that looks at it."""

    def __init__(self, log: EventLog, study: str) -> None:
        self._log = log
        self._record = StudyLog(log, study)
        self.clicks = 0
        """How many clicks became an event of the log."""
        self.forget()

    def forget(self) -> None:
        """Begin anew, as after the loss of the server's database: a new flow run says that the study runs."""
        self._shows: Activity | UserAction = Activity.RUNNING
        self._agreed = Activity.RUNNING

    def click(self, action: UserAction) -> None:
        """Let somebody click; nobody can while the server is down."""
        self._shows = {UserAction.PAUSE: Activity.PAUSED, UserAction.CONTINUE: Activity.RUNNING}.get(action, action)

    def refresh(self) -> None:
        """Carry out what was clicked since the last look, and show the study as it is."""
        state = self._record.state()
        both = reconcile(self._agreed, self._action(), activity(state))
        if both.ask is not None:
            self.clicks += self._asked(both.ask)
        self._shows = self._agreed = both.activity

    def _action(self) -> UserAction | None:
        if isinstance(self._shows, UserAction):
            return self._shows
        return UserAction.PAUSE if self._shows is Activity.PAUSED else UserAction.CONTINUE

    def _asked(self, action: UserAction) -> bool:
        if action is UserAction.PAUSE:
            return request_pause(self._log, self._record.study, "paused in the simulated UI")
        if action is UserAction.CONTINUE:
            return request_continue(self._log, self._record.study)
        return self._record.change(_cancelling, actor="user") is not None


def _cancelling(state: StudyState) -> Change | None:
    return build_stop_event(state, CANCELLED)


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
