"""Does a study do what a person asks of it, whenever they ask, and keep its lock while it does?

People pause and resume, stop for good, veto a hypothesis, or amend the budget or add a note, at random moments of a
study. The lock must stay what it was, nothing may be launched for what was given up, the wait must not count as work,
and the report must say who did what and why, in their words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simlab.scores import Bar, Measured, Progress, SuiteOutcome, share, silent, work
from simlab.sim_run import Desk, Flight, FlightResult, fly
from simlab.worlds import ASKS, MainEffect, Planted
from studies import EventType

NAME = "control"
QUESTION = "Does a study do what a person asks of it at any moment, and keep its lock?"
Kind = Literal["pause", "stop", "veto", "budget", "note"]
KINDS: Sequence[Kind] = ("pause", "stop", "veto", "budget", "note")
REASON = "the cluster is wanted by the other group"
"""What a person gives as reason; the report must repeat it."""
PAUSED_S = 5 * 3600.0
MORE_BUDGET_S = 40 * 3600.0
EVENTS = 4
_LATEST_TICK = 12


@dataclass(frozen=True)
class Person:
    """Somebody who asks for one thing: to pause or stop at a tick, all else so many events after the lock."""

    kind: Kind
    tick: int

    def __call__(self, desk: Desk) -> None:
        """Act, if it is time."""
        state = desk.state
        if self.kind == "pause" and state.stopped_reason == REASON:
            desk.clock.advance(PAUSED_S)
            desk.write(EventType.STUDY_RESUMED, {})
        elif state.concluded_reason is None and state.stopped_reason is None and self._is_time(desk):
            self._ask(desk)

    def _is_time(self, desk: Desk) -> bool:
        state = desk.state
        if self.kind in ("pause", "stop"):
            return desk.tick == self.tick
        asked = state.vetoed or state.amendments
        return state.locked is not None and not asked and state.event_count >= state.locked.seq + EVENTS * self.tick

    def _ask(self, desk: Desk) -> None:
        match self.kind:
            case "pause" | "stop":
                desk.write(EventType.STUDY_STOPPED, {"reason": REASON})
            case "veto":
                assert desk.state.design is not None
                last = desk.state.design.hypotheses[-1].id
                desk.write(EventType.HYPOTHESIS_VETOED, {"hypothesis": last, "reason": REASON})
            case "budget":
                self._amend(desk, {"kind": "budget", "value": MORE_BUDGET_S, "reason": REASON})
            case "note":
                self._amend(desk, {"kind": "note", "reason": REASON})

    def _amend(self, desk: Desk, amendment: Mapping[str, Any]) -> None:
        desk.write(EventType.DESIGN_AMENDED, {"amendment": {"target": "", "value": None, **amendment}})


@dataclass(frozen=True, slots=True)
class Obeyed:
    """What came of a person's wish."""

    flight: str
    kind: str
    asked: bool
    """Whether there was anything to ask it of."""
    lock_kept: bool
    done: bool
    """Whether the study ended as the wish wants it."""
    told: bool
    """Whether the report says so."""
    launched_after: int
    """Attempts at runs of what was given up, launched after that."""
    duplicates: int
    orphans: int


def flights(count: int, first: int = 0) -> list[Flight]:
    """Return so many studies with a person, the wishes in turn and at random moments."""
    return [_flight(number) for number in range(first, first + count)]


def _flight(number: int) -> Flight:
    ask = ASKS[(1, 3, 5, 7)[number % 4]]  # with two hypotheses, so that one is left after a veto
    world = Planted(
        seed=6_000_000 + number,
        knobs=ask.knobs,
        base=ask.base,
        effects=(MainEffect(ask.field, {ask.values[-1]: 0.1}),),
        seed_sd=0.03,
        steps=4,
    )
    person = Person(KINDS[number % len(KINDS)], random.Random(number).randint(1, _LATEST_TICK))
    return Flight(f"control-{number}", ask.topic, world, hand=person, look_s=7.0, report=True, budget_s=10 * 3600.0)


def obeyed(flight: Flight) -> Obeyed:
    """Fly a study with a person, and return what came of the wish."""
    return read(fly(flight))


def read(landed: FlightResult) -> Obeyed:
    """Return what came of a person's wish."""
    assert isinstance(landed.flight.hand, Person)
    state, kind = landed.state, landed.flight.hand.kind
    asked = _asked(landed, kind)
    hashes = {run.spec.design_hash for run in state.runs.values() if run.spec.phase in ("confirm", "replicate")}
    return Obeyed(
        flight=landed.flight.name,
        kind=kind,
        asked=asked,
        lock_kept=hashes <= {state.design_hash} and _lock_is_its_hash(landed),
        done=_done(landed, kind),
        told=kind == "stop" or (landed.report is not None and (REASON in landed.report or kind == "pause")),
        launched_after=_launched_after(landed, kind),
        duplicates=len(landed.duplicates),
        orphans=len(landed.orphans),
    )


def _asked(landed: FlightResult, kind: Kind) -> bool:
    state = landed.state
    match kind:
        case "pause":
            return state.resumed_count > 0
        case "stop":
            return state.stopped_reason == REASON
        case "veto":
            return bool(state.vetoed)
        case _:
            return bool(state.amendments)


def _done(landed: FlightResult, kind: Kind) -> bool:
    state = landed.state
    if kind == "stop":
        return state.status == "stopped"
    whole = state.status == "concluded" and len(state.verdicts) == len(state.hypotheses)
    return whole and state.worked_s < PAUSED_S


def _lock_is_its_hash(landed: FlightResult) -> bool:
    locked = landed.state.locked_design
    return locked is None or locked.hash() == landed.state.design_hash


def _launched_after(landed: FlightResult, kind: Kind) -> int:
    """Return how many attempts began after the wish, at what it gave up."""
    state = landed.state
    if kind == "stop" and state.stopped_reason == REASON:
        return sum(attempt.launched > state.last_ts for run in state.runs.values() for attempt in run.attempts)
    if kind != "veto" or state.design is None:
        return 0
    late = 0
    for name, veto in state.vetoed.items():
        hypothesis = next(entry for entry in state.design.hypotheses if entry.id == name)
        arm = state.design.arm_with(hypothesis.variable, hypothesis.treatment).name
        late += sum(a.launched > veto.ts for run in state.runs_of(arm) for a in run.attempts)
    return late


def figures(found: Sequence[Obeyed]) -> list[Measured]:
    """Return what the flights amount to."""
    asked = [one for one in found if one.asked]
    return [
        share("wishes carried out", [one.done for one in asked], Bar("at least", 1.0)),
        share("locks kept", [one.lock_kept for one in found], Bar("at least", 1.0)),
        share("reports that say so", [one.told for one in asked], Bar("at least", 1.0)),
        share("launches of what was given up", [one.launched_after > 0 for one in asked], Bar("at most", 0.0)),
        share("duplicates or orphans", [one.duplicates + one.orphans > 0 for one in found], Bar("at most", 0.0)),
    ]


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many studies and count."""
    found = work(NAME, obeyed, flights(count), workers=workers, tell=tell)
    bad = [one for one in found if one.asked and not (one.done and one.lock_kept and one.told)]
    rows = [{"study": one.flight, "wish": one.kind, "done": one.done, "told": one.told} for one in bad]
    return SuiteOutcome(NAME, QUESTION, len(found), figures(found), rows)
