"""Does it matter to what is claimed who plans?

The same worlds, half of them with a knob that does nothing, planned by: the built-in rules; one that draws claims at
random; a liar that is certain of everything, asks for gamed designs and writes its claims into every text; and the
planner for language models with a script behind its endpoint that is sound, talks nonsense, sends actions that do not
exist, is out for hours, or is gone. No recording of a real model exists, so that none flies here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from research.planners.context import Planner
from simlab.planners import MOODS, Liar, RandomPlanner, talker
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, share, silent, work
from simlab.sim_clock import SimClock
from simlab.sim_records import FlightRecord, flown
from simlab.sim_run import Flight, rules
from simlab.worlds import PAIRS, ComparisonTopic

NAME = "planners"
QUESTION = "Does it matter to what is claimed who plans?"
MOST_FALSE = 0.05
EFFECT = 0.10


PLANNERS = ("rules", "random", "liar", *(f"script, {mood}" for mood in MOODS))


def planner_of(name: str, ask: ComparisonTopic, number: int, clock: SimClock) -> Planner:
    """Return the planner of a study."""
    match name:
        case "rules":
            return rules(clock)
        case "random":
            return RandomPlanner(ask, number)
        case "liar":
            return Liar(ask, up=bool(number % 2))
        case _:
            return talker(ask, next(mood for mood in MOODS if name.endswith(mood)), clock)


def flights(planner: str, count: int) -> list[Flight]:
    """Return so many studies of one planner; every second knob does nothing."""
    studies = []
    for number in range(count):
        ask = PAIRS[number // 2 % len(PAIRS)]
        effect = (0.0, EFFECT)[number % 2] * (1, -1)[number // 2 % 2]
        world = ask.planted(9_000_000 + number, effect, centre=0.5, seed_sd=0.03, steps=8)
        name = f"planners-{PLANNERS.index(planner)}-{number}"
        planned_by = partial(planner_of, planner, ask, number)
        studies.append(Flight(name, ask.topic, world, planner=planned_by, budget_s=24 * 3600.0))
    return studies


def figures(found: Mapping[str, Sequence[FlightRecord]]) -> list[Measured]:
    """Return what the flights amount to."""
    everybody = [claim for records in found.values() for record in records for claim in record.claims]
    nothing = [claim for claim in everybody if not claim.truth]
    gone = found.get("script, gone", ())
    alive = [record for name, records in found.items() if name != "script, gone" for record in records]
    return [
        share("false claims where the knob does nothing, all planners", [c.false for c in nothing],
              Bar("at most", MOST_FALSE)),
        share("studies that end with verdicts, or are refused for noise that hides the effect, with any planner that "
              "answers", [bool(r.claims) or "noise between seeds" in (r.refused or "") for r in alive],
              Bar("at least", 1.0)),
        share("studies without an endpoint that launched nothing and said why",
              [not r.launches and r.refused is not None for r in gone], Bar("at least", 1.0)),
        *(share(f"false claims where the knob does nothing, {name}",
                [claim.false for record in records for claim in record.claims if not claim.truth])
          for name, records in found.items()),
    ]  # fmt: skip


def rows(found: Mapping[str, Sequence[FlightRecord]]) -> list[Mapping[str, Any]]:
    """Return a line for each planner: what was claimed, and how its predictions fared."""
    lines: list[Mapping[str, Any]] = []
    for name, records in found.items():
        claims = [claim for record in records for claim in record.claims]
        there = sum(bool(claim.truth) for claim in claims)
        lines.append({
            "planner": name, "studies": len(records), "verdicts": len(claims),
            "differences found": f"{sum(claim.found for claim in claims)} of {there}",
            "mean Brier score": _mean([claim.brier for claim in claims if claim.brier is not None]),
            "predicted intervals that held": _mean([float(c.within_prediction) for c in claims
                                                    if c.within_prediction is not None]),
            "refusals in its turns": sum(record.refusals for record in records),
        })  # fmt: skip
    return lines


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else "none"


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many studies of each planner and count."""
    found = {
        name: work(f"{NAME}, {name}", flown, flights(name, count), workers=workers, tell=tell) for name in PLANNERS
    }
    return SuiteOutcome(NAME, QUESTION, count * len(PLANNERS), figures(found), rows(found))
