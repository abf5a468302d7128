"""Other ways to search, on the same worlds at the same budget.

Baselines: other ways to search, on the same worlds at the same budget; each chooses and claims by its own rule.

Rivals see what runs show, measured on hidden tasks with all its noise, and never the truth. They may even go on with a
run where the shipped screen begins each from nothing. Each pays for every run, the control's included; a run that would
exceed the budget is not begun.

Does not know the programs these rules come from: it is the rule that is rebuilt, at its usual settings, not the code.

A test repeated until it is significant: seed after seed, looked at each time, as nobody should.

One change of one knob after another; control and change get a seed each until Welch's test of all seeds so far says
p < alpha, or the patience is over. What is significant is claimed, and kept where it is better.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean
from typing import Protocol

from simlab.searches import RunBudget, SearchClaim, SearchOutcome
from simlab.worlds import Configuration, Scalar, World

Place = dict[str, Scalar]
Scored = tuple[Configuration, float]


class BaselineSearch(Protocol):
    """One way to search."""

    @property
    def name(self) -> str:
        """How tables name it."""
        ...

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search a world for at most `budget` machine hours; `control` is what there was before."""
        ...


@dataclass(frozen=True)
class RandomSearch:
    """Configurations at random, one whole run each; the highest score wins."""

    name: str = "random"

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search until the budget is spent."""
        bill, places = RunBudget(world, budget, seed), _places(world, random.Random(seed))
        scores = [(control, bill.score(control))]
        for place in places:
            if not bill.affords(place):
                break
            scores.append((place, bill.score(place)))
        return _highest(bill, scores)


@dataclass(frozen=True)
class Tpe:
    """Optuna's TPE at its defaults, one whole run a trial; the highest score wins."""

    name: str = "tpe"

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search until the budget is spent."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else each trial is told of
        bill = RunBudget(world, budget, seed)
        scores = [(control, bill.score(control))]
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed % 2**32))
        while True:
            trial = study.ask()
            place = {name: values[_suggested(trial, name, values)] for name, values in world.knobs.items()}
            if not bill.affords(place):
                return _highest(bill, scores)
            scores.append((place, bill.score(place)))
            study.tell(trial, scores[-1][1])


def _suggested(trial: object, name: str, values: Sequence[Scalar]) -> int:
    suggest = trial.suggest_categorical if isinstance(values[0], str) else None  # type: ignore[attr-defined]
    at: int = suggest(name, range(len(values))) if suggest else trial.suggest_int(name, 0, len(values) - 1)  # type: ignore[attr-defined]
    return at


@dataclass(frozen=True)
class Asha:
    """Asynchronous successive halving (Li et al. 2020, algorithm 2): short runs at random, the best third goes on.

    A run goes on from where it stopped; the highest score among whole runs wins.
    """

    name: str = "asha"
    reduction: int = 3
    rungs: int = 3

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search until the budget is spent, or nothing is left to try."""
        bill, places = RunBudget(world, budget, seed), _places(world, random.Random(seed))
        whole: list[Scored] = [(control, bill.score(control))]
        steps = [math.ceil(world.steps / self.reduction**left) for left in reversed(range(self.rungs))]
        ladder: list[dict[int, float]] = [{} for _ in steps]
        started: list[Place] = []
        while True:
            number, rung = self._next(ladder, len(started))
            place = started[number] if rung else next(places, None)
            if place is None or not bill.affords(place, steps[rung], seed=seed + 1 + number):
                return _highest(bill, whole)
            started += [] if rung else [place]
            ladder[rung][number] = bill.score(place, steps[rung], seed=seed + 1 + number)
            whole += [(place, ladder[rung][number])] if steps[rung] == world.steps else []

    def _next(self, ladder: Sequence[dict[int, float]], started: int) -> tuple[int, int]:
        """Return whom to run next and at which rung: the best third not yet promoted, from the top; else a new one."""
        for rung in reversed(range(len(ladder) - 1)):
            ranked = sorted(ladder[rung], key=lambda number: -ladder[rung][number])
            for number in ranked[: len(ranked) // self.reduction]:
                if number not in ladder[rung + 1]:
                    return number, rung + 1
        return started, 0


@dataclass(frozen=True)
class Greedy:
    """Keep if better (the autoresearch rule): change one knob, run once, keep the change if the score is higher.

    Each change that is kept is claimed to be an improvement.
    """

    name: str = "greedy"

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search until the budget is spent."""
        bill, source = RunBudget(world, budget, seed), random.Random(seed)
        kept, score = dict(control), bill.score(control)
        claims: list[SearchClaim] = []
        while True:
            name = source.choice(list(world.knobs))
            others = [value for value in world.knobs[name] if value != kept[name]]
            tried = {**kept, name: source.choice(others)}
            if not bill.affords(tried):
                return bill.found(kept, claims)
            found = bill.score(tried)
            if found > score:
                claims.append(SearchClaim(tried, kept))
                kept, score = tried, found


@dataclass(frozen=True)
class SingleSeedReader:
    """One run an arm, the higher number is right (the AgentJet rule): one knob's ladder after the other.

    The arms of a knob are the best configuration so far with each other value; every arm above it is claimed.
    """

    name: str = "single seed"

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search, knob after knob and round after round, until the budget is spent."""
        bill = RunBudget(world, budget, seed)
        claims: list[SearchClaim] = []
        best: Scored = (control, bill.score(control))
        for name in cycle(world.knobs):
            here = best
            for value in world.knobs[name]:
                arm = {**here[0], name: value}
                if value == here[0][name]:
                    continue
                if not bill.affords(arm):
                    return bill.found(best[0], claims)
                score = bill.score(arm)
                claims += [SearchClaim(arm, here[0])] if score > here[1] else []
                best = max(best, (arm, score), key=lambda scored: scored[1])
        raise ValueError("expected a world with a knob; found none")


@dataclass(frozen=True)
class EveryArmEverySeed:
    """The classical design: as many arms at random as the budget carries, `seeds` whole runs of each, one analysis.

    Welch's test of each arm against the control, Benjamini-Hochberg at `alpha` (two-sided); arms that hold are claimed.
    The highest mean is chosen.
    """

    name: str = "all arms, all seeds"
    seeds: int = 5
    alpha: float = 0.05
    most_arms: int | None = None

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Run every arm with every seed; nothing where not even the control's fit."""
        bill, places = RunBudget(world, budget, seed), _places(world, random.Random(seed))
        if not bill.affords(control, times=self.seeds):
            return bill.found(control, [])
        values = [(control, self._runs(bill, control, seed))]
        for place in places:
            if len(values) - 1 == self.most_arms or not bill.affords(place, times=self.seeds):
                break
            values.append((place, self._runs(bill, place, seed)))
        chosen = max(values, key=lambda entry: fmean(entry[1]))[0]
        return bill.found(chosen, [SearchClaim(arm, control) for arm in self._above(values)])

    def _runs(self, bill: RunBudget, place: Configuration, seed: int) -> list[float]:
        return [bill.score(place, seed=seed + number) for number in range(self.seeds)]

    def _above(self, values: Sequence[tuple[Configuration, list[float]]]) -> list[Configuration]:
        from scipy import stats

        (_, base), *arms = values
        tests = [stats.ttest_ind(runs, base, equal_var=False) for _, runs in arms]
        if not tests:
            return []
        adjusted = stats.false_discovery_control([test.pvalue if test.pvalue == test.pvalue else 1.0 for test in tests])
        return [
            arm for (arm, runs), p in zip(arms, adjusted, strict=True) if p <= self.alpha and fmean(runs) > fmean(base)
        ]


BASELINES: tuple[BaselineSearch, ...] = (
    RandomSearch(),
    Tpe(),
    Asha(),
    Greedy(),
    SingleSeedReader(),
    EveryArmEverySeed(),
)


def _places(world: World, source: random.Random) -> Iterator[Place]:
    """Yield configurations at random, none twice, until all were had."""
    seen: set[tuple[Scalar, ...]] = set()
    size = math.prod(len(values) for values in world.knobs.values())
    while len(seen) < size:
        drawn = tuple(source.choice(values) for values in world.knobs.values())
        if drawn not in seen:
            seen.add(drawn)
            yield dict(zip(world.knobs, drawn, strict=True))


def _highest(bill: RunBudget, scores: Sequence[Scored]) -> SearchOutcome:
    """Choose the highest score; claim, as is usual, that it beats the control, which was scored first."""
    control = scores[0]
    chosen = max(scores, key=lambda scored: scored[1])
    return bill.found(chosen[0], [SearchClaim(chosen[0], control[0])] if chosen[1] > control[1] else [])


@dataclass(frozen=True)
class UntilSignificant:
    """Tests each change anew with every further pair of seeds, at the full level each time."""

    name: str = "test until significant"
    alpha: float = 0.05
    fewest: int = 2
    most: int = 10
    """Seeds of each arm at which it is looked at first, and at last."""

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search until the budget is spent."""
        bill, source = RunBudget(world, budget, seed), random.Random(seed)
        kept, claims = dict(control), list[SearchClaim]()
        while True:
            name = source.choice(list(world.knobs))
            tried = {**kept, name: source.choice([value for value in world.knobs[name] if value != kept[name]])}
            if not bill.affords(kept) or not bill.affords(tried):
                return bill.found(kept, claims)
            better = self._tested(bill, kept, tried)
            if better is not None:
                claims.append(SearchClaim(tried, kept) if better else SearchClaim(kept, tried))
                kept = tried if better else kept

    def _tested(self, bill: RunBudget, kept: Configuration, tried: Configuration) -> bool | None:
        """Return whether the change is better; None where no look said so before patience or budget were over."""
        from scipy import stats

        old, new = list[float](), list[float]()
        while len(old) < self.most and bill.affords(kept):
            old.append(bill.score(kept))
            if not bill.affords(tried):
                return None
            new.append(bill.score(tried))
            if len(old) >= self.fewest and stats.ttest_ind(new, old, equal_var=False).pvalue < self.alpha:
                return fmean(new) > fmean(old)
        return None
