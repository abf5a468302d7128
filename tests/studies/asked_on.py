"""A simulated inquiry of three rounds, flown once: its log and files, to be read, cut short, and continued by hand.

No model was trained: the shipped loop flew it on simulated time (`simlab`). Round 1 and round 2 end in claims of a
difference, of the same comparison in two environments; round 3 asks for another field and ends equivalent.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from studies import Event, EventLog, EventType, StudyState, fold
from studies.log.event import compose_event, row_of
from studies.proof import Proof, verify
from studies.report import build_report

STUDY = "inq-3"
"""Also decides the seeds of the flight, and with them its course."""
TOPIC = "learning rate 3e-3 vs 1e-2 on arith"
Holds = Callable[[StudyState], bool]


@dataclass(frozen=True)
class Inquiry:
    events: tuple[Event, ...] = field(repr=False)
    folder: Path

    @property
    def state(self) -> StudyState:
        return fold(self.events)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row_of(event) for event in self.events]

    def until(self, holds: Holds) -> Inquiry:
        """Return the inquiry up to the first event after which something holds of its state."""
        state = None
        for number, event in enumerate(self.events, start=1):
            state = fold([event], state)
            if holds(state):
                return replace(self, events=self.events[:number])
        raise AssertionError("it never holds")

    def then(self, type: EventType, **payload: Any) -> Inquiry:
        last = self.events[-1]
        at = datetime.fromisoformat(last.ts) + timedelta(seconds=1)
        return replace(
            self, events=(*self.events, compose_event(STUDY, type, payload, after=last, actor="system", at=at))
        )  # fmt: skip

    def reported(self, to: Path) -> Inquiry:
        """Return the inquiry in a folder of its own, with its report and the event of it."""
        copied = replace(self, folder=Path(shutil.copytree(self.folder, to)))
        report = build_report(copied.state, to)
        return copied.then(EventType.REPORT_BUILT, **report.payload())

    def verified(self, rows: Sequence[Mapping[str, Any]] | None = None, **how: Any) -> Proof:
        return verify(STUDY, self.rows if rows is None else rows, self.folder, **how)


def flown(home: Path) -> Inquiry:
    from simlab.sim_run import Flight, fly_in
    from simlab.worlds import MainEffect, Planted

    from swarm.job import Job, tunables

    knobs = {name: known.ladder for name, known in tunables().items() if not isinstance(known.ladder[0], str)}
    del knobs["steps"]
    job = Job()
    base = {name: own if (own := getattr(job, name)) is not None else tunables()[name].usual for name in knobs}
    world = Planted(
        seed=5, knobs=knobs, base=base, effects=(MainEffect("learning_rate", {0.01: 0.2, 0.003: 0.0}),), centre=0.5,
        seed_sd=0.04, steps=8,
    )  # fmt: skip
    fly_in(Flight(STUDY, TOPIC, world, asks={"rounds": 3}), home)
    with closing(EventLog(f"sqlite:///{home / 'ajet.db'}")) as log:
        events = tuple(event for event in log.read(STUDY) if event.type is not EventType.REPORT_BUILT)
    folder = home / "studies" / STUDY
    for name in ("attempts", "planning"):
        shutil.rmtree(folder / name)
    for name in ("report.md", "report.html"):
        (folder / name).unlink()
    return Inquiry(events, folder)
