"""Does a study end the same whatever is killed, and are all its runs accounted for whatever breaks?

*Kills*: one study's controller is killed at each of its events, before the event is written and right after, and
another controller goes on. Locks and verdicts must be the same to the byte, no attempt may be started twice, none left
running.
*Breakage*: attempts crash, hang, run out of memory, vanish, die while they write, end twice, or show their log late;
sandboxes refuse for a while; clocks differ. Every launched run must be measured or given up with a code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from simlab.scores import Bar, Measured, Progress, SuiteOutcome, counted, share, silent, work
from simlab.sim_records import FlightRecord, flown
from simlab.sim_run import Flight, fly, fly_killed
from simlab.sim_sandbox import Faults, Rates
from simlab.worlds import ASKS, MainEffect, Planted
from studies import StudyState

NAME = "faults"
QUESTION = "Does a study end the same whatever is killed, and are all runs accounted for whatever breaks?"


RUNS = 45
"""Whole runs that the budget of a study with a screen pays for."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One way to be killed."""

    study: Callable[[int], Flight]
    number: int
    """Of the study."""
    at: int
    """The event, from 0 for the first after the study's creation."""
    written: bool
    """Whether the event was written before."""


@dataclass(frozen=True, slots=True)
class Survived:
    """What came of a study whose controller was killed."""

    flight: str
    at: int
    written: bool
    same: bool
    """Whether locks and verdicts of all rounds are those of the flight that nothing happened to, to the byte."""
    duplicates: int
    orphans: int


def study(number: int) -> Flight:
    """Return a study to be killed: every third one screens first."""
    if number % 3 != 2:
        return _comparison(number)
    world = Planted(
        seed=4_000_000 + number, knobs={"epochs": (1, 2, 4), "group_size": (2, 4, 8, 16)},
        base={"epochs": 1, "group_size": 8}, effects=(MainEffect("epochs", {4: 0.15}),), seed_sd=0.02, steps=4,
    )  # fmt: skip
    topic = "What is the best number of epochs and group size on the guessing game?"
    return Flight(f"faults-{number}", topic, world, budget_s=RUNS * world.seconds({}, world.steps) / 2)


def _comparison(number: int) -> Flight:
    ask = ASKS[number % len(ASKS)]
    return Flight(f"faults-{number}", ask.topic, ask.planted(4_000_000 + number, 0.12, seed_sd=0.03, steps=4))


def kills(study: Callable[[int], Flight], number: int, every: int = 1) -> list[Kill]:
    """Return the kills of one study, at each `every`-th event, before it is written and after it."""
    events = _unharmed(study, number)[0] - 1
    return [Kill(study, number, at, written) for at in range(0, events, every) for written in (False, True)]


def survive(kill: Kill) -> Survived | None:
    """Fly a study whose controller is killed; None if it has fewer events."""
    flight, (_, expected) = kill.study(kill.number), _unharmed(kill.study, kill.number)
    found = fly_killed(flight, kill.at, written=kill.written)
    if found is None:
        return None
    same = bool(expected) and _decided(found.state) == expected
    return Survived(flight.name, kill.at, kill.written, same, len(found.duplicates), len(found.orphans))


def survivors(name: str, wanted: Sequence[Kill], workers: int, tell: Progress) -> list[Survived]:
    """Return what came of kills, in so many processes."""
    return [one for one in work(f"{name}, kills", survive, wanted, workers=workers, tell=tell) if one is not None]


@cache
def _unharmed(study: Callable[[int], Flight], number: int) -> tuple[int, list[object]]:
    """Return how many events a study has to which nothing happens, and what was locked and decided in it."""
    landed = fly(study(number))
    return landed.state.event_count, _decided(landed.state)


def _decided(state: StudyState) -> list[object]:
    return [
        [each.design_hash, *(verdict.model_dump(mode="json") for verdict in each.verdicts)] for each in state.rounds
    ]


_RATES: Sequence[Rates] = (
    Rates(crash=0.3),
    Rates(hang=0.15),
    Rates(out_of_memory=0.2),
    Rates(lost=0.3),
    Rates(garbled=0.2),
    Rates(lag=0.3),
    Rates(duplicate=0.5),
    Rates(crash=0.1, hang=0.05, out_of_memory=0.05, lost=0.1, garbled=0.05, lag=0.1, duplicate=0.1),
)


def broken(count: int) -> list[Flight]:
    """Return so many studies in which much breaks."""
    studies = []
    for number in range(count):
        flight = _comparison(number)
        refusing = ((60.0, 400.0),) if number % 3 == 0 else ()
        faults = Faults(_RATES[number % len(_RATES)], seed=number, refusing=refusing, skew_s=(0.0, 20.0)[number % 2])
        studies.append(replace(flight, name=f"broken-{number}", faults=faults, budget_s=100 * 3600.0))
    return studies


def figures(survived: Sequence[Survived], records: Sequence[FlightRecord]) -> list[Measured]:
    """Return what the flights amount to."""
    claims = [claim for one in records for claim in one.claims]
    runs = sum(one.launched_runs for one in records)
    return [
        share("same verdicts after a kill", [one.same for one in survived], Bar("at least", 1.0)),
        share("kills with a duplicate launch", [one.duplicates > 0 for one in survived], Bar("at most", 0.0)),
        share("kills with an orphan", [one.orphans > 0 for one in survived], Bar("at most", 0.0)),
        counted("launched runs accounted for", sum(one.accounted_runs for one in records), runs, Bar("at least", 1.0)),
        share("broken studies with a duplicate or an orphan", [one.duplicates + one.orphans > 0 for one in records],
              Bar("at most", 0.0)),
        share("sign errors among broken runs", [claim.false for claim in claims if claim.truth], Bar("at most", 0.01)),
    ]  # fmt: skip


def measure(studies: int, count: int, every: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Kill the controllers of so many studies at every `every`-th event, fly `count` broken ones, and count."""
    wanted = [kill for number in range(studies) for kill in kills(study, number, every)]
    survived = survivors(NAME, wanted, workers, tell)
    records = work(f"{NAME}, breakage", flown, broken(count), workers=workers, tell=tell)
    rows = [{"study": one.flight, "event": one.at, "written": one.written, "same": False}
            for one in survived if not one.same]  # fmt: skip
    return SuiteOutcome(NAME, QUESTION, len(survived) + len(records), figures(survived, records), rows)
