"""Does a question for the best values end near the best, with claims that are true, when the whole loop flies it?

Topics that ask which values are best, in worlds with main effects, an optimum inside a ladder, pairs that matter
together, thresholds, and nothing at all. The loop screens, confirms on fresh seeds, and claims. Other ways to search
are compared at equal budget in the suite `regret`, which does not fly the loop.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from simlab.scores import Bar, Measured, Progress, SuiteOutcome, mean, share, silent, work
from simlab.sim_records import FlownClaim, claims, place_of
from simlab.sim_run import Flight, FlightResult, fly
from simlab.worlds import Effect, Hill, Interaction, JointEffect, Planted, Scalar, Slope, Threshold, best

NAME = "search"
QUESTION = "Does a question for the best values end near the best, with claims that are true?"
TOPIC = "What is the best learning rate, group size and epochs on the guessing game?"
KNOBS: dict[str, tuple[Scalar, ...]] = {
    "learning_rate": (3e-4, 1e-3, 3e-3),
    "group_size": (2, 4, 8, 16),
    "epochs": (1, 2, 4),
}
BASE: dict[str, Scalar] = {"learning_rate": 1e-3, "group_size": 8, "epochs": 1}
RUNS = 60
"""Whole runs that the budget pays for."""
KINDS = ("main effects", "optimum inside", "pair", "threshold", "nothing")
MOST_FALSE = 0.05


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search came to."""

    flight: str
    kind: str
    refused: str | None
    claims: tuple[FlownClaim, ...]
    regret: float | None
    """(best - chosen) / (best - control); None where nothing is to be gained. Chosen is the best supported arm, or the
    control."""
    screened: int
    run_hours: float
    within: bool
    """Whether the budget was kept."""


def flights(count: int, first: int = 0) -> list[Flight]:
    """Return so many searches, the kinds of world in turn."""
    return [_flight(number) for number in range(first, first + count)]


def _flight(number: int) -> Flight:
    source = random.Random(number)
    world = Planted(
        seed=10_000_000 + number,
        knobs=KNOBS,
        base=BASE,
        effects=_effects(KINDS[number % len(KINDS)], source),
        centre=0.4,
        seed_sd=0.03,
        rung_correlation=0.7,
        steps=8,
    )
    budget_s = RUNS * world.seconds(BASE, world.steps) / 2
    return Flight(f"search-{number}", TOPIC, world, budget_s=budget_s)


def _effects(kind: str, source: random.Random) -> tuple[Effect, ...]:
    size = source.choice((1, -1)) * source.uniform(0.05, 0.1)
    match kind:
        case "main effects":
            return (Slope("group_size", size, 8), Slope("learning_rate", abs(size), 1e-3))
        case "optimum inside":
            return (Hill("learning_rate", 3e-3, 0.06), Hill("epochs", 2, 0.15))
        case "pair":
            return (JointEffect({"learning_rate": 3e-3, "epochs": 4}, 0.25), Slope("group_size", size / 2, 8))
        case "threshold":
            return (Threshold("epochs", 2, 0.2), Interaction(("group_size", "learning_rate"), 0.03, (8, 1e-3)))
        case _:
            return ()


def searched(flight: Flight) -> Searched:
    """Fly a search and return what it came to."""
    return read(fly(flight))


def read(landed: FlightResult) -> Searched:
    """Return what a search came to."""
    state, world = landed.state, landed.flight.world
    made = claims(landed)
    gains = [_gain(landed, claim) for claim in made if claim.verdict == "supported"]
    possible = best(world)[1] - world.true_value(BASE)
    chosen = max(gains, default=0.0)
    return Searched(
        flight=landed.flight.name,
        kind=KINDS[int(landed.flight.name.rsplit("-", 1)[1]) % len(KINDS)],
        refused=landed.refused,
        claims=made,
        regret=1 - chosen / possible if possible > 1e-9 else None,
        screened=len(state.runs_in("screen")),
        run_hours=landed.run_hours,
        within=state.worked_s <= state.budget_s + 2.0,
    )


def _gain(landed: FlightResult, claim: FlownClaim) -> float:
    """Return what the claimed arm truly gains over the control."""
    place = place_of(landed, claim.hypothesis)
    return landed.flight.world.true_value(place) - landed.flight.world.true_value(BASE)


def figures(found: Sequence[Searched]) -> list[Measured]:
    """Return what the searches amount to."""
    hopeful = [one for one in found if one.regret is not None]
    nothing = [one for one in found if one.regret is None]
    return [
        share("searches of nothing with a false claim", [any(c.false for c in one.claims) for one in nothing],
              Bar("at most", MOST_FALSE)),
        share("searches with a claim of the wrong sign", [any(c.false for c in one.claims) for one in hopeful]),
        mean("regret", [one.regret for one in hopeful if one.regret is not None]),
        *(mean(f"regret, {kind}", [one.regret for one in hopeful if one.kind == kind and one.regret is not None])
          for kind in KINDS[:-1]),
        share("searches beyond their budget", [not one.within for one in found], Bar("at most", 0.0)),
        share("searches refused", [one.refused is not None for one in found]),
        mean("run-hours", [one.run_hours for one in found]),
    ]  # fmt: skip


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many searches and count."""
    found = work(NAME, searched, flights(count), workers=workers, tell=tell)
    return SuiteOutcome(NAME, QUESTION, len(found), figures(found))
