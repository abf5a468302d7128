"""Studies of many simulated days in any weather.

One controller of a voyage, with the shipped loop and lease: it waits for the lease, resumes, works, and ends.

What ends a real controller ends this one (`research.controller.session`, `controller`): a kill, a lost lease, a
planner that fails, which stops the study, and a disk or sandbox that cannot be had for longer than it is waited for.

A study of many simulated days in any weather, by the shipped controller, event log, collection, judge and report.

Whoever is killed or lost is followed by another controller within the hour, as by somebody who looks after the study,
or a service that does. Several may be there at once: one that wants the lease, one that lost it and does not know yet,
one that works without. Simulated are the machine (sandbox, tracker, clocks), the planner's outages, Prefect's page and
people; `simlab.weather` is the plan of what they do.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from research.controller.controller import RETRY_TIMEOUT_S, StudyController, TickResult
from research.errors import BadTopic, DesignRefused, PlannerFailed
from research.files import is_full
from research.installation.home import Home
from research.orchestration.prefect_api import UserAction
from sandboxes import SandboxError
from simlab.sim_clock import HaulClock
from simlab.sim_run import POLL_S, Flight, board, make_controller
from simlab.weather import (
    CALM,
    DAY_S,
    HOUR_S,
    Blow,
    FailingLog,
    FailingPlanner,
    FailingSandbox,
    FailingTracker,
    FakePage,
    Killed,
    Stretch,
    Troubles,
    Weather,
)
from simlab.worlds import Hill, MainEffect, Planted, Scalar
from studies import ControllerLeaseLost, Event, EventLog, EventType, LeaseHeld, StoreError, StudyLog, StudyState
from studies.log.event import row_of
from studies.log.fold import WORKED
from studies.log.locks import ControllerLease, ControllerLeases, Holder, TakeoverAttempt
from studies.proof import Discrepancy, verify

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


KEEPER_S = HOUR_S
"""How long nobody drives the study until somebody takes it up again."""
SOON_S = 30.0
"""Between two looks while something is about to change."""
_ALARM_S = 40.0
"""So long before it is killed a controller looked for the last time: it beats once a minute."""
_APPENDS = 6
"""Within so many appends a controller dies that is to die at one."""
_BETWEEN = 0.2
"""How often the second of two controllers is faster between the first one's look and its append."""
MOST_HELMS = 200
"""More than any weather needs: a study that is refused is taken up again for ever."""
OneLog = TypeVar("OneLog", bound=EventLog)
Told = Callable[[StudyState], None]
"""Is told the state after each step."""


@dataclass(frozen=True)
class Voyage:
    """What came of a study."""

    state: StudyState
    events: tuple[Event, ...]
    drifts: tuple[Discrepancy, ...] | None
    """Where the study is not what its log says; None where no report was built, which is most of such a proof."""
    starts: Counter[str]
    """How often each attempt was started."""
    orphans: tuple[str, ...]
    """Attempts that still run."""
    most_at_once: int
    attended_s: float
    """Seconds for which controllers were there, each counted by itself."""
    ends: Counter[str]
    """How controllers ended."""
    clicks: int
    """Clicks on the page that were carried out."""
    days: float
    """Days by the steady clock, sleeps included."""


def sail(
    flight: Flight, folder: Path, weather: Weather = CALM, told: Told = lambda state: None, look_s: float = HOUR_S
) -> Voyage:
    """Sail to the study's conclusion; raise AssertionError where it does not come to one.

    Controllers look every `look_s` at least; a real one looks twice a second.
    """
    with ExitStack() as stack:
        return _Sailing(flight, board(flight, folder), weather, stack, look_s).sail(told)


class _Sailing:
    def __init__(self, flight: Flight, home: Home, weather: Weather, stack: ExitStack, look_s: float) -> None:
        self._flight, self._home, self._weather, self._stack = flight, home, weather, stack
        self._look_s = look_s
        self._clock = HaulClock()
        self._troubles = Troubles(weather, self._clock)
        self._sandbox = FailingSandbox(home.sandboxes / flight.name, flight.world, self._troubles, weather.faults)
        self._draws = Random(weather.seed + 1)
        self._ashore = self._closed_later(EventLog(home.database, clock=self._clock))
        self._record = StudyLog(self._ashore, flight.name)
        self._page = FakePage(self._ashore, flight.name)
        self._wishes: list[UserAction] = []
        """What people want to click as soon as the page is there."""
        self._blows = list(weather.blows)
        self._going_on: set[Stretch] = set()
        self._helms: list[Helm] = []
        self._rival: Helm | None = None
        self._again_s = 0.0
        self._attended_s = 0.0

    def sail(self, told: Told) -> Voyage:
        """Step after step until the study is concluded and reported."""
        while len(self._helms) < MOST_HELMS:
            self._weather_changes()
            self._keep()
            results = [helm.step() for helm in self._crew()]
            self._look_at_the_page()
            self._dismiss(results)
            told(state := self._record.state())
            if state.concluded_reason is not None and state.report is not None:
                return self._landed(state)
            self._pass(state)
        raise AssertionError(f"{self._flight.name}: not concluded: {self._record.state().status}, {self._ends()}")

    def _closed_later(self, log: OneLog) -> OneLog:
        self._stack.callback(log.close)
        return log

    def _crew(self) -> list[Helm]:
        """Return whoever lives, the rival last."""
        return [helm for helm in (*self._helms, self._rival) if helm is not None and helm.over is None]

    def _hired(self) -> Helm:
        log = self._closed_later(FailingLog(self._home.database, self._troubles))
        number = len(self._helms) + 1
        return Helm(number, self._flight.name, log, self._clock, self._controller)

    def _controller(self, log: FailingLog, check: Callable[[], None]) -> StudyController:
        return make_controller(
            self._flight, self._home, log, self._sandbox,
            planner=FailingPlanner(self._flight.planner(self._clock), self._troubles),
            read_tracking=FailingTracker(self._troubles),
            check=check,
        )  # fmt: skip

    def _keep(self) -> None:
        """Let somebody take the study up again that nobody has driven for an hour."""
        now = self._clock.seconds()
        if any(helm.over is None and not helm.stalled for helm in self._helms):
            self._again_s = now + KEEPER_S
        elif now >= self._again_s:
            self._helms.append(helm := self._hired())
            helm.log.before = self._let_the_rival_go_first

    def _let_the_rival_go_first(self) -> None:
        if self._rival is not None and self._draws.random() < _BETWEEN:
            self._rival.step()

    def _dismiss(self, results: list[TickResult | None]) -> None:
        """Whoever drives a study that is done sees it and leaves."""
        if any(result is not None and result.done for result in results):
            for helm in self._crew():
                if helm.at_work and not helm.stalled:
                    helm.leave()

    def _weather_changes(self) -> None:
        now = self._clock.seconds()
        while self._blows and self._blows[0].at_s <= now:
            blow = self._blows.pop(0)
            self._strike(blow.kind, blow.size_s)
        before, self._going_on = self._going_on, {spell.kind for spell in self._weather.spells_at(now)}
        for kind in before ^ self._going_on:
            self._turn(kind, begins=kind in self._going_on)

    def _strike(self, kind: Blow, size_s: float) -> None:
        match kind:
            case "kill":
                for helm in self._crew():
                    helm.kill()
            case "torn":
                for helm in self._crew():
                    helm.log.deadly = self._draws.randrange(_APPENDS)
            case "forget":
                self._page.forget()
            case "cancel":
                self._wishes.append(UserAction.STOP)
            case "jump":
                self._clock.set(size_s)
            case "sleep":
                self._clock.sleep(size_s)

    def _turn(self, kind: Stretch, *, begins: bool) -> None:
        match kind:
            case "rival" if begins:
                self._rival = self._hired()
                self._rival.take_the_helm()
            case "rival" if self._rival is not None:
                self._rival.kill()
            case "stall":
                for helm in self._helms:
                    helm.stalled = begins and helm.at_work
            case "paused":
                self._wishes.append(UserAction.PAUSE if begins else UserAction.CONTINUE)

    def _look_at_the_page(self) -> None:
        """Click what was to be clicked, and let the view look, unless Prefect's server is down."""
        if self._troubles.now("page"):
            return
        while self._wishes:
            self._page.click(self._wishes.pop(0))
            self._page.refresh()
        self._page.refresh()

    def _pass(self, state: StudyState) -> None:
        """Let time pass until something happens."""
        now = self._clock.seconds()
        left = [helm.budget_left_s(state) for helm in self._crew()]
        seconds = max(POLL_S, min([min(self._marks(now)) - now, *left]))
        rests = state.paused_reason is not None and not any(run.active for run in state.runs.values())
        here = sum(helm.at_work and not helm.stalled for helm in self._crew())
        self._attended_s += 0.0 if rests else seconds * here
        self._clock.advance(seconds)

    def _marks(self, now: float) -> Iterator[float]:
        """Yield the moments at which somebody has to look."""
        soon = self._troubles.now("tracker") or any(helm.in_trouble for helm in self._crew())
        yield now + (SOON_S if soon else self._look_s)
        for moment in self._weather.moments():
            yield from (mark for mark in (moment - _ALARM_S, moment) if mark > now)
        yield from (end for end in self._sandbox.ends_s() if end > now)
        if self._again_s > now:
            yield self._again_s

    def _ends(self) -> Counter[str]:
        return Counter(helm.over or "alive" for helm in self._helms)

    def _drifts(self, events: Sequence[Event]) -> tuple[Discrepancy, ...]:
        rows = [row_of(event) for event in events]
        return verify(self._flight.name, rows, self._home.study(self._flight.name)).drifts

    def _landed(self, state: StudyState) -> Voyage:
        events = self._ashore.read(self._flight.name)
        return Voyage(
            state=state,
            events=tuple(events),
            drifts=self._drifts(events) if self._flight.report else None,
            starts=self._sandbox.starts(),
            orphans=tuple(self._sandbox.running()),
            most_at_once=self._sandbox.most_at_once,
            attended_s=self._attended_s,
            ends=self._ends(),
            clicks=self._page.clicks,
            days=self._clock.steady() / DAY_S,
        )


DAYS = 10.0
"""About what the study takes at peace, on two places at once."""
BUDGET_DAYS = 30.0
TOPIC = (
    "What are the three best values of learning rate, group size, number of epochs and temperature on the guessing "
    "game? Replicate it on arith."
)
"""Asks for every stage: A/A runs, a screen, a confirmation in looks, and a replication."""
ASKS: Mapping[str, Any] = {"effect": 0.04, "power": 0.8, "looks": 2, "episodes": 512}
KNOBS: Mapping[str, tuple[Scalar, ...]] = {
    "learning_rate": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "group_size": (4, 8, 16, 32),
    "epochs": (1, 2, 4),
    "temperature": (0.7, 1.0, 1.3),
}
BASE: Mapping[str, Scalar] = {"learning_rate": 1e-3, "group_size": 8, "epochs": 1, "temperature": 1.0}
EFFECTS = (Hill("learning_rate", 3e-3, 0.02), MainEffect("epochs", {2: 0.04, 4: 0.05}))
_STEPS, _STEP_S = 8, 1380.0
_HANDLES: Mapping[EventType, tuple[str, ...]] = {
    EventType.STUDY_CREATED: (),
    EventType.NOISE_PLANNED: (),
    EventType.DESIGN_LOCKED: (),
    EventType.SCREEN_DECIDED: (),
    EventType.STUDY_CONCLUDED: (),
    EventType.HYPOTHESIS_PROPOSED: ("id",),
    EventType.RUN_PLANNED: ("run_id",),
    EventType.ATTEMPT_LAUNCHED: ("run_id", "attempt"),
    EventType.ATTEMPT_ENDED: ("run_id", "attempt"),
    EventType.RUN_COLLECTED: ("run_id",),
    EventType.MEASUREMENT_RECORDED: ("run_id", "key"),
    EventType.VERDICT_COMPUTED: ("hypothesis", "look", "phase"),
}
"""What may happen once only, and to what: the fields of its payload that name that."""


def voyage_of(*, planted: bool = True, days: float = DAYS, budget_days: float = BUDGET_DAYS) -> Flight:
    """Return a study of about so many days; one of fields that do nothing where nothing is `planted`."""
    world = Planted(
        seed=7,
        knobs=KNOBS,
        base=BASE,
        effects=EFFECTS if planted else (),
        seed_sd=0.05,
        steps=_STEPS,
        seconds_per_step=_STEP_S * days / DAYS,
        startup_s=0.0,
    )
    return Flight("haul", TOPIC, world, budget_s=budget_days * DAY_S, asks=ASKS, report=True)


def twice(voyage: Voyage) -> list[str]:
    """Return what happened more than once and may not."""
    seen = Counter(
        (event.type.value, *(str(event.payload[name]) for name in _HANDLES[event.type]))
        for event in voyage.events
        if event.type in _HANDLES
    )
    found = [" ".join(handle) for handle, count in seen.items() if count > 1]
    return found + [f"started {name}" for name, count in voyage.starts.items() if count > 1]


def outcome(voyage: Voyage) -> dict[str, Any]:
    """Return what a study found: its design, its runs with their values, its verdicts and what was decided by them."""
    state = voyage.state
    design = state.design
    return {
        "status": state.status,
        "design": None if design is None else design.model_dump(mode="json"),
        "runs": {" ".join(map(str, name)): values for name, values in sorted(_runs(voyage))},
        "verdicts": {verdict.hypothesis: verdict.model_dump(mode="json") for verdict in state.verdicts},
        "decisions": [(d.rule, d.action, d.hypothesis, d.look) for d in state.decisions],
    }


def _runs(voyage: Voyage) -> Iterator[tuple[tuple[str, str, int], dict[str, float] | str]]:
    for run in voyage.state.runs.values():
        values = {key: found.value for key, found in sorted(run.measurements.items())}
        yield (run.spec.phase, run.spec.arm, run.spec.seed), run.invalid[0] if run.invalid else values


def differences(calm: Voyage, rough: Voyage) -> list[str]:
    """Return where a study ended otherwise than the same one at peace."""
    return list(_differing("", outcome(calm), outcome(rough)))


def _differing(place: str, calm: Any, rough: Any) -> Iterator[str]:
    if isinstance(calm, dict) and isinstance(rough, dict):
        for name in {**calm, **rough}:
            yield from _differing(f"{place}/{name}", calm.get(name), rough.get(name))
    elif calm != rough:
        yield f"{place}: {calm} at peace, {rough}"
