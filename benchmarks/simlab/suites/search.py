"""Does a question for the best values end near the best, with claims that are true, when the whole loop flies it?

Topics that ask which values are best, in worlds with main effects, an optimum inside a ladder, pairs that matter
together, thresholds, and nothing at all, and on two grids of real trainings that were recorded. The loop screens,
confirms on fresh seeds, and claims.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from research.proposals.arms import value_text
from simlab.landscapes import NAMES, Recorded
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, mean, share, silent, work
from simlab.sim_records import FlownClaim, claims, place_in
from simlab.sim_run import Flight, fly
from simlab.worlds import Effect, Hill, Interaction, JointEffect, Planted, Scalar, Slope, Threshold, best

NAME = "search"
QUESTION = "Does a question for the best values end near the best, with claims that are true?"
PLACES = {"guess": "the guessing game", "arith": "arith"}
KNOBS: dict[str, tuple[Scalar, ...]] = {
    "learning_rate": (3e-4, 1e-3, 3e-3),
    "group_size": (2, 4, 8, 16),
    "epochs": (1, 2, 4),
}
BASE: dict[str, Scalar] = {"learning_rate": 1e-3, "group_size": 8, "epochs": 1}
RUNS = 60
"""Whole runs that the budget pays for."""
RECORDED = "recorded trainings of "
KINDS = (
    "main effects", "optimum inside", "pair", "threshold", "nothing", *(RECORDED + name for name in NAMES),
)  # fmt: skip
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
    possible: float
    """What the best gains over the control."""
    run_hours: float
    within: bool
    """Whether the budget was kept."""


def flights(count: int) -> list[Flight]:
    """Return so many searches, the kinds of world in turn."""
    studies = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        world: Planted | Recorded
        if kind.startswith(RECORDED):
            place = kind.removeprefix(RECORDED)
            world = Recorded.load(place, number)
        else:
            place = "guess"
            world = Planted(
                seed=10_000_000 + number, knobs=KNOBS, base=BASE, effects=_effects(kind, random.Random(number)),
                centre=0.6 if kind == "optimum inside" else 0.4,  # its control must learn, or seems to collapse
                seed_sd=0.03, rung_correlation=0.7, steps=8,
            )  # fmt: skip
        *fields, last = (
            f"{name.replace('_', ' ')} {' vs '.join(map(value_text, values))}" for name, values in world.knobs.items()
        )
        topic = f"What is the best {', '.join(fields)} and {last} on {PLACES[place]}?"
        budget_s = RUNS * world.seconds(world.base, world.steps) / 2
        studies.append(Flight(f"search-{number}", topic, world, budget_s=budget_s, base=dict(world.base)))
    return studies


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
    landed = fly(flight)
    state, world = landed.state, flight.world
    assert isinstance(world, Planted | Recorded)
    made, control = claims(landed), world.true_value(world.base)
    supported = [claim.hypothesis for claim in made if claim.verdict == "supported"]
    designs = [entry.design for entry in state.rounds if entry.design is not None]
    places = [
        place_in(design, design.arm_with(claim.variable, claim.treatment))
        for name in supported
        for design, claim in [next((d, c) for d in designs for c in d.hypotheses if c.id == name)]
    ]
    chosen = max((world.true_value(place) - control for place in places), default=0.0)
    possible = best(world)[1] - control
    return Searched(
        flight=flight.name,
        kind=KINDS[int(flight.name.rsplit("-", 1)[1]) % len(KINDS)],
        refused=landed.refused,
        claims=made,
        regret=1 - chosen / possible if possible > 1e-9 else None,
        possible=possible,
        run_hours=landed.run_hours,
        within=state.worked_s <= state.budget_s + 2.0,
    )


def figures(found: Sequence[Searched]) -> list[Measured]:
    """Return what the searches amount to."""
    hopeful = [one for one in found if one.regret is not None]
    planted = [one for one in hopeful if not one.kind.startswith(RECORDED)]
    nothing = [one for one in found if one.regret is None]
    return [
        share("searches of nothing with a false claim", [any(c.false for c in one.claims) for one in nothing],
              Bar("at most", MOST_FALSE)),
        share("searches with a claim of the wrong sign", [any(c.false for c in one.claims) for one in hopeful]),
        mean("regret", [one.regret for one in hopeful if one.regret is not None]),
        mean("regret in planted worlds", [one.regret for one in planted if one.regret is not None]),
        *(mean(f"regret, {kind}", [one.regret for one in hopeful if one.kind == kind and one.regret is not None])
          for kind in KINDS if kind != "nothing"),
        *(mean(f"what the best gains, {kind}", [one.possible for one in found if one.kind == kind])
          for kind in KINDS if kind.startswith(RECORDED)),
        share("searches beyond their budget", [not one.within for one in found], Bar("at most", 0.0)),
        share("searches refused", [one.refused is not None for one in found]),
        mean("run-hours", [one.run_hours for one in found]),
    ]  # fmt: skip


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many searches and count."""
    found = work(NAME, searched, flights(count), workers=workers, tell=tell)
    return SuiteOutcome(NAME, QUESTION, len(found), figures(found))
