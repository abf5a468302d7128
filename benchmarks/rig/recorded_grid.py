"""A grid of real trainings written down run by run, so that what was trained is never trained twice.

Each run is one line of a file whose first line says what is recorded. A process that is killed loses the run it was
at; the next one cuts off half a line and goes on. Runs go seed by seed, so that a recording that is cut short
holds the whole grid for fewer seeds. A recording of other jobs is refused, never continued.

A run is trained by engine and learner in one process, without a server. Its seed is that of sampling and of the tasks'
order, as a study's; the initial model is one and the same. It is not bit-reproducible: which plays share a forward
depends on the moment.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from simlab.landscapes import FORMAT

from rig.in_process import InProcess
from swarm.environments import get_environment
from swarm.job import Job

COLUMNS = ("before", "after", "search", "train", "seconds")
Place = tuple[int | float, ...]
"""One value for each knob, in the knobs' order."""
Run = dict[str, Any]
"""A line: place, seed, and what was counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record: a base job and the values of the fields that vary."""

    job: Mapping[str, Any]
    knobs: Mapping[str, tuple[int | float, ...]]
    seeds: tuple[int, ...]
    rungs: tuple[int, ...]
    """Steps after which the search tasks are played; the last one is the last step."""

    def runs(self) -> Iterator[tuple[int, Place]]:
        """Yield every seed and place, seed by seed."""
        return itertools.product(self.seeds, itertools.product(*self.knobs.values()))

    def job_at(self, place: Place, seed: int) -> Job:
        """Return the job of one run."""
        return Job.model_validate({**self.job, **dict(zip(self.knobs, place, strict=True)), "seed": seed})

    def told(self) -> dict[str, Any]:
        """Return what must agree where a recording is continued: everything but the number of seeds."""
        return {
            "job": Job.model_validate(self.job).model_dump(mode="json", exclude={"seed", "tracking", *self.knobs}),
            "knobs": {name: list(values) for name, values in self.knobs.items()},
            "rungs": list(self.rungs),
        }


class Recording:
    """The file of a plan's runs; `circumstances` are written down where it begins."""

    def __init__(self, path: Path, plan: Plan, circumstances: Mapping[str, Any]) -> None:
        self._path = path
        self._plan = plan
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_text() if path.exists() else ""
        lines = whole[: whole.rfind("\n") + 1]
        if lines != whole:
            path.write_text(lines)
        if not lines:
            self._append({"plan": plan.told(), "circumstances": circumstances})
        if self._head()["plan"] != plan.told():
            raise SystemExit(f"{path} records other jobs; finish it with their version, or delete it")

    @property
    def circumstances(self) -> dict[str, Any]:
        """Where and with what the recording was begun."""
        return dict(self._head()["circumstances"])

    def _head(self) -> dict[str, Any]:
        with self._path.open() as file:
            return dict(json.loads(file.readline()))

    def runs(self) -> list[Run]:
        """Return the runs that are done."""
        return [json.loads(line) for line in self._path.read_text().splitlines()[1:]]

    def whole_seeds(self) -> tuple[int, ...]:
        """Return the seeds that every place of the grid has."""
        done = {(run["seed"], tuple(run["place"])) for run in self.runs()}
        missing = {seed for seed, place in self._plan.runs() if (seed, place) not in done}
        return tuple(seed for seed in self._plan.seeds if seed not in missing)

    def record(self, models: Path, tell: Callable[[str], None]) -> None:
        """Train what is not there yet, once another process that does so is done."""
        with FileLock(self._path.with_suffix(".lock")):
            self._record(models, tell)

    def _record(self, models: Path, tell: Callable[[str], None]) -> None:
        done = {(run["seed"], tuple(run["place"])) for run in self.runs()}
        whole = math.prod(map(len, self._plan.knobs.values())) * len(self._plan.seeds)
        for seed, place in self._plan.runs():
            if (seed, place) not in done:
                run = trained(self._plan.job_at(place, seed), models, self._plan.rungs)
                self._append({"place": place, "seed": seed, **run})
                done.add((seed, place))
                tell(f"{len(done)}/{whole}  {_said(self._plan.knobs, place)}, seed {seed}: {_ended(run)}")

    def packed(self) -> dict[str, Any]:
        """Return the whole seeds as the JSON of a landscape; raise SystemExit when there are not two of them."""
        seeds = self.whole_seeds()
        if len(seeds) < 2:
            raise SystemExit(f"{self._path} holds {len(seeds)} whole seeds; two at least make a landscape: record on")
        found = {(tuple(run["place"]), run["seed"]): run for run in self.runs()}
        runs = [found[where] for where in itertools.product(itertools.product(*self._plan.knobs.values()), seeds)]
        told = self._plan.told()
        environment = get_environment(told["job"]["environment"])
        return {
            "format": FORMAT,
            "environment": environment.name,
            **told,
            "seeds": seeds,
            "plays": {
                "hidden": len(environment.tasks("hidden")),
                "search": len(environment.tasks("search")),
                "train": told["job"]["episodes_per_step"],
            },
            "provenance": self.circumstances,
            "runs": {name: [run[name] for run in runs] for name in COLUMNS},
        }

    def _append(self, value: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(value, separators=(",", ":")) + "\n")


def _said(knobs: Mapping[str, Sequence[int | float]], place: Place) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in zip(knobs, place, strict=True))


def _ended(run: Run) -> str:
    return f"{run['before']} to {run['after']} hidden tasks in {run['seconds']:.1f} s"


def trained(job: Job, models: Path, rungs: Sequence[int]) -> Run:
    """Train one job; return the counts of solved tasks, each played once, and the CPU seconds it took."""
    environment = get_environment(job.environment)
    hidden, search = environment.tasks("hidden"), environment.tasks("search")
    found: dict[int, int] = {}
    ends: dict[str, int] = {}
    training = InProcess(job, models)

    async def look(step: int) -> None:
        if step in rungs:
            found[step] = await training.solved(search)
        if step in (0, job.steps):
            ends["after" if step else "before"] = await training.solved(hidden)

    end = asyncio.run(training.train(look))
    return {
        **ends,
        "search": [found[step] for step in rungs],
        "train": [round(step.success * job.episodes_per_step) for step in end.steps],
        "seconds": round(end.cpu_s, 2),
    }
