"""A study of as many runs and events as wanted, half of its runs done, driven on a simulated machine.

Its events are those of a small simulated study, repeated for runs that a design with so many seeds leads to: what a
controller writes, and what the fold accepts. Seconds that were worked fill it up to the number of events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from simlab.flights.clock import SimClock
from simlab.flights.flight import Flight, fly_in, make_controller
from simlab.flights.sandbox import SimSandbox
from simlab.worlds.topics import ASKS
from simlab.worlds.world import MainEffect, Planted

from research.controller.controller import StudyController
from research.installation.home import Home
from studies import Event, EventLog, EventType
from studies.log.event import FIELDS, row_of
from studies.log.event_log import LOCK_FILE
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
