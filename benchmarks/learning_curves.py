"""Does the whole stack learn, with several algorithms, and how much do seeds differ?

    python benchmarks/learning_curves.py            30 trainings of 40 steps, two at once: about twelve minutes
    python benchmarks/learning_curves.py --quick    6 trainings of 3 steps: no interval, no goal
    python benchmarks/learning_curves.py --json     also writes benchmarks/results/learning_curves.{json,svg}
    python benchmarks/learning_curves.py --check    exit code 1 unless the goal below is met

`guess` (several turns) and `arith` (one) by GRPO, RLOO and REINFORCE++, 5 seeds each, the default job otherwise: the
tiny model, 128 episodes in groups of 8 a step. Each training is a swarm server with its durable store and the built-in
agent behind HTTP. The seed is that of sampling and of the tasks' order; the initial model is one and the same.

Drawn and listed is the mean reward of the training episodes, with its 95 % t-interval over the seeds: at the start (the
first 5 steps), at the end (the last 5), and over all steps (the area under the curve). The algorithms are not ranked:
5 seeds of one small job say little about them.

Goal: for every algorithm and environment the interval of end less start lies above 0.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rig.frame import RESULTS, circumstances, concluded, parser
from rig.plots import Curve, Interval, band, draw, interval
from rig.training import Trained, TrainingProcess, made

from swarm.job import Job

ENVIRONMENTS = ("guess", "arith")
ALGORITHMS = ("grpo", "rloo", "reinforce_pp")
AT_ONCE = 2
ENDS = 5
"""Steps at the beginning and at the end whose mean is the start and the end of a curve."""
Plan = tuple[str, str, int]
"""Environment, algorithm and seed of one training."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much to train."""

    steps: int
    seeds: int


FULL = Size(steps=40, seeds=5)
QUICK = Size(steps=3, seeds=1)


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="few steps, one seed").parse_args()
    size = QUICK if arguments.quick else FULL
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ajet-curves-") as folder:
        models = Path(folder) / "models"
        for environment in ENVIRONMENTS:
            made(environment, models)
        found = trained(size, models, Path(folder))
    figures = {
        "steps": size.steps,
        "seeds": size.seeds,
        "seconds in all": round(time.monotonic() - began),
        "environments": {name: _of(found, name) for name in ENVIRONMENTS},
        **circumstances(arguments),
    }
    show(figures)
    if arguments.json:
        _draw(found)
    return concluded("learning_curves", figures, goals_missed(figures), arguments)


def trained(size: Size, models: Path, folder: Path) -> dict[Plan, Trained]:
    """Carry all trainings out, `AT_ONCE` at a time, seed by seed; end all of them when one fails."""
    waiting = deque((name, how, seed) for seed, name, how in product(range(size.seeds), ENVIRONMENTS, ALGORITHMS))
    whole, running, done = len(waiting), dict[Plan, TrainingProcess](), dict[Plan, Trained]()
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                plan = waiting.popleft()
                running[plan] = _begun(plan, size, models, folder)
            time.sleep(0.2)
            for plan in [plan for plan, training in running.items() if training.ended()]:
                done[plan] = running.pop(plan).result()
                _tell(len(done), whole, plan, done[plan])
    finally:
        for training in running.values():
            training.kill()
    return done


def _begun(plan: Plan, size: Size, models: Path, folder: Path) -> TrainingProcess:
    environment, algorithm, seed = plan
    job = Job.model_validate({"environment": environment, "algorithm": algorithm, "seed": seed, "steps": size.steps})
    order = {"job": job.model_dump(mode="json"), "models": str(models)}
    return TrainingProcess("training", folder / f"{environment}-{algorithm}-{seed}", order)


def _tell(done: int, whole: int, plan: Plan, run: Trained) -> None:
    environment, algorithm, seed = plan
    rewards = f"{run.steps[0].reward:.2f} to {run.steps[-1].reward:.2f} in {run.steps[-1].at:.0f} s"
    print(f"{done}/{whole}  {environment}, {algorithm}, seed {seed}: reward {rewards}", file=sys.stderr)


def _of(found: dict[Plan, Trained], environment: str) -> dict[str, Any]:
    return {how: _figures(_rewards(found, environment, how)) for how in ALGORITHMS}


def _rewards(found: dict[Plan, Trained], environment: str, algorithm: str) -> list[list[float]]:
    """Return the reward of each step, by seed."""
    own = {seed: run for (name, how, seed), run in found.items() if (name, how) == (environment, algorithm)}
    return [[step.reward for step in own[seed].steps] for seed in sorted(own)]


def _figures(runs: Sequence[Sequence[float]]) -> dict[str, Any]:
    few = min(ENDS, len(runs[0]) // 2)
    starts, ends = [fmean(run[:few]) for run in runs], [fmean(run[-few:]) for run in runs]
    return {
        "start": interval(starts).figures(),
        "end": interval(ends).figures(),
        "gain": interval([end - start for start, end in zip(starts, ends, strict=True)]).figures(),
        "area": interval([fmean(run) for run in runs]).figures(),
        "reward by step": [[round(reward, 4) for reward in run] for run in runs],
    }


def _draw(found: dict[Plan, Trained]) -> None:
    panels = {}
    for environment in ENVIRONMENTS:
        runs = {how: _rewards(found, environment, how) for how in ALGORITHMS}
        panels[environment] = {how: Curve(range(1, len(own[0]) + 1), band(own)) for how, own in runs.items()}
    seeds = len(_rewards(found, ENVIRONMENTS[0], ALGORITHMS[0]))
    note = f"mean of {seeds} seeds and its 95 % interval; 128 training episodes a step"
    draw(panels, RESULTS / "learning_curves.svg", x="training step", y="reward", note=note)


def goals_missed(figures: dict[str, Any]) -> list[str]:
    """Return where the goal of the module's docstring is missed; an interval of one seed says nothing."""
    missed = []
    for environment, algorithms in figures["environments"].items():
        for algorithm, own in algorithms.items():
            low = own["gain"]["low"]
            if low is not None and low <= 0:
                missed.append(f"{environment}, {algorithm}: the reward's gain may be {low:.3f}")
    return missed


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    table = Table(title=f"reward of {figures['steps']} steps, {figures['seeds']} seeds, mean and 95 % interval")
    table.add_column("")
    for name in ("start", "end", "gain", "area"):
        table.add_column(name, justify="right", no_wrap=True)
    for environment, algorithms in figures["environments"].items():
        for algorithm, own in algorithms.items():
            cells = (_shown(own[name]) for name in ("start", "end", "gain", "area"))
            table.add_row(f"{environment}: {algorithm}", *cells)
        table.add_section()
    Console(width=130).print(table)
    print(f"{figures['seconds in all']} s in all, on {figures['machine']}")
    if figures["quick"]:
        print("a quick run; the full one: python benchmarks/learning_curves.py --json --check")


def _shown(value: dict[str, float | None]) -> str:
    mean, low, high = value["mean"], value["low"], value["high"]
    assert mean is not None
    return f"{mean:.3f}" if low is None or high is None else Interval(mean, low, high).shown()


if __name__ == "__main__":
    sys.exit(main())
