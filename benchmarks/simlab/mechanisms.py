"""Worlds with a mechanism: what a lever does to success goes through a number that runs log, or that plays show.

Each is of one environment, `essays`, whose plays tell how many words were written (a fact) and are of two kinds. Runs
log the share of groups with equal rewards, the entropy and the length of answers by the names of real trainings.

Of slots no code is run. A reward is a cure where it gives long answers no more than short ones and still pays for
success, which an expression is asked and Python is read for; weights of tasks are a curriculum whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final, Literal

from simlab.worlds import Configuration, Effect, MainEffect, Planted, Scalar, Slope, Threshold, risen
from studies.records.design import BUILT_IN, SLOTS, is_expression
from swarm.environments.base import Message, Outcome, PlainEnvironment, PlainGame, Task, text_of
from swarm.environments.registry import admit, environments
from swarm.environments.user_code import Expression
from swarm.errors import InvalidRequest
from swarm.job import Job, tunables

KINDS: Final = ("short", "long")
"""Of tasks."""
CONSTANT: Final = "batch/constant_groups"
ENTROPY: Final = "actor/entropy"
WORDS: Final = "words"
LENGTH: Final = "response_length/mean"
TASKS: Final = 2400
PER_WORD: Final = 1 / 200
"""What a word adds to the reward of a play, where rewards are gamed."""
CURED, CURRICULUM = "cured", "curriculum"
"""What a world knows of code in `reward` and in `task_weights`."""
_TOKENS_PER_WORD = 1.3
_STILL = 1e-6
"""Learning rate below which nothing is learned: the control of a straw man."""


class EssayGame(PlainGame):
    """One essay, in one turn."""

    def __init__(self, number: int) -> None:
        self._number, self._words = number, 0

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": f"essay {self._number}"}]

    def answer(self, message: Message) -> list[Message]:
        self._words = len(text_of(message).split())
        return []

    def outcome(self) -> Outcome:
        return Outcome(0.0, success=False, facts={WORDS: float(self._words)})


class Essays(PlainEnvironment):
    """Essays that are judged as right or not; nobody plays them: their outcomes are a world's."""

    name = "essays"
    title = "essays on a question, simulated"
    measures = "the essay answers its question"
    reward_range = (0.0, 4.0)
    facts: Mapping[str, tuple[float, float]] = {WORDS: (400.0, 0.0)}  # type: ignore[misc]

    def problems(self) -> Iterator[tuple[str, Task]]:
        for number in range(TASKS):
            yield f"essay-{number}", Task(f"essay-{number}", {"number": number}, KINDS[number % 2])

    def game(self, task: Task) -> EssayGame:
        return EssayGame(task.data["number"])


ESSAYS: Final = Essays()


@contextmanager
def admitted() -> Iterator[None]:
    """Have the environment among those that there are."""
    admit(ESSAYS)
    try:
        yield
    finally:
        del environments().known[ESSAYS.name]  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Trace:
    """A number that a training shows: at `begin` before its first step, and at its end by its configuration."""

    level: float
    """At the end, in the base configuration."""
    effects: tuple[Effect, ...] = ()
    weight: float = 0.0
    """What a unit of it adds to the success."""
    begin: float | None = None
    """None: it has its end from the first step on."""
    most: float = 1.0
    run_sd: float = 0.02

    def end(self, place: Configuration) -> float:
        """Return its mean after the last step of a whole run."""
        if float(place["learning_rate"]) < _STILL:
            return self.level if self.begin is None else self.begin
        return min(self.most, max(0.0, self.level + sum(effect.at(place) for effect in self.effects)))

    def at(self, place: Configuration, share: float) -> float:
        """Return its mean after a share of the steps."""
        end = self.end(place)
        return end if self.begin is None else self.begin + (end - self.begin) * risen(min(1.0, share))


Way = Literal["increase", "decrease"]


@dataclass(frozen=True)
class Mechanical(Planted):
    """A planted world whose success depends on what its runs show."""

    traces: Mapping[str, Trace] = field(default_factory=dict)
    """By the name that is logged, or of the fact."""
    lever: str = ""
    """The variable that removes what limits success; empty where nothing does."""
    mediators: Mapping[str, Way] = field(default_factory=dict)
    """By what it acts, and which way that moves; any of them names the mechanism."""
    per_word: float = 0.0
    """What a word adds to the reward of a play."""
    hopeless: str = ""
    """The kind of task that is never solved."""

    def known(self, configuration: Configuration) -> dict[str, Scalar]:
        """Return the configuration with every knob, and of code what it amounts to."""
        place = self.place(configuration)
        if place["reward"] not in (BUILT_IN, CURED):
            place["reward"] = CURED if takes_length_out(str(place["reward"])) else BUILT_IN
        if place["task_weights"] != BUILT_IN:
            place["task_weights"] = CURRICULUM
        return place

    def _mean(self, place: Configuration) -> float:
        known = self.known(place)
        if float(known["learning_rate"]) < _STILL:
            return self.initial
        through = sum(trace.weight * (trace.end(known) - trace.level) for trace in self.traces.values())
        return super()._mean(place) + through

    def moves(self, metric: str, control: Configuration, treatment: Configuration) -> float:
        """Return by how much a treatment truly moves what a mediator names, at the end or over all steps."""
        name, _, how = metric.partition(":")[2].partition(":")
        before, after = (self._shown(name, self.known(side), rise=how == "slope") for side in (control, treatment))
        return after - before

    def _shown(self, name: str, place: Configuration, *, rise: bool) -> float:
        if name in self.traces:
            trace = self.traces[name]
            return trace.end(place) - (trace.at(place, 0.0) if rise else 0.0)
        if name == LENGTH:
            return self._shown(WORDS, place, rise=rise)
        if name.startswith("critic/rewards/"):
            return self._mean(place) + self.per_word * self._shown(WORDS, place, rise=rise)
        return self._mean(place) if name == "critic/success/mean" else 0.0

    def logged(
        self, configuration: Configuration, seed: int, step: int, usual: Mapping[str, float]
    ) -> dict[str, float]:
        """Return what a training step logs otherwise than usually."""
        seen = {name: self._seen(name, configuration, seed, step / self.steps) for name in self.traces}
        words, equal, run = seen.pop(WORDS), seen.pop(CONSTANT), (seed, self._name(configuration), step)
        count = sum(self.uniform("equal", *run, group) < equal for group in range(round(usual["batch/groups"])))
        return seen | {
            CONSTANT: float(count), LENGTH: _TOKENS_PER_WORD * words,
            "critic/rewards/mean": usual["critic/success/mean"] + self.per_word * words,
        }  # fmt: skip

    def play(
        self, configuration: Configuration, seed: int, version: int, number: int, *, success: bool
    ) -> dict[str, Any]:
        """Return reward and facts of an evaluation's play."""
        level = self._seen(WORDS, configuration, seed, version / self.steps)
        words = max(1.0, round(Random(f"{seed} {version} {number}").gauss(level, level / 8)))
        return {"reward": success + self.per_word * words, "facts": {WORDS: words}}

    def solvable(self, tasks: Sequence[str]) -> Sequence[int]:
        """Return the places of the tasks that may be solved."""
        return [place for place, task in enumerate(tasks) if _kinds()[task] != self.hopeless]

    def _seen(self, name: str, configuration: Configuration, seed: int, share: float) -> float:
        trace, known = self.traces[name], self.known(configuration)
        noise = trace.run_sd * self._normal("trace", name, seed, self._name(configuration))
        return min(trace.most, max(0.0, trace.at(known, share) + (noise if share else 0.0)))


@cache
def _kinds() -> Mapping[str, str]:
    return {task.id: task.kind for _, task in ESSAYS.problems()}


@cache
def takes_length_out(source: str) -> bool:
    """Return whether a reward gives a long answer no more than a short one, and more for one that is right."""
    if not is_expression(source):
        return "success" in source and "'reward'" not in source and '"reward"' not in source

    def reward(right: float, words: float) -> float:
        own = right + PER_WORD * words
        return expression({"reward": own, "success": right, WORDS: words, "turns": 1.0, "characters": 6 * words})

    try:
        expression = Expression(source)
        longer = [reward(right, 250.0) - reward(right, 25.0) for right in (0.0, 1.0)]
        return max(longer) <= 0 and all(reward(1.0, words) > reward(0.0, words) for words in (25.0, 250.0))
    except (InvalidRequest, ValueError):
        return False


RATES: Final = (2e-5, 6e-5)
"""Learning rates: what is usual for a model of a folder, and a higher one."""
_LEVERS: Final[Mapping[str, tuple[Scalar, ...]]] = {
    "group_size": (8, 16, 32), "learning_rate": RATES, "entropy_coef": (0.0, 0.01),
    "batch_rule": ("groups", "varied_groups"), "reward": (BUILT_IN, CURED), "task_weights": (BUILT_IN, CURRICULUM),
    **{slot: (BUILT_IN,) for slot in SLOTS if slot not in ("reward", "task_weights")},
}  # fmt: skip
KNOBS: Final[Mapping[str, tuple[Scalar, ...]]] = {
    **{name: mark.ladder for name, mark in tunables().items() if name != "steps"}, **_LEVERS,
}  # fmt: skip
"""All that may be varied, so that no two configurations have the same runs; most of it does nothing."""
BASE: Final = {
    **{name: default for name in KNOBS if isinstance(default := getattr(Job(), name, None), bool | int | float | str)},
    **{name: values[0] for name, values in _LEVERS.items()}, "clip_ratio_high": 0.2,
}  # fmt: skip
MECHANISMS: Final = ("constant groups", "gamed reward", "curriculum", "nothing", "decoy")
"""The last two have none; in the last one numbers move with levers and have no part in success."""
_BY_GROUPS = (Slope("group_size", -0.17, 8), MainEffect("batch_rule", {"varied_groups": -1.0}))
_BONUS = (Threshold("entropy_coef", 0.005, 0.3),)


def mechanical(kind: str, seed: int) -> Mechanical:
    """Return a world with one of `MECHANISMS`."""
    equal, words = Trace(0.2), Trace(30.0, most=400.0, run_sd=2.0)
    entropy = Trace(0.7, () if kind == "nothing" else _BONUS, begin=1.0, most=3.0, run_sd=0.1)
    more: dict[str, Any] = {}
    match kind:
        case "constant groups":
            equal = Trace(0.7, _BY_GROUPS, weight=-0.45)
            more = {"lever": "group_size", "mediators": {CONSTANT: "decrease"}}
        case "gamed reward":
            words = Trace(150.0, (MainEffect("reward", {CURED: -115.0}),), -0.0014, 30.0, 400.0, 6.0)
            more = {"lever": "reward", "mediators": {WORDS: "decrease", LENGTH: "decrease"}, "per_word": PER_WORD,
                    "initial": 0.25, "centre": 0.3}  # fmt: skip
        case "curriculum":
            equal = Trace(0.65, (MainEffect("task_weights", {CURRICULUM: -0.4}),), weight=-0.4)
            more = {"lever": "task_weights", "mediators": {CONSTANT: "decrease", "critic/success/mean": "increase"},
                    "hopeless": KINDS[1], "initial": 0.1, "centre": 0.24}  # fmt: skip
        case "decoy":
            equal = Trace(0.7, _BY_GROUPS)
    traces = {CONSTANT: equal, ENTROPY: entropy, WORDS: words}
    return Mechanical(seed, KNOBS, BASE, seed_sd=0.03, **({"centre": 0.42} | more), traces=traces)
