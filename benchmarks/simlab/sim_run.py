"""Studies driven by the shipped loop on simulated time.

One flight: a study in a home of its own, driven by the shipped loop to its end on simulated time.

Planner seam, compiler, scheduler, recovery, collection, statistics, decision table and report are the shipped code; the
sandbox, the tracker's log and the clock are simulated, and the study's machine says so. The same flight gives the same
study, to the event, whenever it is flown. By default the report is not built (`Flight.report`): it is most of a
flight's time, and no verdict depends on it.

Controllers that are killed: real processes, ended by SIGKILL at an event of their study, before or after its write.

What a killed controller leaves behind is what a later one finds: the event log, the study's folder, the sandbox's. The
later one flies the study to its end in this process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from research.controller.controller import StudyController
from research.design.noise_bank import NoiseBank, Observation, metric_key, model_key, setting_key
from research.design.pricing import Pricing
from research.errors import ResearchError
from research.installation.home import Home
from research.isolation.mode import Isolation, read_sandboxing
from research.planners.context import Planner
from research.planners.rules import RulesPlanner
from research.scheduler.next_step import is_done
from sandboxes import SandboxError
from simlab.sim_clock import SimClock
from simlab.sim_sandbox import NO_FAULTS, SIMULATED, Alter, Faults, SimSandbox, SimTracker, unaltered
from simlab.worlds import Planted, Scalar, World
from studies import Event, EventLog, EventType, StudyLog, StudyState
from studies.errors import StudiesError
from studies.log.fold import WORKED
from studies.records.design import Metric
from studies.report import build_report
from studies.report.build import Report
from swarm.job import Job

MOST_TICKS = 3000
POLL_S = 1.0
"""Least time between two ticks."""
KNOWN_RUNS = 20
_BETWEEN_TASKS = 0.02
"""Share of a play's variance that is between the tasks of a planted world, which differ little."""
PAUSE_S = 30.0
"""How long is waited where nothing runs: for a sandbox that refuses, or for a person."""
MODEL = {"kind": "path", "path": f"{SIMULATED}: there are no weights"}
"""Of a kind that nobody has to make, so that a study's job is an ordinary one in all else."""
MACHINE = {"cpus": 2, "memory_gib": 8.0, "platform": f"{SIMULATED} (SimLab); no model was trained"}


@dataclass(frozen=True, slots=True)
class Desk:
    """What lies before somebody who looks at a study between two ticks."""

    home: Home
    log: EventLog
    state: StudyState
    tick: int
    """How many ticks there were."""
    clock: SimClock

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self.home.study(self.state.id)

    def write(self, type: EventType, payload: Mapping[str, Any], actor: str = "user") -> None:
        """Append an event to the study's log."""
        StudyLog(self.log, self.state.id).change(lambda state: (type, payload), actor=actor)


def rules(clock: SimClock) -> Planner:
    """Return the rule planner, which needs no clock."""
    return RulesPlanner()


Hand = Callable[[Desk], None]
"""What somebody does to a study between two ticks, and after the last one: a study that it wakes goes on."""


def hands_off(desk: Desk) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Flight:
    """A study to be flown."""

    name: str
    """Also decides its seeds."""
    topic: str
    world: World
    bank_world: Planted | None = None
    """Whose runs of the control the noise bank knows; None where it knows none, and a pilot sizes what is designed."""
    planner: Callable[[SimClock], Planner] = rules
    budget_s: float = 8 * 3600.0
    max_runs: int | None = None
    parallel: int = 2
    base: dict[str, Scalar] = field(default_factory=dict)
    """Job fields that differ from the default in every arm."""
    asks: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the study, such as what its runs are judged by."""
    faults: Faults = NO_FAULTS
    alter: Alter = unaltered
    hand: Hand = hands_off
    look_s: float = float("inf")
    """Most time between two ticks, where somebody is to act in between."""
    report: bool = False
    """Whether the report is built, as shipped."""

    @property
    def job(self) -> Job:
        """The job under all arms."""
        return Job.model_validate({"steps": self.world.steps, "model": MODEL, **self.base})


@dataclass(frozen=True)
class FlightResult:
    """What happened."""

    flight: Flight
    state: StudyState
    refused: str | None
    """What the loop refused or failed with, in its own words; None where it did neither."""
    starts: Counter[str]
    """How often each attempt was started."""
    orphans: tuple[str, ...]
    """Attempts that still run."""
    ticks: int
    report: str | None = None
    """The report's Markdown, where it was asked for."""

    @property
    def run_hours(self) -> float:
        """Machine hours of all attempts."""
        return sum(run.seconds for run in self.state.every_run.values()) / 3600

    @property
    def duplicates(self) -> tuple[str, ...]:
        """Attempts that were started more than once."""
        return tuple(name for name, count in self.starts.items() if count > 1)


def fly(flight: Flight) -> FlightResult:
    """Fly a study to its end in a home that is gone afterwards."""
    with scratch() as folder:
        return fly_in(flight, folder)


def fly_in(flight: Flight, folder: Path) -> FlightResult:
    """Fly a study to its end in a home that may hold others, from which it learns the noise."""
    return resume(flight, board(flight, folder))


def board(flight: Flight, folder: Path) -> Home:
    """Create a flight's home and its study."""
    home = Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()
    home.study(flight.name).mkdir(parents=True)
    planner = flight.planner(SimClock())
    with closing(EventLog(home.database, clock=SimClock())) as log:
        payload = {
            "topic": flight.topic,
            "planner": {"name": planner.name, "model": planner.model},
            "settings": {
                "budget_s": flight.budget_s, "max_runs": flight.max_runs, "parallel": flight.parallel,
                "approve": "none", **({"episodes": None} if isinstance(flight.world, Planted) else {}), **flight.asks,
            },
            "command": ["simlab", flight.name],
            "versions": {SIMULATED: "yes"},
            "machine": MACHINE,
            WORKED: 0.0,
        }  # fmt: skip
        StudyLog(log, flight.name).append(EventType.STUDY_CREATED, payload, actor="user")
    return home


def resume(flight: Flight, home: Home, open_log: Callable[[str, SimClock], EventLog] | None = None) -> FlightResult:
    """Fly a study that was begun to its end, from wherever an earlier controller left it."""
    clock = SimClock(skew_s=flight.faults.skew_s)
    with closing((open_log or _open)(home.database, clock)) as log:
        clock.advance_to(datetime.fromisoformat(log.read(flight.name)[-1].ts))
        # A machine of its own: all flights of a home begin at the same simulated moment, and are no neighbours.
        machine = home.sandboxes / flight.name
        sandbox = SimSandbox(machine, flight.world, clock, faults=flight.faults, alter=flight.alter)
        return _Leg(flight, home, log, sandbox).travel()


def pricing(flight: Flight) -> Pricing:
    """Return the price list of a simulated machine: a run's time alone on it."""

    def seconds(job: Job) -> float:
        known = {name: value for name, value in job.model_dump().items() if isinstance(value, bool | int | float | str)}
        return flight.world.seconds(known, job.steps)

    return Pricing(seconds, flight.parallel, 0.0, f"the {SIMULATED} machine's own times")


def known_noise(flight: Flight) -> NoiseBank:
    """Return what the noise bank knows besides the runs of a flight's home."""
    if (world := flight.bank_world) is None:
        return NoiseBank()
    job = flight.job.model_copy(update=dict(world.base))
    shared: dict[str, Any] = {
        "study": "known", "environment": job.environment, "model": model_key(job), "algorithm": job.algorithm,
        "group": "known", "pairing": "known", "decoding": "", "steps": world.steps, "episodes": world.episodes,
        "metric": metric_key(Metric(meaning="hidden success", episodes=1)), "setting": setting_key(job),
    }  # fmt: skip
    runs = [world.run({}, seed) for seed in range(KNOWN_RUNS)]
    return NoiseBank(frozenset(
        Observation(run=f"known-{seed}", seed=seed, value=run.hidden, initial=run.initial, collapsed=run.collapsed,
                    play_variance=run.hidden * (1 - run.hidden) * (1 - _BETWEEN_TASKS), **shared)
        for seed, run in enumerate(runs)
    ))  # fmt: skip


def _open(database: str, clock: SimClock) -> EventLog:
    return EventLog(database, clock=clock)


def make_controller(flight: Flight, home: Home, log: EventLog, sandbox: SimSandbox, **others: Any) -> StudyController:
    """Return the shipped controller of a flight, with simulated clocks, prices and files; `others` replaces of them."""
    return StudyController(
        **{
            "home": home,
            "log": log,
            "study": flight.name,
            "planner": flight.planner(sandbox.clock),
            "sandbox": sandbox,
            "clock": sandbox.clock,
            "seconds": sandbox.clock.seconds,
            "pricing": pricing(flight),
            "noise_bank": lambda log: NoiseBank.of(log).merge(known_noise(flight)),
            "base": flight.job,
            "isolation": Isolation(read_sandboxing(flight.asks)),
            "read_tracking": SimTracker(sandbox.clock),
            "build_report": build_report if flight.report else _no_report,
            "draw_secret": lambda size: hashlib.sha256(flight.name.encode()).hexdigest()[: 2 * size],
            **others,
        }
    )


class _Leg:
    """A study between its first and its last tick under one controller."""

    def __init__(self, flight: Flight, home: Home, log: EventLog, sandbox: SimSandbox) -> None:
        self._flight = flight
        self._home = home
        self._log = log
        self._sandbox = sandbox
        self._loop = make_controller(flight, home, log, sandbox)
        self._state = self._loop.state()

    def travel(self) -> FlightResult:
        """Tick until the study is done and nobody wakes it; what the loop refuses stops it, as a session does it."""
        for tick in range(MOST_TICKS):
            try:
                done = self._tick(tick)
            except SandboxError:
                self._sandbox.clock.advance(PAUSE_S)
                continue
            except (ResearchError, StudiesError) as error:
                return self._landed(tick, self._stopped(error))
            if done:
                return self._landed(tick + 1, None)
            self._wait()
        raise AssertionError(f"{self._flight.name}: not done after {MOST_TICKS} ticks: {self._state.status}")

    def _tick(self, number: int) -> bool:
        """Let the hand act, tick, and let it act once more if the study would end; return whether it does."""
        if number == 0:
            self._meddled(number)
        self._state = self._loop.tick()
        return not self._meddled(number + 1) and is_done(self._state)

    def _meddled(self, tick: int) -> bool:
        """Return whether the hand wrote anything into the log."""
        flight = self._flight
        flight.hand(Desk(self._home, self._log, self._state, tick, self._sandbox.clock))
        return flight.hand is not hands_off and len(self._log.read(flight.name)) > self._state.event_count

    def _wait(self) -> None:
        """Let time pass until the next attempt ends, or the budget does; a real loop looks more often than that."""
        clock, budget_s = self._sandbox.clock, self._loop.budget_left(self._state)
        ends = [(moment - clock.true).total_seconds() for moment in self._sandbox.running().values()]
        pause = max(POLL_S, min([*ends, budget_s])) if ends else PAUSE_S
        clock.advance(min(pause, self._flight.look_s))

    def _stopped(self, error: ResearchError | StudiesError) -> str:
        """Write down why the study stands still; a log that cannot be read any more takes no word."""
        try:
            self._loop.halt(str(error))
            self._state = self._loop.state()
        except StudiesError as broken:
            return str(broken)
        return str(error)

    def _landed(self, ticks: int, refused: str | None) -> FlightResult:
        report = self._home.study(self._flight.name) / "report.md"
        sandbox = self._sandbox
        return FlightResult(
            self._flight, self._state, refused, sandbox.starts(), tuple(sandbox.running()), ticks,
            report.read_text() if self._flight.report and report.exists() else None,
        )  # fmt: skip


def _no_report(state: StudyState, folder: Path) -> Report:
    """Stand for a report that is not built."""
    pages = ("report.md", "report.html")
    for name in pages:
        (folder / name).write_text("not built: a simulated flight\n")
    return Report(folder, dict.fromkeys(pages, "0" * 64))


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder in memory where there is such: thousands of studies are too many syncs for a disk."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="ajet-simlab-", dir=memory if os.access(memory, os.W_OK) else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
