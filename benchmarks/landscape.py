"""What does every corner of a grid of real trainings come to, so that a search of it can be judged by a known best?

    python benchmarks/landscape.py             records what is missing of 540 trainings: about 40 minutes of one core
    python benchmarks/landscape.py --quick     8 short trainings, kept nowhere
    python benchmarks/landscape.py --seeds 3   the whole grid for fewer seeds
    python benchmarks/landscape.py --json      also packs it into benchmarks/simlab/landscape_data/, and draws it:
                                               benchmarks/results/landscape.{json,svg}

Recorded are `arith` and `guess`, each over 5 learning rates, 3 group sizes and 3 numbers of epochs, with 6 seeds: GRPO
on the tiny model, 32 steps of 128 and 64 episodes, all else as a job is by default. Each run counts, with every task
played once: hidden tasks solved before and after training, and search tasks after steps 4, 8, 16 and 32, which is what
a search may look at. Its CPU seconds are those of training and of these plays.

A run is a line of a file in `--lines`; a killed recording goes on where it stopped, also in two processes, each with an
`--environment` of its own. A seed whose grid is not whole is not packed; `--json --environment NAME` packs one, and
draws all that are shipped. There is no goal: what is found is the ground that searches are compared on, and no search
is run here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table
from rig.frame import RESULTS, circumstances, concluded, parser
from rig.plots import draw_landscapes
from rig.recorded_grid import Plan, Recording
from rig.training import ONE_THREAD, made
from simlab.landscapes import FOLDER, SUFFIX, Landscape, names

KNOBS: dict[str, tuple[int | float, ...]] = {
    "learning_rate": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "group_size": (4, 8, 16),
    "epochs": (1, 2, 4),
}
EPISODES = {"arith": 128, "guess": 64}
"""Episodes a step: a `guess` is up to four turns, so that half as many plays cost more than as many sums."""
RUNGS = (4, 8, 16, 32)
SEEDS = 6
QUICK: dict[str, tuple[int | float, ...]] = {"learning_rate": (1e-4, 1e-3), "group_size": (4,), "epochs": (1,)}
COMMAND = "python benchmarks/landscape.py --json"
SHIPPED = Path(__file__).parent / "simlab" / FOLDER


def main() -> int:
    """Record what is missing, show what there is, and pack and draw it where asked; return the exit code."""
    arguments = _arguments()
    os.environ.update(ONE_THREAD)  # before torch is imported
    with tempfile.TemporaryDirectory(prefix="ajet-landscape-") as scratch:
        folder = Path(scratch) if arguments.quick else arguments.lines
        chosen = arguments.environment or tuple(EPISODES)
        packed = {name: recorded(name, folder, arguments).packed() for name in chosen}
    if arguments.json:
        for name, value in packed.items():
            shipped(value, SHIPPED / f"{name}{SUFFIX}")
        landscapes = [Landscape.load(name) for name in names()]
        draw_landscapes(landscapes, RESULTS / "landscape.svg", note=_note(landscapes))
    else:
        landscapes = [Landscape.of(value) for value in packed.values()]
    figures = {
        "command": COMMAND,
        "environments": {one.environment: figures_of(one) for one in landscapes},
        "quick": arguments.quick,
    }
    show(figures)
    return concluded("landscape", figures, (), arguments)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__, quick="2 places of the grid, 2 seeds, 4 steps")
    options.add_argument("--environment", action="append", choices=EPISODES, help="only this one")
    options.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds of each place of the grid (default {SEEDS})")
    options.add_argument(
        "--lines", type=Path, default=Path(tempfile.gettempdir()) / "ajet-landscape", help="folder of what is recorded"
    )
    given = options.parse_args()
    if given.json and given.quick:
        options.error("--json ships what is recorded in full: leave --quick out")
    return given


def plan(environment: str, *, seeds: int, quick: bool) -> Plan:
    """Return what is recorded of an environment."""
    rungs = RUNGS[:1] if quick else RUNGS
    job = {"environment": environment, "episodes_per_step": EPISODES[environment], "steps": rungs[-1], "device": "cpu"}
    return Plan(job, QUICK if quick else KNOBS, tuple(range(1, 1 + (2 if quick else seeds))), rungs)


def recorded(environment: str, folder: Path, arguments: argparse.Namespace) -> Recording:
    """Train what is not recorded yet, and return the whole."""
    wanted = plan(environment, seeds=arguments.seeds, quick=arguments.quick)
    recording = Recording(folder / f"{environment}.jsonl", wanted, circumstances(arguments))
    if recording.whole_seeds() != wanted.seeds:
        models = made(environment, folder / "models")
        recording.record(models, lambda line: print(f"{environment} {line}", file=sys.stderr, flush=True))
    return recording


def shipped(value: dict[str, Any], path: Path) -> None:
    """Write a landscape as the package's data; the same values give the same bytes."""
    path.parent.mkdir(exist_ok=True)
    told = {**value, "provenance": {"command": COMMAND, **value["provenance"]}}
    path.write_bytes(gzip.compress(json.dumps(told, separators=(",", ":")).encode(), mtime=0))


def figures_of(landscape: Landscape) -> dict[str, Any]:
    """Return what a reader of the landscape wants to know, with every configuration's mean."""
    best, top = landscape.best()
    deviation, freedom = landscape.noise()
    before = fmean(landscape.before(one, seed) for one in landscape.configurations() for seed in landscape.seeds)
    means = {_said(one): round(landscape.mean(one), 4) for one in landscape.configurations()}
    own = [stdev([landscape.value(one, seed) for seed in landscape.seeds]) for one in landscape.configurations()]
    reach = 2 * deviation * math.sqrt(2 / len(landscape.seeds))
    return {
        "runs": len(landscape.runs),
        "configurations": len(means),
        "seeds": len(landscape.seeds),
        "tasks played": {"hidden": landscape.plays.hidden, "search": landscape.plays.search},
        "before training": round(before, 4),
        "best": {"at": best, "mean": round(top, 4)},
        "within two standard errors of the best": sum(mean > top - reach for mean in means.values()),
        "below the untrained model": sum(mean < before for mean in means.values()),
        "noise": {"sd": round(deviation, 4), "degrees of freedom": freedom, "largest sd": round(max(own), 4)},
        "rank correlation by rung": {str(rung): _correlations(landscape, rung) for rung in landscape.rungs},
        "cpu seconds": round(sum(run.seconds for run in landscape.runs.values())),
        "mean by configuration": means,
        "recorded": landscape.provenance,
    }


def _correlations(landscape: Landscape, rung: int) -> dict[str, Any]:
    alone = [landscape.rung_correlation(rung, seed) for seed in landscape.seeds]
    return {
        "of means": round(landscape.rung_correlation(rung), 3),
        "of one seed, lowest": round(min(alone), 3),
        "of one seed, mean": round(fmean(alone), 3),
    }


def _said(configuration: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in configuration.items())


def _note(landscapes: list[Landscape]) -> str:
    each = (
        f"{one.environment}: {len(one.seeds)} seeds, {figures_of(one)['before training']:.2f} before"
        for one in landscapes
    )
    return f"mean over seeds ± their standard deviation, after {RUNGS[-1]} steps; framed: the best; {'; '.join(each)}"


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    table = Table(title="recorded landscapes: share of hidden tasks solved after training")
    for name in ("", "runs", "before", "best", "at", "seed sd", "as good", "worse than before", "CPU s"):
        table.add_column(name, justify="left" if name in ("", "at") else "right")
    for environment, own in figures["environments"].items():
        table.add_row(
            environment,
            str(own["runs"]),
            f"{own['before training']:.3f}",
            f"{own['best']['mean']:.3f}",
            _said(own["best"]["at"]),
            f"{own['noise']['sd']:.3f}",
            str(own["within two standard errors of the best"]),
            str(own["below the untrained model"]),
            str(own["cpu seconds"]),
        )
    Console(width=130).print(table)
    for environment, own in figures["environments"].items():
        of = own["rank correlation by rung"].items()
        said = ", ".join(f"{rung}: {one['of means']:.2f} ({one['of one seed, mean']:.2f})" for rung, one in of)
        print(f"{environment}: rank correlation with the end, of the search tasks after steps {said}")
    print("of means over the seeds, and in brackets of one seed; as good: within two standard errors of the best")
    if figures["quick"]:
        print("a quick run; the full one: python benchmarks/landscape.py --json")


if __name__ == "__main__":
    sys.exit(main())
