"""Landscapes of real trainings, as worlds.

Recorded landscapes: what real trainings of the tiny model came to at every place of a grid, with several seeds.

Promises: every number is a count from a training that was run (`benchmarks/landscape.py` records and packs them); the
grid is whole, each configuration with every seed, or the file is refused; nothing is interpolated, smoothed or drawn
at random. The hidden tasks are those of a claim; the search tasks, played at the rungs, are what a search may look at.

Does not know any search, nor what lies between the grid's values. The best is the best that was recorded: the highest
of many noisy means, so that it flatters itself by what `noise` and the number of seeds allow. The seeds of all
configurations are the same ones, and part of the noise is common to all trainings of a seed (the order of tasks, much
of the sampling): differences within a seed are less noisy than those across.

A recorded landscape as a world: real trainings, drawn again, so that a search has a known best that nobody planted.

A run is one of the recorded runs of its configuration, which one by the run's seed; the truth is their mean. So noise
is the real one, of as many seeds as were recorded, and the best is the best of what was recorded.

Does not know hidden scores before the last step: a shorter run shows the search tasks in their place, and what it had
at the last recorded rung that it passed.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from statistics import correlation, fmean, variance
from typing import Any

from research.proposals.arms import Scalar
from simlab.worlds import Played
from swarm.job import Job

FORMAT = 1
SUFFIX = ".json.gz"
FOLDER = "landscape_data"

Configuration = Mapping[str, Scalar]
"""A value for each knob."""
_Place = tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One training: how many tasks were solved, each played once, and what it cost."""

    before: int
    """Hidden tasks solved by the initial model."""
    after: int
    """Hidden tasks solved after the last step."""
    search: tuple[int, ...]
    """Search tasks solved at each rung."""
    train: tuple[int, ...]
    """Training episodes solved in each step."""
    seconds: float
    """CPU seconds of the training with all these plays, on the machine that recorded it."""


@dataclass(frozen=True, slots=True)
class Plays:
    """How many were played: what each count is a share of."""

    hidden: int
    search: int
    train: int
    """Episodes of one step."""


@dataclass(frozen=True)
class Landscape:
    """All runs of a grid; values are shares between 0 and 1."""

    environment: str
    knobs: Mapping[str, tuple[Scalar, ...]]
    """The values of each knob, by name, in ascending order."""
    seeds: tuple[int, ...]
    rungs: tuple[int, ...]
    """Steps after which the search tasks were played; the last one is the last step."""
    plays: Plays
    job: Mapping[str, Any]
    """The job that all runs share, without knobs and seed."""
    provenance: Mapping[str, Any]
    """Command, machine, versions, commit and date of the recording."""
    runs: Mapping[tuple[_Place, int], RecordedRun]
    """Every run, by the knobs' values in their order, and the seed."""

    @classmethod
    def load(cls, name: str) -> Landscape:
        """Return a landscape that is shipped; raise ValueError if there is none of this name, or it is not whole."""
        if name not in names():
            raise ValueError(f"expected a recorded landscape ({', '.join(names())}); found {name!r}")
        packed = (resources.files(__package__) / FOLDER / f"{name}{SUFFIX}").read_bytes()
        return cls.of(json.loads(gzip.decompress(packed)))

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Landscape:
        """Return the landscape that a file's JSON describes; raise ValueError if it is not whole."""
        if value["format"] != FORMAT:
            raise ValueError(f"expected a landscape of format {FORMAT}; found {value['format']}: record it again")
        knobs = {name: tuple(values) for name, values in value["knobs"].items()}
        landscape = cls(
            environment=value["environment"],
            knobs=knobs,
            seeds=tuple(value["seeds"]),
            rungs=tuple(value["rungs"]),
            plays=Plays(**value["plays"]),
            job=value["job"],
            provenance=value["provenance"],
            runs=_runs(value["runs"], list(itertools.product(itertools.product(*knobs.values()), value["seeds"]))),
        )
        landscape._require_shares()
        return landscape

    def configurations(self) -> tuple[dict[str, Scalar], ...]:
        """Return every configuration of the grid, the last knob varying fastest."""
        return tuple(dict(zip(self.knobs, place, strict=True)) for place in itertools.product(*self.knobs.values()))

    def run(self, configuration: Configuration, seed: int) -> RecordedRun:
        """Return one run as it was counted; raise ValueError for what was not recorded."""
        place = self._place(configuration)
        if seed not in self.seeds:
            raise ValueError(f"expected one of the recorded seeds {self.seeds}; found {seed}")
        return self.runs[place, seed]

    def value(self, configuration: Configuration, seed: int) -> float:
        """Return the share of hidden tasks solved after training."""
        return self.run(configuration, seed).after / self.plays.hidden

    def before(self, configuration: Configuration, seed: int) -> float:
        """Return the share of hidden tasks solved before training."""
        return self.run(configuration, seed).before / self.plays.hidden

    def rung_value(self, configuration: Configuration, seed: int, rung: int) -> float:
        """Return the share of search tasks solved after `rung` steps; raise ValueError if that is no rung."""
        if rung not in self.rungs:
            raise ValueError(f"expected one of the rungs {self.rungs}; found {rung}")
        return self.run(configuration, seed).search[self.rungs.index(rung)] / self.plays.search

    def curve(self, configuration: Configuration, seed: int) -> tuple[float, ...]:
        """Return the share of training episodes solved in each step."""
        return tuple(solved / self.plays.train for solved in self.run(configuration, seed).train)

    def mean(self, configuration: Configuration) -> float:
        """Return the mean of `value` over the seeds."""
        return fmean(self.value(configuration, seed) for seed in self.seeds)

    def seconds(self, configuration: Configuration) -> float:
        """Return the mean CPU seconds of a run."""
        return fmean(self.run(configuration, seed).seconds for seed in self.seeds)

    def best(self) -> tuple[dict[str, Scalar], float]:
        """Return the configuration of the highest mean, and that mean; the first one of equals."""
        found = max(self.configurations(), key=self.mean)
        return found, self.mean(found)

    def noise(self) -> tuple[float, int]:
        """Return the standard deviation of `value` within a configuration, pooled over all, with degrees of freedom.

        It holds the seed's part and the evaluation's, and is a mean of what differs from place to place.
        """
        each = [variance([self.value(one, seed) for seed in self.seeds]) for one in self.configurations()]
        return math.sqrt(fmean(each)), len(each) * (len(self.seeds) - 1)

    def rung_correlation(self, rung: int, seed: int | None = None) -> float:
        """Return Spearman's rank correlation, over configurations, of a rung with the final mean.

        Of the rung's means over all seeds; with a `seed`, of that one alone, which is what a search sees that pays for
        one. The final mean holds that seed, too. NaN where all configurations are equal.
        """
        seeds = self.seeds if seed is None else (seed,)
        early = [fmean(self.rung_value(one, own, rung) for own in seeds) for one in self.configurations()]
        late = [self.mean(one) for one in self.configurations()]
        return math.nan if _equal(early) or _equal(late) else correlation(_ranks(early), _ranks(late))

    def _place(self, configuration: Configuration) -> _Place:
        for name, values in self.knobs.items():
            if configuration.get(name) not in values:
                raise ValueError(f"expected {name} to be one of {values}; found {configuration.get(name)!r}")
        if foreign := set(configuration) - set(self.knobs):
            raise ValueError(f"expected the knobs {', '.join(self.knobs)}; found {min(foreign)!r} as well")
        return tuple(configuration[name] for name in self.knobs)

    def _require_shares(self) -> None:
        steps, plays = self.job["steps"], self.plays
        for where, run in self.runs.items():
            whole = len(run.search) == len(self.rungs) and len(run.train) == steps
            bounded = (
                _within((run.before, run.after), plays.hidden)
                and _within(run.search, plays.search)
                and _within(run.train, plays.train)
            )
            if not (whole and bounded):
                raise ValueError(f"expected {plays} of {steps} steps at {where}; found {run}: record it again")


def names() -> tuple[str, ...]:
    """Return the landscapes that are shipped."""
    files = (file.name for file in (resources.files(__package__) / FOLDER).iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX)))


def _runs(columns: Mapping[str, Sequence[Any]], order: Sequence[tuple[_Place, int]]) -> dict[tuple[_Place, int], Any]:
    counts = {name: len(values) for name, values in columns.items()}
    if set(counts.values()) != {len(order)}:
        raise ValueError(f"expected {len(order)} runs, every configuration with every seed; found {counts}")
    return {
        where: RecordedRun(
            before=columns["before"][number],
            after=columns["after"][number],
            search=tuple(columns["search"][number]),
            train=tuple(columns["train"][number]),
            seconds=columns["seconds"][number],
        )
        for number, where in enumerate(order)
    }


def _within(counts: Sequence[int], most: int) -> bool:
    return all(0 <= count <= most for count in counts)


def _equal(values: Sequence[float]) -> bool:
    return min(values) == max(values)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return each value's rank; equals share the mean of theirs."""
    return [sum(other < one for other in values) + (sum(other == one for other in values) + 1) / 2 for one in values]


@dataclass(frozen=True)
class Recorded:
    """A landscape that can be searched; `number` tells apart the draws of several searches."""

    landscape: Landscape
    number: int = 0

    @classmethod
    def load(cls, name: str, number: int = 0) -> Recorded:
        """Return a landscape that is shipped; raise ValueError if there is none of this name."""
        return cls(Landscape.load(name), number)

    @property
    def base(self) -> Configuration:
        """What a job is by default, as far as that was recorded; else the middle of a ladder."""
        usual = {name: Job.model_fields[name].default for name in self.knobs}
        return {name: usual[name] if usual[name] in of else of[len(of) // 2] for name, of in self.knobs.items()}

    @property
    def knobs(self) -> Mapping[str, tuple[Scalar, ...]]:
        """What was varied, each with its values."""
        return self.landscape.knobs

    @property
    def steps(self) -> int:
        """Training steps of a whole run."""
        return self.landscape.rungs[-1]

    def true_value(self, configuration: Configuration) -> float:
        """Return the mean hidden success over the recorded seeds."""
        return self._means[self._place(configuration)]

    def kept_value(self, configuration: Configuration) -> float:
        """Return the same: of a recorded run nobody knows whether it collapsed."""
        return self.true_value(configuration)

    def run(self, configuration: Configuration, seed: int, steps: int | None = None) -> Played:
        """Return a recorded run after `steps` (default: all); raise ValueError for fewer than the first rung's."""
        rung, own = self._passed(self.steps if steps is None else steps), self._drawn(configuration, seed)
        search = self.landscape.rung_value(configuration, own, rung)
        hidden = self.landscape.value(configuration, own) if rung == self.steps else search
        return Played(self.landscape.before(configuration, own), search, hidden)

    def hours(self, configuration: Configuration, steps: int | None = None) -> float:
        """Return the machine hours of a run, the same for each step."""
        return self.seconds(configuration, self.steps if steps is None else steps) / 3600

    def seconds(self, configuration: Configuration, steps: int, neighbours: int = 0) -> float:
        """Return the seconds of a run; what neighbours would have cost it was not recorded."""
        return self._seconds[self._place(configuration)] * steps / self.steps

    def _passed(self, steps: int) -> int:
        """Return the last recorded rung within so many steps."""
        passed = [rung for rung in self.landscape.rungs if rung <= steps]
        if not passed:
            raise ValueError(f"expected a run of at least {self.landscape.rungs[0]} steps; found {steps}")
        return passed[-1]

    def _drawn(self, configuration: Configuration, seed: int) -> int:
        """Return the recorded seed that stands for a seed; each configuration draws its own."""
        text = repr((self.number, seed, self._place(configuration))).encode()
        seeds = self.landscape.seeds
        return seeds[int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % len(seeds)]

    def _place(self, configuration: Configuration) -> tuple[Scalar, ...]:
        return tuple(configuration[name] for name in self.knobs)

    @cached_property
    def _means(self) -> dict[tuple[Scalar, ...], float]:
        return {self._place(one): self.landscape.mean(one) for one in self.landscape.configurations()}

    @cached_property
    def _seconds(self) -> dict[tuple[Scalar, ...], float]:
        return {self._place(one): self.landscape.seconds(one) for one in self.landscape.configurations()}
