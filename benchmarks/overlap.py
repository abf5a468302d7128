"""What does it bring to roll out while learning, and what does it cost, where agents wait for tools?

    python benchmarks/overlap.py            10 trainings of 40 steps, one after the other: about six minutes
    python benchmarks/overlap.py --quick    2 trainings of 6 steps: no intervals, no goal
    python benchmarks/overlap.py --json     also writes benchmarks/results/overlap.{json,svg}
    python benchmarks/overlap.py --check    exit code 1 unless the goals below are met

The same job with a `max_staleness` of 0 (rollout and update alternate) and of 1 (they overlap), in turns, 5 seeds each:
`guess` with the tiny model, 64 episodes in groups of 8 a step, 64 agents at once, GRPO with truncated importance
sampling. Each is a swarm server with its durable store and agents behind HTTP. Between two calls an agent waits for a
tool, which is simulated: it takes a log-normal time (median 0.1 s, sigma 0.8), drawn alike in both arms.

The learner is idle while it waits for a batch, the engine while it works on no answer; both are shares of the wall time
from the first episode to the last step. Reward is compared by step: means over the steps, and over the last ten, with
95 % t-intervals over the seeds and of the difference within each seed.

Goals: in every seed more steps an hour with overlap than without, and a learner that is less idle. Rewards are shown
and not judged: 5 seeds of one small job say little.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rig.frame import RESULTS, circumstances, concluded, parser
from rig.plots import Curve, Interval, band, draw, interval
from rig.training import TrainingProcess, made

from swarm.job import Job

ARMS = (0, 1)
TOOL = {"median_s": 0.1, "sigma": 0.8}
LAST = 10
AGE = "training/off_policy/trajectory_staleness_worst"


@dataclass(frozen=True, slots=True)
class Size:
    """How much to train."""

    steps: int
    seeds: int


FULL = Size(steps=40, seeds=5)
QUICK = Size(steps=6, seeds=1)


@dataclass(frozen=True, slots=True)
class Run:
    """What one training did: steps an hour, idle shares, the oldest and the mean age learned, and its rewards."""

    steps_per_hour: float
    learner_idle: float
    engine_idle: float
    mean_age: float
    oldest: float
    rewards: tuple[float, ...]


Runs = Mapping[int, Sequence[Run]]
"""By arm, in the order of seeds."""
SHOWN: Mapping[str, tuple[str, int]] = {
    "steps_per_hour": ("steps an hour", 0),
    "learner_idle": ("learner idle", 3),
    "engine_idle": ("engine idle", 3),
    "mean_age": ("mean age of an episode", 2),
    "oldest": ("oldest episode", 0),
    "reward": ("reward, all steps", 3),
    "last reward": (f"reward, last {LAST} steps", 3),
}


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="few steps, one seed").parse_args()
    size = QUICK if arguments.quick else FULL
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ajet-overlap-") as folder:
        models = made("guess", Path(folder) / "models")
        runs = trained(size, models, Path(folder))
    figures = {
        "steps": size.steps,
        "seeds": size.seeds,
        "tool": TOOL,
        "seconds in all": round(time.monotonic() - began),
        "arms": {f"max_staleness {arm}": _figures(runs[arm]) for arm in ARMS},
        "difference within seeds": _differences(runs),
        "ratio of steps an hour": [round(found, 3) for found in _ratios(runs)],
        **circumstances(arguments),
    }
    show(figures)
    if arguments.json:
        curves = {f"max_staleness {arm}": _curve(runs[arm]) for arm in ARMS}
        note = f"mean of {size.seeds} seeds and its 95 % interval; agents wait for a simulated tool"
        draw({"guess": curves}, RESULTS / "overlap.svg", x="training step", y="reward", note=note)
    return concluded("overlap", figures, goals_missed(figures, runs), arguments)


def trained(size: Size, models: Path, folder: Path) -> dict[int, list[Run]]:
    """Carry all trainings out, in turns."""
    runs: dict[int, list[Run]] = {arm: [] for arm in ARMS}
    for seed, arm in product(range(size.seeds), ARMS):
        where = folder / f"{arm}-{seed}"
        order = {"job": _job(arm, seed, size.steps).model_dump(mode="json"), "models": str(models)}
        training = TrainingProcess("latency", where, {**order, "tool": {**TOOL, "seed": seed}})
        try:
            whole_s = training.result().steps[-1].at
        finally:
            training.kill()
        runs[arm].append(_read(where / "steps.jsonl", whole_s))
        print(f"seed {seed}, max_staleness {arm}: {size.steps} steps in {whole_s:.1f} s", file=sys.stderr)
    return runs


def _job(arm: int, seed: int, steps: int) -> Job:
    return Job(seed=seed, steps=steps, episodes_per_step=64, checkpoint_every=steps, max_staleness=arm)


def _read(path: Path, whole_s: float) -> Run:
    steps = [json.loads(line)["metrics"] for line in path.read_text().splitlines()]
    return Run(
        steps_per_hour=3600 * len(steps) / whole_s,
        learner_idle=_share(steps, "trainer/idle_ratio"),
        engine_idle=_share(steps, "rollouter/idle_ratio"),
        mean_age=fmean(step[f"{AGE}/mean"] for step in steps),
        oldest=max(step[f"{AGE}/max"] for step in steps),
        rewards=tuple(step["critic/rewards/mean"] for step in steps),
    )


def _share(steps: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the share over all steps of one that is given by step."""
    return sum(step[name] * step["timing_s/step"] for step in steps) / sum(step["timing_s/step"] for step in steps)


def _values(runs: Sequence[Run], name: str) -> list[float]:
    if name == "reward":
        return [fmean(run.rewards) for run in runs]
    if name == "last reward":
        return [fmean(run.rewards[-LAST:]) for run in runs]
    return [getattr(run, name) for run in runs]


def _figures(runs: Sequence[Run]) -> dict[str, Any]:
    rewards = {"reward by step": [[round(reward, 4) for reward in run.rewards] for run in runs]}
    return {name: interval(_values(runs, name)).figures() for name in SHOWN} | rewards


def _differences(runs: Runs) -> dict[str, Any]:
    """Return what overlap adds to each figure, seed by seed."""
    pairs = {name: zip(_values(runs[0], name), _values(runs[1], name), strict=True) for name in SHOWN}
    return {name: interval([after - before for before, after in found]).figures() for name, found in pairs.items()}


def _ratios(runs: Runs) -> list[float]:
    return [after.steps_per_hour / before.steps_per_hour for before, after in zip(runs[0], runs[1], strict=True)]


def _curve(runs: Sequence[Run]) -> Curve:
    found = band([run.rewards for run in runs])
    return Curve(range(1, len(found) + 1), found)


def goals_missed(figures: Mapping[str, Any], runs: Runs) -> list[str]:
    """Return the goals of the module's docstring that are missed; a quick run has none."""
    if figures["quick"]:
        return []
    missed = [
        f"seed {seed}: {ratio:.3f} of the steps an hour" for seed, ratio in enumerate(_ratios(runs)) if ratio <= 1
    ]
    for seed, (before, after) in enumerate(zip(runs[0], runs[1], strict=True)):
        if after.learner_idle >= before.learner_idle:
            missed.append(
                f"seed {seed}: the learner is idle {after.learner_idle:.3f} of the time, not less than without"
            )
    return missed


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures."""
    table = Table(title=f"{figures['steps']} steps, {figures['seeds']} seeds, mean and 95 % interval")
    table.add_column("")
    for name in (*figures["arms"], "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    columns = [*figures["arms"].values(), figures["difference within seeds"]]
    for name, (title, digits) in SHOWN.items():
        table.add_row(title, *(_shown(column[name], digits) for column in columns))
    Console(width=130).print(table)
    print("steps an hour with overlap over without, by seed:", *figures["ratio of steps an hour"])
    print(f"{figures['seconds in all']} s in all, on {figures['machine']}; the tool's time is simulated")
    if figures["quick"]:
        print("a quick run; the full one: python benchmarks/overlap.py --json --check")


def _shown(value: Mapping[str, float | None], digits: int) -> str:
    mean, low, high = value["mean"], value["low"], value["high"]
    assert mean is not None
    return f"{mean:.{digits}f}" if low is None or high is None else Interval(mean, low, high).shown(digits)


if __name__ == "__main__":
    sys.exit(main())
