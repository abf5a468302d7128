"""Landscapes of real trainings, as worlds: a search of them has a best that nobody planted.

What was recorded (`landscape_data/`, by `benchmarks/landscape.py` of commit 5ed0d2b): trainings of the tiny model at
every place of a grid, each with several seeds, and of each how many hidden tasks it solved before and after, and how
many search tasks at some rungs in between. A run here is one of the recorded runs of its configuration, which one by
the run's seed; the truth is their mean. So noise is the real one, of as many seeds as were recorded, and the best is
the best of what was recorded: the highest of noisy means.

A run with a learning rate of 0, by which a study begins, stays where it was. Does not know hidden scores before the
last step: a shorter run shows the search tasks in their place, and what it had at the last recorded rung that it
passed; nor how steps differ in time: each takes the same share of a run's; nor what more plays would have said, so that
a study of it has the usual number.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from research.proposals.arms import Scalar
from simlab.worlds import Configuration, Played
from studies.records.verdict import Scope
from swarm.job import Job

FOLDER = Path(__file__).parent / "landscape_data"
NAMES = ("arith", "guess")
_Place = tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One training, in shares of tasks solved."""

    before: float
    """Of the hidden tasks, by the initial model."""
    after: float
    """Of the hidden tasks, after the last step."""
    search: tuple[float, ...]
    """Of the search tasks, at each rung."""
    seconds: float
    """CPU seconds of the training with all these plays, on the machine that recorded it."""


@dataclass(frozen=True)
class Recorded:
    """A recorded landscape; `number` tells apart the draws of several searches."""

    environment: str
    knobs: Mapping[str, tuple[Scalar, ...]]
    """What was varied, each with its values in ascending order."""
    rungs: tuple[int, ...]
    """Steps after which the search tasks were played; the last one is the last step."""
    runs: Mapping[_Place, tuple[RecordedRun, ...]] = field(repr=False)
    """The runs of each place of the grid, one a seed."""
    hidden: int
    """Hidden tasks, each played once by an evaluation."""
    number: int = 0

    @classmethod
    def load(cls, name: str, number: int = 0) -> Recorded:
        """Return the landscape of one of `NAMES`."""
        value: dict[str, Any] = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
        knobs = {knob: tuple(values) for knob, values in value["knobs"].items()}
        plays, columns = value["plays"], value["runs"]
        runs = [
            RecordedRun(before / plays["hidden"], after / plays["hidden"],
                        tuple(solved / plays["search"] for solved in search), seconds)
            for before, after, search, seconds in zip(
                columns["before"], columns["after"], columns["search"], columns["seconds"], strict=True
            )
        ]  # fmt: skip
        seeds = len(value["seeds"])
        grid = {
            place: tuple(runs[seeds * at : seeds * (at + 1)])
            for at, place in enumerate(itertools.product(*knobs.values()))
        }
        return cls(value["environment"], knobs, tuple(value["rungs"]), grid, plays["hidden"], number)

    @property
    def base(self) -> dict[str, Scalar]:
        """What a job is by default, as far as that was recorded; else the middle of a ladder."""
        usual = {name: Job.model_fields[name].default for name in self.knobs}
        return {name: usual[name] if usual[name] in of else of[len(of) // 2] for name, of in self.knobs.items()}

    @property
    def steps(self) -> int:
        """Training steps of a whole run."""
        return self.rungs[-1]

    def true_value(self, configuration: Configuration, scope: Scope = "all", *, missed: bool = False) -> float:
        """Return the mean hidden success over the recorded seeds, whatever the scope: nobody knows what collapsed."""
        return fmean(run.after for run in self.runs[self._place(configuration)])

    def run(self, configuration: Configuration, seed: int, steps: int | None = None) -> Played:
        """Return a recorded run after `steps` (default: all); raise ValueError for fewer than the first rung's."""
        if configuration.get("learning_rate") == 0:
            before = self._drawn({}, seed).before
            return Played(before, before, before)
        recorded, whole = self._drawn(configuration, seed), self.steps
        passed = [rung for rung in self.rungs if rung <= (steps or whole)]
        if not passed:
            raise ValueError(f"expected a run of at least {self.rungs[0]} steps; found {steps}")
        search = recorded.search[len(passed) - 1]
        return Played(recorded.before, search, recorded.after if passed[-1] == whole else search)

    def seconds(self, configuration: Configuration, steps: int, neighbours: int = 0) -> float:
        """Return the seconds of a run, of one that was not recorded those of the base; neighbours cost it nothing."""
        runs = self.runs.get(self._place(configuration)) or self.runs[self._place({})]
        return fmean(run.seconds for run in runs) * steps / self.steps

    def _drawn(self, configuration: Configuration, seed: int) -> RecordedRun:
        """Return the recorded run that stands for a seed: of one recorded seed whatever the configuration, so that runs
        with one seed go together as they did."""
        text = repr((self.number, seed)).encode()
        runs = self.runs[self._place(configuration)]
        return runs[int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % len(runs)]

    def _place(self, configuration: Configuration) -> _Place:
        base = self.base
        return tuple(configuration.get(name, base[name]) for name in self.knobs)
