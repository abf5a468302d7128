"""How fast are whole GRPO steps, and does each teach as much, beside TRL's GRPOTrainer?

    python benchmarks/against_trl.py            about six minutes
    python benchmarks/against_trl.py --quick    few steps, one seed: times only, no interval
    python benchmarks/against_trl.py --larger   also `guess` by a model of a million parameters, some minutes more
    python benchmarks/against_trl.py --json     also writes benchmarks/results/against_trl.{json,svg}
    python benchmarks/against_trl.py --check    exit code 1 unless the goals below are met

`arith` has one turn, `guess` up to four. Three train the same tiny model on the same tasks, 128 episodes in groups of 8
a step, one after another in turns, each with one torch thread in fp32 on the CPU:

- `trl`: GRPOTrainer with `generate` (no vLLM); a game of several turns through its `rollout_func`;
- `ajet`: the real thing, a swarm server with its durable store and the built-in agent behind HTTP, two processes;
- `ajet, no server`: its engine, call trees and learner in one process.

Same temperature, most tokens a call, learning rate, AdamW, gradient clipping, clip ratio and loss (mean over episodes
of the mean over their sampled tokens; advantage over the group's standard deviation).

What is not the same: ajet's two processes may use two cores (CPU seconds a step are printed); it writes every token to
disk before it is answered, and a checkpoint at the end; it takes the log-probs of the time of sampling as old ones,
where TRL, which knows that it is on-policy, takes its own again. TRL generates a batch at once, which suits games of
one short answer; it reads the whole history of each play again every turn. Its gradient checkpointing, bf16, logging
and checkpoints, on by default, are off; its tasks come in another order. Booting and importing is in no figure.

With `--larger` a model of ten times the parameters plays `guess` for a few steps: what the server costs stays, what the
model costs grows. No goal is judged there.

Goals: at least twice TRL's steps per minute, and a reward per step whose difference has 0 in its 95 % interval over the
seeds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rig.frame import RESULTS, circumstances, concluded, parser, show_table
from rig.plots import Curve, band, draw
from rig.plots import figures as mean_figures
from rig.training import Trained, TrainingProcess, made

from swarm.job import Job, TinyModel

LARGER = TinyModel(hidden_size=192, warm_start_steps=100)
CONTENDERS = {"trl": "trl_training", "ajet": "training", "ajet, no server": "in_process"}
ENVIRONMENTS = ("arith", "guess")
FASTER = 2.0
TIMES, TIMES_CPU = "times TRL's steps per minute", "times TRL's steps per CPU minute"
APART = "reward per step less TRL's"
ENDS = 5
"""Steps at the beginning and at the end whose mean reward makes the gain."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much to train."""

    steps: int
    seeds: int


FULL = Size(steps=24, seeds=4)
QUICK = Size(steps=4, seeds=1)
FEW = Size(steps=6, seeds=2)
Runs = dict[str, list[Trained]]
"""The runs of each contender, by seed."""


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = parser(__doc__, quick="few steps, one seed")
    options.add_argument("--larger", action="store_true", help="also a model of a million parameters")
    arguments = options.parse_args()
    if importlib.util.find_spec("trl") is None:
        print("expected TRL beside ajet; found none; install the extra: pip install 'ajet[bench]'")
        return 2
    size = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix="ajet-trl-") as folder:
        found = {name: trained(name, TinyModel(), size, Path(folder)) for name in ENVIRONMENTS}
        larger = trained("guess", LARGER, QUICK if arguments.quick else FEW, Path(folder)) if arguments.larger else None
    figures: dict[str, Any] = {
        "steps": size.steps,
        "seeds": size.seeds,
        "environments": {name: compared(runs) for name, runs in found.items()},
        "larger model": {"guess, 1M": compared(larger)} if larger else {},
        **circumstances(arguments),
    }
    figures["versions"] = {**figures["versions"], "trl": version("trl")}
    show(figures)
    if arguments.json:
        _draw(found)
    return concluded("against_trl", figures, goals_missed(figures), arguments)


def job(environment: str, model: TinyModel, seed: int, steps: int) -> Job:
    """Return what all train: the default job, with all episodes of a batch under way at once, as TRL has them."""
    return Job(environment=environment, model=model, seed=seed, steps=steps, max_concurrency=128)


def trained(environment: str, model: TinyModel, size: Size, folder: Path) -> Runs:
    """Let all contenders train in turns, one at a time; who goes first changes from seed to seed."""
    models = made(environment, folder / "models", model)
    runs: Runs = {name: [] for name in CONTENDERS}
    for seed in range(size.seeds):
        order = list(CONTENDERS)
        for name in order[seed % len(order) :] + order[: seed % len(order)]:
            task = {"job": job(environment, model, seed, size.steps).model_dump(mode="json"), "models": str(models)}
            began = time.monotonic()
            training = TrainingProcess(
                CONTENDERS[name], folder / f"{environment}-{model.hidden_size}-{seed}-{CONTENDERS[name]}", task
            )
            with contextlib.ExitStack() as ending:
                ending.callback(training.kill)
                runs[name].append(training.result())
            seconds = time.monotonic() - began
            print(f"{environment}, seed {seed}: {name} took {seconds:.0f} s, start included", file=sys.stderr)
    return runs


def compared(runs: Runs) -> dict[str, Any]:
    """Return the figures of one environment."""
    theirs = runs["trl"]
    figures = {name: _figures(found) for name, found in runs.items()}
    for name, found in runs.items():
        if name != "trl":
            pairs = list(zip(found, theirs, strict=True))
            figures[name] |= {
                TIMES: round(median(_rate(own) / _rate(trl) for own, trl in pairs), 3),
                TIMES_CPU: round(median(trl.cpu_s / own.cpu_s for own, trl in pairs), 3),
                APART: mean_figures([_reward(own) - _reward(trl) for own, trl in pairs]),
            }
    return figures


def _figures(runs: Sequence[Trained]) -> dict[str, Any]:
    parts = {
        "generation": median(_part([step.generate_s for step in run.steps]) for run in runs),
        "update": median(_part([step.update_s for step in run.steps]) for run in runs),
    }
    whole = median(60 / _rate(run) for run in runs)
    return {
        "steps per minute": round(60 / whole, 1),
        "seconds per step": {
            "whole": round(whole, 4),
            **{name: round(seconds, 4) for name, seconds in parts.items()},
            "other": round(whole - sum(parts.values()), 4),
        },
        "CPU seconds per step": round(median(run.cpu_s / len(run.steps) for run in runs), 4),
        "reward per step": mean_figures([_reward(run) for run in runs]),
        "reward gained per minute": round(fmean(_gain(run) for run in runs), 4),
        "reward by step": [[round(step.reward, 4) for step in run.steps] for run in runs],
        "seconds by step": [[round(step.at, 3) for step in run.steps] for run in runs],
    }


def _rate(run: Trained) -> float:
    """Return steps per minute, without the first one, which warms up."""
    return 60 * (len(run.steps) - 1) / (run.steps[-1].at - run.steps[0].at)


def _part(seconds: Sequence[float]) -> float:
    return fmean(seconds[1:])


def _reward(run: Trained) -> float:
    return fmean(step.reward for step in run.steps)


def _gain(run: Trained) -> float:
    """Return how much the reward rose from the first steps to the last ones, a minute of training."""
    few = min(ENDS, len(run.steps) // 2)
    first, last = run.steps[:few], run.steps[-few:]
    rise = fmean(step.reward for step in last) - fmean(step.reward for step in first)
    return 60 * rise / run.steps[-1].at


def _draw(found: dict[str, Runs]) -> None:
    panels = {
        environment: {
            name: Curve(
                [fmean(run.steps[step].at for run in own) / 60 for step in range(len(own[0].steps))],
                band([[step.reward for step in run.steps] for run in own]),
            )
            for name, own in runs.items()
        }
        for environment, runs in found.items()
    }
    note = "mean of the seeds and its 95 % interval; one torch thread; start-up left out"
    draw(panels, RESULTS / "against_trl.svg", x="minutes of training", y="reward", note=note)


def goals_missed(figures: dict[str, Any]) -> list[str]:
    """Return the goals of the module's docstring that `figures` miss, for the real thing."""
    missed = []
    for environment, found in figures["environments"].items():
        own = found["ajet"]
        times, apart = own[TIMES], own[APART]
        if times < FASTER:
            missed.append(f"{environment}: {times:.2f} times TRL's steps per minute, the goal is {FASTER:g}")
        if apart["low"] is not None and not apart["low"] <= 0 <= apart["high"]:
            missed.append(f"{environment}: reward per step differs by {apart['low']:.3f} to {apart['high']:.3f}")
    return missed


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    columns = ("", "steps/min", "x TRL", "x TRL, CPU", "s/step", "generate", "update", "other", "CPU s", "reward/step",
               "less TRL's, 95 %", "gain/min")  # fmt: skip
    rows = [
        _row(f"{environment}: {name}", own)
        for environment, found in {**figures["environments"], **figures["larger model"]}.items()
        for name, own in found.items()
    ]
    show_table(f"whole GRPO steps of 128 episodes, {figures['steps']} steps, {figures['seeds']} seeds", columns, rows)
    print(f"on {figures['machine']}; TRL {figures['versions']['trl']}")
    if figures["quick"]:
        print("a quick run; the full one: python benchmarks/against_trl.py --json --check")


def _row(name: str, own: dict[str, Any]) -> list[str]:
    seconds, apart = own["seconds per step"], own.get(APART, {})
    return [
        name,
        f"{own['steps per minute']:.0f}",
        f"{own[TIMES]:.2f}" if apart else "",
        f"{own[TIMES_CPU]:.2f}" if apart else "",
        *(f"{seconds[part]:.3f}" for part in ("whole", "generation", "update", "other")),
        f"{own['CPU seconds per step']:.3f}",
        f"{own['reward per step']['mean']:.3f}",
        f"{apart['low']:+.3f} to {apart['high']:+.3f}" if apart.get("low") is not None else "",
        f"{own['reward gained per minute']:.3f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
