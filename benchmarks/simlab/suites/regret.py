"""At equal run-hours, who ends nearer the best configuration, whose claims are true, and what does a right answer cost?

Every way searches the same worlds with the same budget. Regret is (best - chosen) / (best - control), by the truth: 0
is the best configuration, 1 no better than before, more is worse than before. A claim is false where what it calls
better is not. A right answer is a chosen configuration that is claimed to beat the control and truly has half or more
of what the best would gain; what one costs is all run-hours of all worlds over the number of right answers.

The classical design is given the arms that the shipped screen would try, each with the seeds of its confirmation, at
whatever that costs (`classical`); beside it stands the same design at the equal budget.

Intervals: Student's t over worlds for regret and for differences paired by world, Clopper-Pearson for shares (claims of
one world are not independent, so that these are somewhat short), the bootstrap over worlds for costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simlab.families import NOTHING, drawn, names
from simlab.landscapes import Recorded
from simlab.landscapes import names as landscapes
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, mean, share, silent, work
from simlab.screens import CONFIRMED, default_screen, default_seeds
from simlab.search_baselines import BASELINES, BaselineSearch, EveryArmEverySeed
from simlab.searches import SearchOutcome, Shipped, mean_price
from simlab.worlds import Configuration, Planted, World, best
from studies.records.procedure import Knob

NAME = "regret"
QUESTION = "At equal run-hours, who ends nearer the best, whose claims are true, and what does a right answer cost?"
RUNS = 40
"""Whole runs, at their mean price, that a search may cost."""
RECORDED = "recorded: "
"""Before the name of a landscape of real trainings, in the place of a family."""
RECORDED_RUNS = (20, 40)
"""Whole runs that a search of a recorded landscape may cost; it has 45 places."""
OURS = Shipped().name
TOLD = "ajet, told that short runs tell"
"""The shipped way where an earlier study found that a quarter of the training ranks as the whole does."""
CLASSICAL = "all arms, all seeds, at its price"
"""The classical design with the arms and seeds of the shipped way, at whatever that costs."""
BEATEN = ("random", "tpe", "asha", "greedy")
"""Ways whose regret ours must be below."""
CARELESS = ("greedy", "single seed")
"""Ways whose claims ours must be far more often true than."""
FAR_BELOW = 0.25
MOST_FALSE = 0.05
MOST_COST = 0.5
"""Share of the classical design's run-hours that a right answer may cost."""
HALF = 0.5
_RESAMPLES = 2000
SEEDS_APART = 100_000_000
"""Between the seeds of two questions."""


@dataclass(frozen=True, slots=True)
class SearchTask:
    """One world to search, and how many whole runs that may cost."""

    family: str
    number: int
    runs: float = RUNS


@dataclass(frozen=True, slots=True)
class MethodResult:
    """What one way came to on one world."""

    way: str
    regret: float | None
    """None in a world where nothing is to be gained."""
    claims: tuple[float, ...]
    """What each claim's difference is in truth."""
    right: bool
    hours: float
    over: bool
    """Whether it spent more than its budget."""


@dataclass(frozen=True, slots=True)
class WorldResult:
    """What all ways came to on one world."""

    question: SearchTask
    results: Mapping[str, MethodResult]


def questions(
    count: int, first: int = 0, *, families: Sequence[str] | None = None, runs: float = RUNS
) -> list[SearchTask]:
    """Return `count` worlds of each family (default: all)."""
    return [SearchTask(family, n, runs) for family in families or names() for n in range(first, first + count)]


def recorded_questions(count: int, first: int = 0, *, runs: float = RECORDED_RUNS[0]) -> list[SearchTask]:
    """Return `count` searches of each recorded landscape that is shipped."""
    return [SearchTask(RECORDED + name, n, runs) for name in landscapes() for n in range(first, first + count)]


def ask(question: SearchTask) -> WorldResult:
    """Let every way search a question's world."""
    if question.family.startswith(RECORDED):
        world: Recorded | Planted = Recorded.load(question.family.removeprefix(RECORDED), question.number)
    else:
        world = drawn(question.family, question.number)
    return searched(question, world, world.base)


def searched(question: SearchTask, world: World, control: Configuration) -> WorldResult:
    """Let every way search a world from its control."""
    budget, seed = question.runs * mean_price(world), SEEDS_APART * question.number
    known = [Shipped(TOLD, telling=world.steps // 4)] if question.family.startswith(RECORDED) else []
    ours = (Shipped(), *known)
    ways: list[tuple[str, BaselineSearch, float]] = [(way.name, way, budget) for way in (*ours, *BASELINES)]
    classical, price = _classical(world, control, question.runs)
    ways.append((CLASSICAL, classical, price))
    truth = Truth(world, control)
    return WorldResult(
        question, {name: truth.of(name, way.search(world, control, own, seed), own) for name, way, own in ways}
    )


def _classical(world: World, control: Configuration, runs: float) -> tuple[EveryArmEverySeed, float]:
    """Return the design that runs every arm that the shipped screen would try with every seed, and its hours."""
    seeds = default_seeds(runs)
    knobs = [Knob(field=name, values=values) for name, values in world.knobs.items()]
    screen = default_screen(knobs, runs, steps=world.steps)
    arms = screen.candidates if screen else CONFIRMED
    dearest = max(world.hours({**control, name: value}) for name in world.knobs for value in world.knobs[name])
    return EveryArmEverySeed(CLASSICAL, seeds, most_arms=arms), 2 * dearest * (1 + arms) * seeds


class Truth:
    """What searches of one world are held against."""

    def __init__(self, world: World, control: Configuration) -> None:
        self._world = world
        self._base, self._best = world.true_value(control), best(world)[1]

    def of(self, name: str, found: SearchOutcome, budget: float) -> MethodResult:
        """Return what a search came to."""
        claims = tuple(claim.gain(self._world) for claim in found.claims)
        gain, possible = self._world.true_value(found.chosen) - self._base, self._best - self._base
        claimed = any(claim.better == found.chosen for claim in found.claims)
        right = claimed and possible > 0 and gain >= HALF * possible
        regret = 1 - gain / possible if possible > 0 else None
        return MethodResult(name, regret, claims, right, found.hours, found.hours > budget * (1 + 1e-6))


def figures(answers: Sequence[WorldResult]) -> list[Measured]:
    """Return what all searches amount to, with their bars."""
    ways = list(answers[0].results) if answers else []
    told = [way for way in ways if way == TOLD]
    false = {way: _false(answers, way) for way in ways}
    careless = min((false[way].value or 0.0 for way in CARELESS if way in false), default=0.0)
    return [
        *(mean(f"regret, {way}", _regrets(answers, way)) for way in ways),
        *(_difference(answers, way) for way in BEATEN),
        *(_difference(answers, way, ours) for ours in told for way in BEATEN),
        *(_false(answers, way, Bar("at most", MOST_FALSE) if way == OURS else None) for way in ways),
        Measured("false among claims, ajet, against a quarter of the more careful of greedy and single seed",
               false[OURS].value if answers else None, bar=Bar("at most", FAR_BELOW * careless)),
        *(_cost(answers, way) for way in ways),
        _cheaper(answers, CLASSICAL, Bar("at most", MOST_COST)),
        _cheaper(answers, EveryArmEverySeed().name),
        share("searches beyond their budget", [o.over for a in answers for o in a.results.values()],
              Bar("at most", 0.0)),
    ]  # fmt: skip


def family_figures(answers: Sequence[WorldResult]) -> dict[str, list[Measured]]:
    """Return, for each family, regret by way and what ours lacks of each rival it must beat."""
    found: dict[str, list[Measured]] = {}
    for family in dict.fromkeys(answer.question.family for answer in answers):
        of = [answer for answer in answers if answer.question.family == family]
        ways = list(of[0].results)
        regret = [] if family == NOTHING else [mean(f"regret, {way}", _regrets(of, way)) for way in ways]
        beaten = [] if family == NOTHING else [_difference(of, way) for way in BEATEN]
        found[family] = [*regret, *beaten, *(_false(of, way) for way in ways)]
    return found


def _regrets(answers: Sequence[WorldResult], way: str) -> list[float]:
    regrets = (answer.results[way].regret for answer in answers)
    return [regret for regret in regrets if regret is not None]


def _difference(answers: Sequence[WorldResult], way: str, ours: str = OURS) -> Measured:
    """Return how much more regret a rival has, paired by world."""
    pairs = zip(_regrets(answers, way), _regrets(answers, ours), strict=True)
    return mean(f"regret of {way} above that of {ours}", [rival - own for rival, own in pairs], Bar("at least", 0.0))


def _false(answers: Sequence[WorldResult], way: str, bar: Bar | None = None) -> Measured:
    claims = [gain for answer in answers for gain in answer.results[way].claims]
    return share(f"false among claims, {way}", [gain <= 1e-12 for gain in claims], bar)


def _hopeful(answers: Sequence[WorldResult]) -> list[WorldResult]:
    """Return the worlds in which there is a right answer that claims something."""
    return [answer for answer in answers if answer.question.family != NOTHING]


def _cost(answers: Sequence[WorldResult], way: str) -> Measured:
    """Return the run-hours of a right answer."""
    return _bootstrapped(f"run-hours of a right answer, {way}", _hopeful(answers), lambda rows: _hours(rows, way))


def _cheaper(answers: Sequence[WorldResult], way: str, bar: Bar | None = None) -> Measured:
    """Return what a right answer costs, as a share of what it costs another way."""

    def ratio(rows: Any) -> float | None:
        ours, other = _hours(rows, OURS), _hours(rows, way)
        return None if ours is None or other is None else ours / other

    return _bootstrapped(f"cost of a right answer, as a share of: {way}", _hopeful(answers), ratio, bar)


def _hours(answers: Sequence[WorldResult], way: str) -> float | None:
    found = [answer.results[way] for answer in answers]
    right = sum(outcome.right for outcome in found)
    return sum(outcome.hours for outcome in found) / right if right else None


def _bootstrapped(
    name: str,
    answers: Sequence[WorldResult],
    figure: Callable[[Sequence[WorldResult]], float | None],
    bar: Bar | None = None,
) -> Measured:
    """Return a figure of all worlds with the percentile interval of its bootstrap over them."""
    import numpy as np

    value = figure(answers) if answers else None
    if value is None:
        return Measured(name, None, bar=bar, percent=False, of=len(answers))
    random = np.random.default_rng(0)
    drawn_again = ([answers[at] for at in random.integers(0, len(answers), len(answers))] for _ in range(_RESAMPLES))
    found = [again for rows in drawn_again if (again := figure(rows)) is not None]
    low, high = np.quantile(found, (0.025, 0.975)).tolist()
    return Measured(name, value, low, high, None, len(answers), bar, percent=False)


def measure(
    count: int,
    recorded: int = 0,
    *,
    families: Sequence[str] | None = None,
    workers: int = 1,
    tell: Progress = silent,
) -> SuiteOutcome:
    """Search `count` worlds of each family, and each recorded landscape `recorded` times a budget, in every way."""
    planted = work(NAME, ask, questions(count, families=families), workers=workers, tell=tell)
    found, told, asked = family_figures(planted), figures(planted), len(planted)
    for runs in RECORDED_RUNS if recorded else ():
        wanted = recorded_questions(recorded, runs=runs)
        real = work(f"{NAME}, recorded, {runs} runs", ask, wanted, workers=workers, tell=tell)
        found |= {f"{family}, {runs} runs": own for family, own in family_figures(real).items()}
        told += [replace(figure, name=f"recorded trainings, {runs} runs: {figure.name}") for figure in figures(real)]
        asked += len(real)
    return SuiteOutcome(
        NAME, QUESTION, asked, told, rows=[_row(family, own) for family, own in found.items()],
        series={family: _ends(own) for family, own in found.items()},
    )  # fmt: skip


def _row(family: str, own: Sequence[Measured]) -> dict[str, Any]:
    """Return a family's line: regret by way, and how many of our claims were false."""
    regret = {f.name.removeprefix("regret, "): f.value for f in own if f.name.startswith("regret, ")}
    false = next(figure for figure in own if figure.name == f"false among claims, {OURS}")
    shown = {way: None if value is None else round(value, 3) for way, value in regret.items()}
    return {"family": family, **shown, "false claims of ours": f"{false.count} of {false.of}"}


def _ends(own: Sequence[Measured]) -> dict[str, Any]:
    """Return a family's mean regret by way with the ends of its interval, to be drawn."""
    regrets = {f.name.removeprefix("regret, "): f for f in own if f.name.startswith("regret, ")}
    return {way: [figure.value, figure.low, figure.high] for way, figure in regrets.items()}
