"""At equal run-hours, does an inquiry of several rounds end nearer the best than other ways to go on, and claim less?

The whole loop, asked by the built-in rules or by a liar, in worlds of every family that has something to gain; beside
it, at the same run-hours, ways that keep what looks better: one run a change, a test repeated until it is significant,
one run an arm, random search, TPE and ASHA. What the loop leads to is the recipe of its study: the job under all arms
with every value that was confirmed; beside it stands what it would lead to by estimates alone, as the rivals choose:
the arm with the highest estimate. A study that is refused for want of budget leads to what there was before.

Regret and false claims are those of `simlab.suites.regret`. The loop pays for its A/A runs as well: no earlier study
told it of the noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from research.design.known_findings import recipe_of
from research.planners.protocol import Planner
from simlab.families import NOTHING, drawn, names
from simlab.planners import InquiringLiar, Pair
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, mean, share, silent, work
from simlab.search_baselines import Asha, BaselineSearch, Greedy, RandomSearch, SingleSeedReader, Tpe, UntilSignificant
from simlab.searches import SearchOutcome, mean_price
from simlab.sim_clock import SimClock
from simlab.sim_records import claims_of, place_of
from simlab.sim_run import Flight, FlightResult, board, resume, rules, scratch
from simlab.suites.regret import SEEDS_APART, MethodResult, Truth
from simlab.worlds import Configuration, MainEffect, Planted, Scalar
from studies.records.statements import control_values

NAME = "rivals"
QUESTION = "At equal run-hours, does an inquiry end nearer the best than other ways to go on, and claim less?"
RUNS = (20, 40, 100)
"""Whole runs, at their mean price, that an inquiry may cost."""
ROUNDS = 12
OURS, LIAR, GUESS = "ajet", "ajet, asked by a liar", "ajet, by estimates"
TOPIC = (
    "What is the best learning rate (1e-4, 3e-4, 1e-3, 3e-3 or 1e-2), group size (4, 8, 16 or 32), epochs (1, 2 or 4) "
    "and clip ratio (0.1, 0.2 or 0.4) on the guessing game?"
)
ENVIRONMENT = "guess"
NOT_ASKED = "normalize_advantage"
"""A knob of the families that the topic does not name: it has no part in these worlds."""
MOST_FALSE = 0.05
RIVALS: tuple[BaselineSearch, ...] = (
    Greedy(), UntilSignificant(), SingleSeedReader(), RandomSearch(), Tpe(), Asha(),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RivalTask:
    """One world to inquire into, and how many whole runs that may cost."""

    family: str
    number: int
    runs: int


@dataclass(frozen=True, slots=True)
class RivalResult:
    """What all ways came to on one world."""

    task: RivalTask
    results: Mapping[str, MethodResult]
    refused: bool
    """Whether the loop refused for want of budget."""
    rounds: int


def tasks(count: int, first: int = 0) -> list[RivalTask]:
    """Return so many worlds at each budget, the families with something to gain in turn."""
    families = [name for name in names() if name != NOTHING]
    worlds = [(families[n % len(families)], n // len(families)) for n in range(first, first + count)]
    return [RivalTask(family, number, runs) for runs in RUNS for family, number in worlds]


def asked(task: RivalTask) -> RivalResult:
    """Let every way inquire into a task's world."""
    world = _world(task)
    budget, truth = task.runs * mean_price(world), Truth(world, world.base)
    ours = _flown(task, world, OURS)
    found = {rival.name: rival.search(world, world.base, budget, SEEDS_APART * task.number) for rival in RIVALS}
    return RivalResult(
        task,
        {
            OURS: ours.result,
            GUESS: ours.guess,
            LIAR: _flown(task, world, LIAR).result,
            **{name: truth.of(name, outcome, budget) for name, outcome in found.items()},
        },
        ours.refused,
        ours.rounds,
    )


@dataclass(frozen=True, slots=True)
class _Flown:
    result: MethodResult
    guess: MethodResult
    """Where estimates alone would have led."""
    refused: bool
    rounds: int


def _world(task: RivalTask) -> Planted:
    """Return a world of a family in which the knob that is not asked for has no part."""
    world = drawn(task.family, task.number)
    effects = tuple(
        effect for effect in world.effects if not (isinstance(effect, MainEffect) and effect.field == NOT_ASKED)
    )
    left = {name: values for name, values in world.knobs.items() if name != NOT_ASKED}
    return replace(world, effects=effects, knobs=left, base={name: world.base[name] for name in left})


def _flown(task: RivalTask, world: Planted, way: str) -> _Flown:
    seconds = task.runs * mean_price(world) * 3600
    flight = Flight(
        f"rivals-{way == LIAR:d}-{task.family}-{task.number}-{task.runs}".replace(" ", "-"),
        TOPIC, world, planner=partial(_liar, tuple(_pairs(world))) if way == LIAR else rules,
        budget_s=seconds / 2, parallel=2, base=dict(world.base), asks={"rounds": ROUNDS},
    )  # fmt: skip
    with scratch() as folder:
        home = board(flight, folder)
        landed = resume(flight, home)
        job = recipe_of(landed.state, home.study(flight.name)).job
    chosen = {**world.base, **{name: job[name] for name in world.knobs if name in job}}
    locked = [each for each in landed.state.rounds if each.design is not None]
    found = [claim for each in locked for claim in claims_of(landed, each) if claim.difference]
    claims = tuple(claim.difference * claim.truth for claim in found)
    result, guess = (
        Truth(world, world.base).of(
            way, SearchOutcome(place, (), landed.run_hours, len(landed.state.every_run)), seconds / 3600
        )
        for place in (chosen, _highest(landed, world))
    )
    return _Flown(replace(result, claims=claims), guess, landed.refused is not None, len(locked))


def _highest(landed: FlightResult, world: Planted) -> Configuration:
    """Return the arm of which most is estimated above where the study began, through the controls in between."""
    known = {_knobs(world.base, world): 0.0}
    for each in (state for state in landed.state.rounds if state.design is not None):
        if each.design is None or each.design.environment != ENVIRONMENT:
            continue
        control = known.get(_knobs(control_values(each.design), world), 0.0)
        for claim in claims_of(landed, each):
            known[_knobs(dict(place_of(landed, claim.hypothesis)), world)] = control + (claim.estimate or 0.0)
    highest = max(known, key=known.__getitem__)
    return dict(highest)


def _knobs(place: Mapping[str, Any], world: Planted) -> tuple[tuple[str, Scalar], ...]:
    return tuple((name, place[name]) for name in world.knobs)


def _liar(pairs: Sequence[Pair], clock: SimClock) -> Planner:
    return InquiringLiar(pairs, ENVIRONMENT)


def _pairs(world: Planted) -> Iterator[Pair]:
    """Yield what the liar wants a claim about: each knob's control value and the far end of its ladder."""
    for name, values in world.knobs.items():
        yield Pair(name, world.base[name], next(value for value in reversed(values) if value != world.base[name]))


def figures(answers: Sequence[RivalResult]) -> list[Measured]:
    """Return, for each budget, regret and false claims of every way, and what the rivals have more of."""
    return [figure for runs in RUNS for figure in _at(runs, [one for one in answers if one.task.runs == runs])]


def _at(runs: int, answers: Sequence[RivalResult]) -> list[Measured]:
    ways = [OURS, GUESS, LIAR, *(rival.name for rival in RIVALS)]
    regrets = {way: [one.results[way].regret or 0.0 for one in answers] for way in ways}
    claims = {way: [gain <= 0 for one in answers for gain in one.results[way].claims] for way in ways}
    any_false = {way: [any(gain <= 0 for gain in one.results[way].claims) for one in answers] for way in ways}
    return [
        *(mean(f"{runs} runs: regret, {way}", regrets[way]) for way in ways),
        *(mean(f"{runs} runs: regret of {rival.name} above that of {OURS}", _above(regrets, rival.name),
               Bar("at least", 0.0)) for rival in RIVALS),
        *(share(f"{runs} runs: false among claims, {way}", claims[way]) for way in ways),
        *(share(f"{runs} runs: inquiries with any false claim, {way}", any_false[way],
                Bar("at most", MOST_FALSE) if way in (OURS, LIAR) else None) for way in ways),
        share(f"{runs} runs: refused for want of budget", [one.refused for one in answers]),
        mean(f"{runs} runs: rounds", [float(one.rounds) for one in answers]),
    ]  # fmt: skip


def _above(regrets: Mapping[str, Sequence[float]], rival: str) -> list[float]:
    return [theirs - own for theirs, own in zip(regrets[rival], regrets[OURS], strict=True)]


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Let every way inquire into `count` worlds at each budget."""
    found = work(NAME, asked, tasks(count), workers=workers, tell=tell)
    return SuiteOutcome(NAME, QUESTION, len(found), figures(found), rows=_rows(found))


def _rows(answers: Sequence[RivalResult]) -> list[Mapping[str, Any]]:
    """Return a row for each budget: the mean regret of every way."""
    found = ((runs, [one for one in answers if one.task.runs == runs]) for runs in RUNS)
    return [
        {
            "runs": runs,
            **{way: round(fmean(one.results[way].regret or 0.0 for one in own), 3) for way in own[0].results},
        }
        for runs, own in found
        if own
    ]
