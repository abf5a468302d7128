"""What do evaluations during training cost a run, and how noisy is what is read off them?

    python benchmarks/evaluation_cost.py                 2 runs of `guess` with the usual schedule, and 2 without
    python benchmarks/evaluation_cost.py --quick         1 of each, of 10 steps
    python benchmarks/evaluation_cost.py --json          also writes benchmarks/results/evaluation_cost.json
    python benchmarks/evaluation_cost.py --check         exit code 1 unless the goal below is met

Each run is a whole attempt of the default job (server, client, evaluators as processes), one at a time, those with and
those without a schedule in turn. The cost is by how much the attempts with one last longer, as a share of them; what
the server waited for its evaluations, by its own log, stands beside it. The noise is the standard error of an
evaluation at a success of a half, and that of the area, from independent plays.
Goal: the evaluations take at most 10 % of a run.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from noise_bank import attempted_in
from rig.frame import circumstances, concluded, parser

from research.design.pricing import EVALUATION_EPISODES
from research.installation.tiny_model import prepare_model
from research.runs.files import AttemptFolder, AttemptOutcome
from studies.metrics import Asked, kind_named
from studies.records.design import Metric, RunSpec
from studies.records.runs import add_evaluation_steps
from swarm.job import Job

MOST = 0.1
"""Largest share of a run."""
SEEDS = (101, 102)
QUICK_STEPS = 10
_WAITED = re.compile(r"event=evaluated step=\d+ episodes=(\d+) wait_s=([0-9.]+)")


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="1 run of each, of 10 steps").parse_args()
    job = Job(**({"steps": QUICK_STEPS} if arguments.quick else {}))
    horizon = job.steps * job.episodes_per_step
    area = kind_named("area").define(Asked("the number is found", EVALUATION_EPISODES, horizon))  # its usual schedule
    metrics = {"with": area, "without": Metric(meaning="hidden success", episodes=EVALUATION_EPISODES)}
    with tempfile.TemporaryDirectory(prefix="ajet-evaluation-cost-") as scratch:
        prepare_model(job, Path(scratch) / "models", lambda line: None)
        runs = list(measured(job, metrics, SEEDS[:1] if arguments.quick else SEEDS, Path(scratch)))
    figures = {**summed(runs, metrics["with"]), **circumstances(arguments)}
    print(table(figures))
    return concluded("evaluation_cost", figures, missed(figures), arguments)


def measured(
    job: Job, metrics: dict[str, Metric], seeds: tuple[int, ...], scratch: Path
) -> Iterator[tuple[str, dict[str, float]]]:
    """Make the runs in turn; yield of each what it took."""
    values = job.model_dump(mode="json", exclude={"seed", "tracking"})
    for seed in seeds:
        for name, metric in metrics.items():
            spec = RunSpec(
                study=f"cost-{name}", design_hash="0" * 64, arm="same", seed=seed, environment=job.environment,
                job=add_evaluation_steps({**values, "seed": seed}, metric), metric=metric, phase="noise",
            )  # fmt: skip
            folder, _, said = attempted_in(spec, scratch)
            yield name, taken(folder, said)


def taken(folder: AttemptFolder, said: AttemptOutcome) -> dict[str, float]:
    """Return the seconds of an attempt, of its training, and of what its training waited for."""
    waits = [(int(episodes), float(wait)) for episodes, wait in _WAITED.findall(folder.log("server").read_text())]
    found = {
        "whole": said.seconds, "train": said.stages["train"], "before and after": said.stages["initial"]
        + said.stages["final"], "evaluated during": sum(wait for _, wait in waits), "evaluations": float(len(waits)),
    }  # fmt: skip
    print({name: round(value, 2) for name, value in found.items()}, file=sys.stderr, flush=True)
    return found


def summed(runs: list[tuple[str, dict[str, float]]], metric: Metric) -> dict[str, Any]:
    """Return the figures of all runs."""
    assert metric.schedule is not None
    names = ("whole", "train", "before and after", "evaluated during", "evaluations")
    means = {
        side: {name: round(fmean(run[name] for of, run in runs if of == side), 2) for name in names}
        for side in ("with", "without")
    }
    looks, episodes = means["with"]["evaluations"], metric.schedule.episodes
    ends = 2 * 0.25 / (4 * metric.episodes)  # the trapezes give the first and the last evaluation half a weight
    return {
        "schedule": metric.schedule.model_dump(mode="json"),
        "seconds (mean)": means,
        "share of a run": {
            "longer": round(1 - means["without"]["whole"] / means["with"]["whole"], 4),
            "waited": round(means["with"]["evaluated during"] / means["with"]["whole"], 4),
        },
        "standard error": {
            "of one evaluation": round(sqrt(0.25 / episodes), 4),
            "of the area": round(sqrt(looks * 0.25 / episodes + ends) / (looks + 1), 4),
            "of the last evaluation": round(sqrt(0.25 / metric.episodes), 4),
        },
    }


def missed(figures: dict[str, Any]) -> list[str]:
    """Return the goal of the module's docstring if the figures miss it."""
    share = figures["share of a run"]["longer"]
    return [f"evaluations took {share:.1%} of a run, the goal is {MOST:.0%}"] if share > MOST else []


def table(figures: dict[str, Any]) -> str:
    """Return the figures as text."""
    schedule = figures["schedule"]
    lines = [f"every {schedule['every']} training episodes, {schedule['episodes']} hidden ones", ""]
    for side, seconds in figures["seconds (mean)"].items():
        lines += [f"  {side} a schedule", *(f"  {value:8.2f}  {name}" for name, value in seconds.items())]
    share = figures["share of a run"]
    waited = f"{share['waited']:.1%} waiting for them"
    lines += ["", f"  {share['longer']:.1%} of a run are evaluations during training, {waited}"]
    lines += [f"  {value:.4f}  standard error {name}" for name, value in figures["standard error"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
