"""A study of many simulated days in any weather, by the shipped controller, event log, collection, judge and report.

Whoever is killed or lost is followed by another controller within the hour, as by somebody who looks after the study,
or a service that does. Several may be there at once: one that wants the lease, one that lost it and does not know yet,
one that works without. Simulated are the machine (sandbox, tracker, clocks), the planner's outages, Prefect's page and
people; `simlab.haul.weather` is the plan of what they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from research.controller.controller import StudyController, TickResult
from research.installation.home import Home
from research.orchestration.prefect_api import UserAction
from simlab.flights.flight import POLL_S, Flight, board, make_controller
from simlab.haul.clock import HaulClock
from simlab.haul.failing import FailingLog, FailingPlanner, FailingSandbox, FailingTracker, Troubles
from simlab.haul.helm import Helm
from simlab.haul.page import FakePage
from simlab.haul.weather import CALM, DAY_S, HOUR_S, Blow, Stretch, Weather
from studies import Event, EventLog, StudyLog, StudyState
from studies.log.event import row_of
from studies.proof import Discrepancy, verify

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
