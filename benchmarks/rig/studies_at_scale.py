"""Installations of many studies and studies of many runs, and what it takes to drive and show them.

A study of as many runs and events as wanted, half of its runs done, driven on a simulated machine.

Its events are those of a small simulated study, repeated for runs that a design with so many seeds leads to: what a
controller writes, and what the fold accepts. Seconds that were worked fill it up to the number of events.

What it takes to show a study in a real Prefect server, in seconds of a core.

Import this module only where nothing of Prefect was imported yet: it reads its settings once, at import.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import (
    Any,
    TypeVar,
)

import psutil
import sqlalchemy as sa
from simlab.sim_clock import SimClock
from simlab.sim_run import Flight, fly_in, make_controller
from simlab.sim_sandbox import SimSandbox
from simlab.worlds import ASKS, MainEffect, Planted

from research.controller.controller import StudyController
from research.installation.home import Home
from research.orchestration.server import client_environment, ensure_server, read_process, stop_server
from studies import Event, EventLog, EventType, StudyState, fold, judge_hypothesis
from studies.log.event import FIELDS, row_of
from studies.log.event_log import LOCK_FILE
from studies.log.fold import WORKED
from studies.records.design import Design, RunSpec
from studies.records.runs import confirm_spec

_LASTING_S = 1e9
"""A budget that lasts."""
Said = tuple[EventType, Mapping[str, Any]]


@dataclass(frozen=True)
class Pattern:
    """A small study that was flown, from which long ones and many are written."""

    flight: Flight
    design: Design
    events: tuple[Event, ...]

    @classmethod
    def flown(cls, folder: Path) -> Pattern:
        """Fly it, in a home of its own."""
        ask = ASKS[0]
        effect = MainEffect(ask.field, {ask.values[-1]: 0.12})
        world = Planted(seed=1, knobs=ask.knobs, base=ask.base, effects=(effect,), seed_sd=0.03, steps=4)
        flight = Flight("pattern", ask.topic, world)
        design = fly_in(flight, folder).state.design
        assert design is not None
        with closing(EventLog(f"sqlite:///{folder / 'ajet.db'}")) as log:
            return cls(flight, design, tuple(log.read(flight.name)))

    def said(self, kind: EventType) -> list[Mapping[str, Any]]:
        """Return what the events of a kind say."""
        return [event.payload for event in self.events if event.type is kind]

    def of_a_run(self) -> list[Said]:
        """Return what happened to the last run that was collected, in order, without that it was planned."""
        run = self.said(EventType.RUN_COLLECTED)[-1]["run_id"]
        mine = [event for event in self.events if event.payload.get("run_id") == run]
        return [(event.type, event.payload) for event in mine if event.type is not EventType.RUN_PLANNED]


class LongStudy:
    """A study in a home of its own."""

    def __init__(self, folder: Path, pattern: Pattern, runs: int, events: int) -> None:
        """Write it: `runs` of two arms, and at least so many `events` where its runs need fewer."""
        self.home = Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()
        self._pattern = pattern
        self._flight = replace(pattern.flight, name=f"long-{runs}", budget_s=_LASTING_S)
        seeds = tuple(range(1, runs // 2 + 1))
        self._design = pattern.design.model_copy(update={"seeds": seeds, "looks": ()})
        self.home.study(self._flight.name).mkdir(parents=True)
        self.clock = SimClock()
        self.log = EventLog(self.home.database, clock=self.clock)
        self.events = write(self.log, self._flight.name, self._told(runs, events))

    def controller(self) -> StudyController:
        """Return a controller, which reads the whole log first."""
        sandbox = SimSandbox(self.home.sandboxes, self._flight.world, self.clock)
        return make_controller(self._flight, self.home, self.log, sandbox)

    def _told(self, runs: int, events: int) -> Iterator[Said]:
        lock = self._design.hash()
        created = self._pattern.said(EventType.STUDY_CREATED)[0]
        settings = {**created["settings"], "budget_s": _LASTING_S}
        yield EventType.STUDY_CREATED, {**created, "settings": settings}
        for claim in self._design.hypotheses:
            yield EventType.HYPOTHESIS_PROPOSED, claim.model_dump(mode="json")
        locked = {"design": self._design.model_dump(mode="json"), "hash": lock, "file": LOCK_FILE}
        yield EventType.DESIGN_LOCKED, locked
        yield EventType.MODEL_PREPARED, {"sha256": None, "seconds": 0.0}
        specs = list(self._specs(lock))
        for spec in specs:
            yield EventType.RUN_PLANNED, {"run_id": spec.run_id, "spec": spec.model_dump(mode="json")}
        done = self._pattern.of_a_run()
        for spec in specs[: runs // 2]:
            yield from ((kind, {**payload, "run_id": spec.run_id}) for kind, payload in done)
        for _ in range(events - runs - len(done) * (runs // 2) - len(self._design.hypotheses) - 3):
            yield EventType.STUDY_WORKED, {"worked_s": 0.0}

    def _specs(self, lock: str) -> Iterator[RunSpec]:
        for seed in self._design.seeds:
            for arm in self._design.arms:
                (own,) = self._design.seeds_of(arm.name, [seed])
                yield confirm_spec(self._flight.name, self._design, lock, arm, own)


def write(log: EventLog, study: str, told: Iterator[Said]) -> int:
    """Write a study's events in one transaction, as no controller may; return how many."""
    rows: list[dict[str, Any]] = []
    last: Event | None = None
    for kind, payload in told:
        last = log.compose(study, kind, payload, after=last)
        rows.append(row_of(last))
    insert(log, rows)
    return len(rows)


def insert(log: EventLog, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert stored events as they are."""
    names = ", ".join(FIELDS)
    values = ", ".join(f":{name}" for name in FIELDS)
    with log.transaction("write") as connection:
        connection.execute(sa.text(f"INSERT INTO events ({names}) VALUES ({values})"), list(rows))


class ManyStudies:
    """So many studies like one that was flown in `source`; whose verdicts follow from their files too."""

    def __init__(self, folder: Path, pattern: Pattern, source: Path, count: int) -> None:
        self.home = Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()
        self.count = count
        self._pattern = pattern
        self._source = source / "studies" / pattern.flight.name
        with closing(EventLog(self.home.database)) as log:
            for number in range(count):
                write(log, name := f"study-{number:04d}", self._told(log, name))

    def listed(self, *options: str) -> tuple[str, float]:
        """Return what `ajet study list` prints, and the seconds of a core that the whole command takes."""
        command = [sys.executable, "-m", "research", "study", "list", *options]
        began = _seconds_of_children()
        done = subprocess.run(
            command, env={**os.environ, "AJET_HOME": str(self.home.path)}, capture_output=True, text=True, check=True
        )
        return done.stdout, _seconds_of_children() - began

    def _told(self, log: EventLog, name: str) -> Iterator[Said]:
        """Yield the events of one study; its verdicts are judged from the events before them."""
        other = self._renaming(name)
        state: StudyState | None = None
        last: Event | None = None
        for event in self._pattern.events:
            if event.type is EventType.REPORT_BUILT:
                continue
            payload = json.loads(_replaced(json.dumps(event.payload), other))
            if event.type is EventType.VERDICT_COMPUTED:
                payload = _judged(state or StudyState(), payload)
            last = log.compose(name, event.type, payload, after=last, actor=event.actor)
            state = fold([last], state)
            yield event.type, payload

    def _renaming(self, name: str) -> dict[str, str]:
        """Return what every name becomes, and write the study's files under their new ones."""
        folder = self.home.study(name)
        folder.mkdir(parents=True)
        (folder / "design.lock").write_bytes((self._source / "design.lock").read_bytes())
        other = {self._pattern.flight.name: name}
        for planned in self._pattern.said(EventType.RUN_PLANNED):
            spec = RunSpec.model_validate({**planned["spec"], "study": name})
            other[planned["run_id"]] = spec.run_id
        for path in sorted(self._source.glob("runs/*/*.json")):
            text = path.read_text()
            new = _replaced(text, other)
            to = folder / _replaced(str(path.relative_to(self._source)), other)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(new)
            other[sha256(text.encode()).hexdigest()] = sha256(new.encode()).hexdigest()
        return other


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _replaced(text: str, other: Mapping[str, str]) -> str:
    for before, after in other.items():
        text = text.replace(before, after)
    return text


def _judged(state: StudyState, payload: Mapping[str, Any]) -> dict[str, Any]:
    verdict = judge_hypothesis(state, payload["hypothesis"], look=payload["look"], phase=payload["phase"])
    return {**verdict.model_dump(mode="json"), **{key: payload[key] for key in (WORKED,) if key in payload}}


IDLE_TICKS = 9
BUSY_TICKS = 3
Result = TypeVar("Result")


def count_ended(state: StudyState) -> int:
    return sum(attempt.status is not None for run in state.every_run.values() for attempt in run.attempts)


def ticked(folder: Path, pattern: Pattern, runs: int, events: int) -> dict[str, Any]:
    """Return the seconds of a core that a controller takes: to read the log, to look in vain, for an attempt's end."""
    study = LongStudy(folder / f"{runs}-{events}", pattern, runs, events)
    controller, first_s = timed(study.controller)
    begun, launch_s = timed(controller.tick)
    assert sum(run.active is not None for run in begun.runs.values()) == 2
    idle = [timed(controller.tick)[1] for _ in range(IDLE_TICKS)]
    busy = []
    for _ in range(min(BUSY_TICKS, runs // 4 - 1)):
        study.clock.advance(3600.0)
        before = count_ended(controller.state())
        state, seconds = timed(controller.tick)
        assert count_ended(state) == before + 2
        assert sum(run.active is not None for run in state.runs.values()) == 2, "the next two began"
        busy.append(seconds / 2)
    study.log.close()
    return {
        "runs": runs, "events": study.events, "first look": first_s, "launch": launch_s / 2, "idle tick": median(idle),
        "attempt ended": median(busy),
    }  # fmt: skip


def timed(do: Callable[[], Result]) -> tuple[Result, float]:
    """Return what came of something, and the seconds of a core that it took: what else runs here counts for nothing."""
    began = time.process_time()
    found = do()
    return found, time.process_time() - began


IDLE_REFRESHES = 9
AT_REST_S = 20.0
"""So long a server is left alone, to see what it takes by itself."""


def shown(folder: Path, pattern: Pattern, runs: int, events: int) -> dict[str, Any]:
    """Return the seconds of a core that Prefect's view takes: to show all runs, to look in vain, for an attempt.

    `an attempt, controller` and `an attempt, server` are for one that ends and the next that begins.
    """
    study = LongStudy(folder / f"shown-{runs}", pattern, runs, events)
    with _served(study.home) as (api, server):
        from research.orchestration.prefect_api import connect
        from research.orchestration.projection import ControllerSession
        from research.orchestration.task_rows import build_rows

        controller = study.controller()
        controller.tick()
        with connect(api) as client, closing(EventLog(study.home.database)) as log:
            since = fold(log.read(log.studies()[0])[:1])  # its session saw all of it, and Prefect nothing yet
            session = ControllerSession(study.home, log, since, client)
            before = server.seconds()
            _, first_s = timed(session.refresh)
            first_server_s = server.settled(since=before)
            idle = [timed(session.refresh)[1] for _ in range(IDLE_REFRESHES)]
            before, busy = server.settled(), []
            for _ in range(BUSY_TICKS):
                study.clock.advance(3600.0)
                over = count_ended(controller.state())
                ended = count_ended(controller.tick()) - over
                busy.append(timed(session.refresh)[1] / ended)
            busy_server_s = server.settled(since=before) / (BUSY_TICKS * ended)
            there = client.request("POST", "/task_runs/count", json={}).json()
            assert there == len(list(build_rows(fold(log.read(since.id))))), "each row is there"
            session.close(None)
        rest = server.at_rest()
    study.log.close()
    return {
        "runs": runs, "catching up, controller": first_s, "catching up, server": first_server_s,
        "idle refresh": median(idle), "an attempt, controller": median(busy), "an attempt, server": busy_server_s,
        "server at rest, cores": rest,
    }  # fmt: skip


class ServerUse:
    """What a server and its children have used of the machine's cores."""

    def __init__(self, leader: int) -> None:
        self._leader = psutil.Process(leader)

    def seconds(self) -> float:
        """Return the seconds of a core used since they began; children that ended count for nothing."""
        used = [process.cpu_times() for process in (self._leader, *self._leader.children(recursive=True))]
        return sum(each.user + each.system for each in used)

    def settled(self, since: float = 0.0) -> float:
        """Return the seconds used after `since`, once it has done what it was told: two seconds are like at rest."""
        last = self.seconds()
        while True:
            time.sleep(2.0)
            now = self.seconds()
            if now - last < 0.2:
                return now - since
            last = now

    def at_rest(self) -> float:
        """Return how many cores it takes where nobody asks for anything."""
        before, began = self.seconds(), time.monotonic()
        time.sleep(AT_REST_S)
        return (self.seconds() - before) / (time.monotonic() - began)


@contextmanager
def _served(home: Home) -> Iterator[tuple[str, ServerUse]]:
    os.environ.update(client_environment(home.prefect))
    api = ensure_server(home.prefect, port=0).api
    known = read_process(home.prefect / "server.json")
    assert known is not None
    try:
        yield api, ServerUse(int(str(known["pid"])))
    finally:
        stop_server(home.prefect)
