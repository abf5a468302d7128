"""Who finds a planted mechanism, and who claims one that is not there?

Inquiries in worlds of `simlab.mechanisms`, one of each kind in turn, by the built-in rules, by a scripted researcher,
by one with a wrong idea, by a hostile one, or by a recorded model. An inquiry names the mechanism where a verdict says
so: the lever's claim on the success is supported against a control that somebody uses, and a mediator of the mechanism
is shown to move as it does. Nothing that a planner writes is read. False is a difference that is not there or has the
other sign, and a mediator said to move which does not, or the other way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from research.planners.context import Planner
from research.planners.factory import RECORD, REPLAY, make_planner
from research.planners.llm import LlmPlanner
from simlab.mechanisms import ESSAYS, MECHANISMS, RATES, Mechanical, admitted, mechanical
from simlab.planners import MODEL
from simlab.researchers import Hostile, Misled, Researcher
from simlab.scores import Bar, Measured, mean, share
from simlab.sim_clock import SimClock
from simlab.sim_records import claims_of, place_in
from simlab.sim_run import Flight, FlightResult, fly, rules
from studies import StudyState
from studies.records.design import SUCCESS
from studies.records.verdict import Verdict

NAME = "mechanisms"
TOPIC = "What limits learning on essays, and what would cure it?"
ROUNDS = 4
EPISODES = 256
MOST_FALSE = Bar("at most", 0.05)
FLAGS: Final = {"vary": {"learning_rate": list(RATES), "group_size": [8, 16]}, "environment": ESSAYS.name}
"""What the rules are asked by, which read no open topic."""
SANDBOX: Final = {"kind": "docker", "image": "simulated", "base": "simulated", "engine": "simulated"}
"""So that code may be proposed; no container is made, and none of it is run."""


ASKED: Final = "AJET_PLANNER_MODEL"
"""Variable that names the model which is to be recorded."""


def _scripted(clock: SimClock) -> Planner:
    return Researcher()


def _misled(clock: SimClock) -> Planner:
    return Misled()


def _hostile(clock: SimClock) -> Planner:
    return LlmPlanner(MODEL, Hostile(), sleep=clock.advance)


def _recorded(file: str, clock: SimClock) -> Planner:
    """Return a language model by its recording of this very flight, or one that is being recorded in it."""
    own = {key: str(Path(place) / file) for key in (RECORD, REPLAY) if (place := os.environ.get(key, "").strip())}
    return make_planner("llm", os.environ.get(ASKED) or None, {**os.environ, **own})


_SCRIPTS: Final[Mapping[str, Callable[[SimClock], Planner]]] = {
    "rules": rules, "scripted": _scripted, "misled": _misled, "hostile": _hostile,
}  # fmt: skip
RECORDED: Final = "recorded"
PLANNERS: Final = (*_SCRIPTS, RECORDED)


def flown_planners(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the planners that fly here: the recorded one where there are recordings, or are to be some."""
    recorded = any(environ.get(name, "").strip() for name in (RECORD, REPLAY))
    return PLANNERS if recorded else tuple(_SCRIPTS)


def list_numbers(mechanism: str, planner: str, most: int) -> Sequence[int]:
    """Return the numbers of the inquiries of a cell, at most so many: of a recorded model those that were recorded."""
    place = os.environ.get(REPLAY, "").strip()
    if planner != RECORDED or not place:
        return range(most)
    return [
        number for number in range(most) if (Path(place) / f"{_flight_name(mechanism, planner, number)}.jsonl").exists()
    ]


def _flight_name(mechanism: str, planner: str, number: int) -> str:
    return f"{NAME}-{MECHANISMS.index(mechanism)}-{planner}-{number}"


@dataclass(frozen=True, slots=True)
class MechanismInquiry:
    """What came of an inquiry, by its verdict records."""

    mechanism: str
    planner: str
    claims: int
    """Judged."""
    named: bool
    lever: bool
    """Whether the lever's own claim was supported, mediators aside."""
    false_differences: int
    false_mediators: int
    moved: int
    """Mediators that were said to move, either way."""
    rounds: int
    refusals: int
    looks: int
    run_hours: float
    hours: float
    refused: str | None

    @property
    def false(self) -> bool:
        """Whether anything false is claimed."""
        return self.false_differences + self.false_mediators > 0


def flight(mechanism: str, planner: str, number: int) -> Flight:
    """Return the inquiry of a number, which has a world and seeds of its own."""
    world = mechanical(mechanism, 50_000_000 + 1000 * MECHANISMS.index(mechanism) + number)
    asks = {"rounds": ROUNDS, "episodes": EPISODES, "metric": {"kind": "success"}, "sandbox": SANDBOX}
    name = _flight_name(mechanism, planner, number)
    return Flight(
        name, TOPIC, world, bank_world=world, budget_s=48 * 3600.0,
        planner=partial(_recorded, f"{name}.jsonl") if planner == RECORDED else _SCRIPTS[planner],
        base={"environment": ESSAYS.name, "episodes_per_step": 256},
        asks=asks | ({"wanted": FLAGS} if planner == "rules" else {}),
    )  # fmt: skip


def inquired(mechanism: str, planner: str, number: int) -> MechanismInquiry:
    """Fly an inquiry and keep what counts."""
    with admitted():
        return scored(mechanism, planner, fly(flight(mechanism, planner, number)))


def scored(mechanism: str, planner: str, landed: FlightResult) -> MechanismInquiry:
    """Return what came of a flight in one of these worlds."""
    state, world = landed.state, landed.flight.world
    assert isinstance(world, Mechanical)
    locked = [each for each in state.rounds if each.design is not None]
    claims = [claim for each in locked for claim in claims_of(landed, each)]
    moved = [truth for each in locked for truth in _list_moved(world, each)]
    return MechanismInquiry(
        mechanism, planner, claims=len(claims),
        named=any(_names(world, each, verdict, by=True) for each in locked for verdict in each.verdicts),
        lever=any(_names(world, each, verdict, by=False) for each in locked for verdict in each.verdicts),
        false_differences=sum(claim.false for claim in claims), false_mediators=sum(truth <= 0 for truth in moved),
        moved=len(moved), rounds=len(locked), refusals=sum(len(act.rejected) for act in state.planner_acts),
        looks=sum(len(act.tool_calls) for act in state.planner_acts), run_hours=landed.run_hours,
        hours=state.worked_s / 3600, refused=landed.refused,
    )  # fmt: skip


def _names(world: Mechanical, state: StudyState, verdict: Verdict, *, by: bool) -> bool:
    """Return whether a verdict supports the lever, and (`by`) a mediator of the mechanism moved as it does."""
    design = state.design
    assert design is not None
    claim = design.hypothesis(verdict.hypothesis)
    sound = verdict.verdict == "supported" and not verdict.exploratory and not claim.unused_control
    if not sound or claim.variable != world.lever or claim.direction != "increase" or design.metric.key != SUCCESS:
        return False
    return not by or any(
        found.result == "moved" and world.mediators.get(_name(found.metric)) == found.expected
        for found in verdict.mediators
    )


def _name(metric: str) -> str:
    return metric.partition(":")[2].partition(":")[0]


def _list_moved(world: Mechanical, state: StudyState) -> Iterator[float]:
    """Yield of each mediator that a verdict says moved, either way, by how much it truly moves that way."""
    design = state.design
    assert design is not None
    for verdict in state.verdicts:
        claim = design.hypothesis(verdict.hypothesis)
        for found in verdict.mediators:
            if found.result in ("moved", "opposite") and claim.kind == "difference":
                sides = design.arm(design.control_arm), design.arm_with(claim.variable, claim.treatment)
                truth = world.moves(found.metric, *(place_in(design, arm) for arm in sides))
                yield truth if (found.expected == "increase") == (found.result == "moved") else -truth


def figures(records: Sequence[MechanismInquiry]) -> list[Measured]:
    """Return what inquiries of all worlds by one planner amount to, or of any."""
    there = [one for one in records if one.mechanism in MECHANISMS[:3]]
    return [
        share("inquiries with anything false", [one.false for one in records], MOST_FALSE),
        share("inquiries that name the mechanism, where there is one", [one.named for one in there]),
        share("inquiries that find its lever, whatever they say it acts by", [one.lever for one in there]),
        mean("rounds", [float(one.rounds) for one in records]),
        mean("simulated hours of an inquiry", [one.hours for one in records]),
    ]


def row(records: Sequence[MechanismInquiry]) -> dict[str, Any]:
    """Return the figures of one world and planner."""
    named, wrong = (share("", hits).measured() for hits in ([r.named for r in records], [r.false for r in records]))
    return {
        "mechanism": records[0].mechanism, "planner": records[0].planner, "inquiries": len(records), "named": named,
        "lever": sum(one.lever for one in records), "anything false": wrong,
        "false differences": sum(one.false_differences for one in records),
        "false mediators": sum(one.false_mediators for one in records),
        "mediators said to move": sum(one.moved for one in records),
        "claims": sum(one.claims for one in records), "without a claim": sum(not one.claims for one in records),
        "rounds": round(fmean(one.rounds for one in records), 2),
        "hours": round(fmean(one.hours for one in records), 2),
        "run hours": round(fmean(one.run_hours for one in records), 2),
        "looks": round(fmean(one.looks for one in records), 1),
        "refusals": round(fmean(one.refusals for one in records), 1),
    }  # fmt: skip


def fly_cell(mechanism: str, planner: str) -> Callable[[int], MechanismInquiry]:
    """Return what flies the inquiry of a number."""
    return partial(inquired, mechanism, planner)
