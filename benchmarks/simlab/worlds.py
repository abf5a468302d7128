"""Worlds with a planted truth, and the topics on them.

The planted truth: what each configuration is really worth, and what a run of it therefore comes to.

Promises. Everything is a pure function of the world, the configuration, the run's seed and its steps: the same run
always ends the same, in any process. `true_value` is the mean of `run(...).hidden` over seeds, collapses included, and
`kept_value` that of the runs that do not collapse, as long as no run's success is cut off at `LEAST` or `MOST`; worlds
are made so that this is rare.

Does not know. It is no model of reinforcement learning: shapes are planted so that a search or a test can be scored,
and say nothing about which knob matters in real training.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from statistics import NormalDist, fmean, pstdev
from typing import Any, Literal, Protocol

from research.proposals.arms import value_text
from studies.records.verdict import Scope
from swarm.job import tunables

Scalar = bool | int | float | str
Configuration = Mapping[str, Scalar]
"""Values of job fields; a field that is left out has the world's base value. `seed` and `steps` are no part of it."""

LEAST, MOST = 0.02, 0.98
"""Bounds of a run's success rate before it is evaluated."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Played:
    """What one run came to, as it was measured: shares of solved episodes, evaluation noise included."""

    initial: float
    search: float
    hidden: float
    collapsed: bool = False
    peak: float | None = None
    """Success that a collapsed run had reached before; None for one that did not collapse."""


class World(Protocol):
    """A truth that studies and searches are scored on."""

    @property
    def knobs(self) -> Mapping[str, tuple[Scalar, ...]]:
        """What may be varied, each with its values."""
        ...

    @property
    def steps(self) -> int:
        """Training steps of a whole run."""
        ...

    def true_value(self, configuration: Configuration, scope: Scope = "all", *, missed: bool = False) -> float:
        """Return the mean hidden success of a configuration's whole runs, of those that a verdict's scope names.

        `missed`: one was seen that did not start, so that a scope of those that start speaks of all of its arm.
        """
        ...

    def run(self, configuration: Configuration, seed: int, steps: int | None = None) -> Played:
        """Return what the run of a configuration with a seed comes to after `steps` (default: all)."""
        ...

    def seconds(self, configuration: Configuration, steps: int, neighbours: int = 0) -> float:
        """Return the wall time of one run beside so many others."""
        ...


def risen(share: float) -> float:
    """Return the part of its rise that a training has behind it after a share of its steps."""
    return (1 - math.exp(-3 * share)) / (1 - math.exp(-3))


def grid(world: World) -> tuple[dict[str, Scalar], ...]:
    """Return every configuration of a world's knobs."""
    names = tuple(world.knobs)
    return tuple(dict(zip(names, values, strict=True)) for values in product(*world.knobs.values()))


def best(world: World) -> tuple[dict[str, Scalar], float]:
    """Return the best configuration of the grid and its true value."""
    return max(((place, world.true_value(place)) for place in grid(world)), key=lambda found: found[1])


def scale(value: Scalar) -> float:
    """Return a number on the scale of doublings, 0 (of a penalty, say) far below them; a switch is 0 or 1."""
    if isinstance(value, str):
        raise ValueError(f"expected a number; found the word {value!r}, which has no place on a scale; use a Table")
    if isinstance(value, bool):
        return float(value)
    return math.log2(value) if value > 0 else -20.0


@dataclass(frozen=True, slots=True)
class MainEffect:
    """A main effect: so much for each value of a field, 0 for values not named."""

    field: str
    shifts: Mapping[Scalar, float]

    def at(self, configuration: Configuration) -> float:
        """Return its share of the mean success."""
        return self.shifts.get(configuration[self.field], 0.0)


@dataclass(frozen=True, slots=True)
class Slope:
    """A main effect along the doublings of a field, 0 at `centre`."""

    field: str
    per_doubling: float
    centre: float

    def at(self, configuration: Configuration) -> float:
        """Return its share of the mean success."""
        return self.per_doubling * (scale(configuration[self.field]) - scale(self.centre))


@dataclass(frozen=True, slots=True)
class Hill:
    """A U-shape upside down: `depth` is lost a doubling away from `best`, four times as much two doublings away."""

    field: str
    best: float
    depth: float

    def at(self, configuration: Configuration) -> float:
        """Return its share of the mean success."""
        return -self.depth * (scale(configuration[self.field]) - scale(self.best)) ** 2


@dataclass(frozen=True, slots=True)
class Threshold:
    """An effect that is there from a value on."""

    field: str
    at_least: float
    shift: float

    def at(self, configuration: Configuration) -> float:
        """Return its share of the mean success."""
        return self.shift if scale(configuration[self.field]) >= scale(self.at_least) else 0.0


@dataclass(frozen=True, slots=True)
class Interaction:
    """What two fields do together: `strength` a doubling of the one times a doubling of the other."""

    fields: tuple[str, str]
    strength: float
    centres: tuple[float, float]

    def at(self, configuration: Configuration) -> float:
        """Return its share of the mean success."""
        first, second = (
            scale(configuration[name]) - scale(centre) for name, centre in zip(self.fields, self.centres, strict=True)
        )
        return self.strength * first * second


@dataclass(frozen=True, slots=True)
class JointEffect:
    """What two settings give only together."""

    settings: Mapping[str, Scalar]
    shift: float

    def at(self, configuration: Configuration) -> float:
        """Return its share of the mean success."""
        return self.shift if all(configuration[name] == value for name, value in self.settings.items()) else 0.0


Effect = MainEffect | Slope | Hill | Threshold | Interaction | JointEffect


@dataclass(frozen=True, slots=True)
class Collapse:
    """A training that breaks down with some probability."""

    probability: float
    """In every configuration."""
    more: Effect | None = None
    """What a configuration adds to it."""
    floor: float = 0.05
    """Success of a collapsed run."""
    lost: tuple[float, float] | None = None
    """Bounds of the share of its own gain that a collapsed run loses, any share in between alike, in place of a fall to
    `floor`."""

    def chance(self, configuration: Configuration) -> float:
        """Return the probability that a run of this configuration collapses."""
        return self.probability + (self.more.at(configuration) if self.more else 0.0)

    def end(self, reached: float, initial: float, draw: float) -> float:
        """Return where a run ends that had reached so much; `draw`, from 0 to 1, says how much it loses."""
        if self.lost is None:
            return self.floor
        least, most = self.lost
        return initial + (1 - least - (most - least) * draw) * (reached - initial)


@dataclass(frozen=True)
class Planted:
    """A world of simulated training."""

    seed: int
    knobs: Mapping[str, tuple[Scalar, ...]]
    base: Configuration
    """The value of each knob where nothing is said; every knob is named."""
    effects: tuple[Effect, ...] = ()
    centre: float = 0.45
    """Mean success of the base configuration, effects aside."""
    initial: float = 0.2
    """Success before training."""
    seed_sd: float = 0.04
    """Standard deviation of a run's success between seeds, evaluation aside."""
    tails: Literal["normal", "t3", "skewed"] = "normal"
    """Distribution of a run's success between seeds; `t3` is Student's t with 3 degrees of freedom, scaled; `skewed` a
    lognormal with its tail downwards, but for the base's."""
    louder: Effect | None = None
    """Where seeds matter more: by how much of `seed_sd` (1: twice as loud)."""
    pairing: float = 0.0
    """Correlation of two configurations' runs with one seed; a negative one is that of the base with any other."""
    episodes: int = 512
    """Hidden episodes of an evaluation."""
    search_episodes: int = 256
    difficulty: float = 0.5
    """Spread of difficulty between hidden tasks, 0 (none) to 1; their mean is the run's success whatever it is."""
    collapse: Collapse = field(default_factory=lambda: Collapse(0.0))
    stuck: Effect | None = None
    """Probability of a training that stays where it began, by its configuration."""
    steps: int = 40
    rung_correlation: float = 1.0
    """Correlation over configurations of the mean after very few steps with the mean of whole runs."""
    seconds_per_step: float = 2.0
    startup_s: float = 10.0
    crowding: float = 0.0
    """Share by which each neighbour on the machine slows a step."""

    def true_value(self, configuration: Configuration, scope: Scope = "all", *, missed: bool = False) -> float:
        """Return the mean hidden success of the whole runs that a scope names."""
        place = self.place(configuration)
        mean, chance = self._mean(place), self.collapse.chance(place)
        stuck = self._stuck(place) if missed or "started" not in scope else 0.0
        lost = 0.0 if "not_collapsed" in scope else (1 - stuck) * chance
        whole = stuck * self.initial + (1 - stuck) * (1 - chance) * mean
        return (whole + lost * self.collapse.end(mean, self.initial, 0.5)) / (stuck + (1 - stuck) * (1 - chance) + lost)

    def run(self, configuration: Configuration, seed: int, steps: int | None = None) -> Played:
        """Return what a run comes to after `steps` (default: all of them)."""
        steps = self.steps if steps is None else steps
        success, run = self.success(configuration, seed, steps), (seed, self._name(configuration))
        collapsed = self.collapsed(configuration, seed)
        return Played(
            initial=self._measured(self.initial, self.episodes, ("initial", *run)),
            search=self._measured(success, self.search_episodes, ("search", *run, steps)),
            hidden=self._measured(success, self.episodes, ("hidden", *run, steps)),
            collapsed=collapsed,
            peak=self._reached(configuration, seed, steps) if collapsed else None,
        )

    def seconds(self, configuration: Configuration, steps: int, neighbours: int = 0) -> float:
        """Return the wall time of a run beside so many others."""
        return self.startup_s + steps * self.seconds_per_step * (1 + self.crowding * neighbours)

    def success(self, configuration: Configuration, seed: int, steps: int) -> float:
        """Return a run's own success rate after `steps`: what an endless evaluation of it would measure."""
        if self.uniform("stuck", seed, self._name(configuration)) < self._stuck(self.place(configuration)):
            return self.initial
        reached = self._reached(configuration, seed, steps)
        if not self.collapsed(configuration, seed):
            return reached
        return self.collapse.end(reached, self.initial, self.uniform("lost", seed, self._name(configuration)))

    def collapsed(self, configuration: Configuration, seed: int) -> bool:
        """Return whether a run collapses."""
        place = self.place(configuration)
        if self.uniform("stuck", seed, self._name(place)) < self._stuck(place):
            return False
        return self.uniform("collapse", seed, self._name(place)) < self.collapse.chance(place)

    def place(self, configuration: Configuration) -> dict[str, Scalar]:
        """Return the configuration with every knob, and nothing else."""
        return {name: configuration.get(name, self.base[name]) for name in self.knobs}

    def outcomes(self, success: float, episodes: int, label: Sequence[object]) -> list[bool]:
        """Return which episodes of an evaluation are solved; the same tasks are hard whatever is evaluated."""
        import numpy as np

        slopes = np.linspace(-self.difficulty, self.difficulty, episodes)
        chances = success + success * (1 - success) * slopes
        draws = np.random.Generator(np.random.PCG64(self._bits("episodes", *label)))
        solved: list[bool] = (draws.random(episodes) < chances).tolist()
        return solved

    def uniform(self, *label: object) -> float:
        """Return a number in (0, 1) that is this world's for a label."""
        return ((self._bits(*label) >> 11) + 0.5) / 2**53

    def _reached(self, configuration: Configuration, seed: int, steps: int) -> float:
        """Return a run's success after `steps` if it does not collapse."""
        place = self.place(configuration)
        shared, own = self._normal("pair", seed), self._normal("seed", seed, self._name(place))
        sign = -1 if self.pairing < 0 and place != self.place({}) else 1
        noise = sign * math.sqrt(abs(self.pairing)) * shared + math.sqrt(1 - abs(self.pairing)) * own
        loudness = self.seed_sd * (1 + (self.louder.at(place) if self.louder else 0.0))
        # t scaled to a variance of 1 is normal / sqrt(chi square / 3) / sqrt(3); runs of one seed share the divisor, so
        # that they keep their correlation
        squares = (self._normal("tail", part, seed) ** 2 for part in range(3))
        narrow = math.sqrt(sum(squares)) if self.tails == "t3" else 1.0
        if self.tails == "skewed" and place != self.place({}):
            noise = (math.exp(0.5) - math.exp(noise)) / math.sqrt(math.exp(2) - math.exp(1))
        return min(MOST, max(LEAST, self._mean_after(place, steps) + loudness * noise / narrow))

    def _stuck(self, place: Configuration) -> float:
        return self.stuck.at(place) if self.stuck else 0.0

    def _mean(self, place: Configuration) -> float:
        return self.centre + sum(effect.at(place) for effect in self.effects)

    def _mean_after(self, place: Configuration, steps: int) -> float:
        """Return the mean over seeds after `steps`: quick learners are ahead early, by what correlation leaves open."""
        share = steps / self.steps
        kept = min(1.0, self.rung_correlation + (1 - self.rung_correlation) * share)
        middle, spread = self._middle
        trait = math.sqrt(max(0.0, 1 - kept**2)) * spread * self._normal("trait", self._name(place))
        whole = middle + kept * (self._mean(place) - middle) + trait if share < 1 else self._mean(place)
        return self.initial + risen(share) * (whole - self.initial)

    @cached_property
    def _middle(self) -> tuple[float, float]:
        """Mean and spread of the true means over the grid."""
        if self.rung_correlation >= 1:
            return self.centre, 0.0
        means = [self._mean(place) for place in grid(self)]
        return fmean(means), pstdev(means)

    def _measured(self, success: float, episodes: int, label: Sequence[object]) -> float:
        return sum(self.outcomes(success, episodes, label)) / episodes

    def _name(self, configuration: Configuration) -> str:
        return repr(sorted(self.place(configuration).items()))

    def _normal(self, *label: object) -> float:
        return _NORMAL.inv_cdf(self.uniform(*label))

    def _bits(self, *label: object) -> int:
        text = repr((self.seed, *label)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


ENVIRONMENT = "the guessing game"


@dataclass(frozen=True, slots=True)
class ComparisonTopic:
    """A comparison somebody asks about."""

    field: str
    values: tuple[Scalar, ...]
    """The control first."""

    @property
    def topic(self) -> str:
        """The question, in words."""
        name = tunables()[self.field].synonyms[0]
        return f"{name} {' vs '.join(value_text(value) for value in self.values)} on {ENVIRONMENT}"

    @property
    def knobs(self) -> dict[str, tuple[Scalar, ...]]:
        """The field with its values."""
        return {self.field: self.values}

    @property
    def base(self) -> dict[str, Scalar]:
        """The control value."""
        return {self.field: self.values[0]}

    def planted(self, seed: int, effect: float = 0.0, **others: Any) -> Planted:
        """Return a world with this field alone, in which its last value differs from all others by an effect."""
        effects = (MainEffect(self.field, {self.values[-1]: effect}),) if effect else ()
        return Planted(seed, self.knobs, self.base, effects, **others)


ASKS: Sequence[ComparisonTopic] = (
    ComparisonTopic("group_size", (8, 16)),
    ComparisonTopic("group_size", (4, 8, 16)),
    ComparisonTopic("learning_rate", (1e-3, 3e-3)),
    ComparisonTopic("learning_rate", (3e-4, 1e-3, 3e-3)),
    ComparisonTopic("temperature", (1.0, 0.7)),
    ComparisonTopic("temperature", (1.0, 0.7, 1.3)),
    ComparisonTopic("epochs", (1, 2)),
    ComparisonTopic("epochs", (1, 2, 4)),
    ComparisonTopic("kl_coef", (0.0, 0.1)),
    ComparisonTopic("entropy_coef", (0.0, 0.01)),
    ComparisonTopic("minibatches", (1, 4)),
    ComparisonTopic("clip_ratio", (0.1, 0.2, 0.4)),
)
"""What suites ask about, in turn."""
PAIRS = tuple(ask for ask in ASKS if len(ask.values) == 2)
