"""What does every corner of a grid of real trainings come to, so that a search of it can be judged by a known best?

    python benchmarks/landscape.py             records what is missing of 540 trainings: about 45 minutes of one core
    python benchmarks/landscape.py --quick     4 short trainings, kept nowhere
    python benchmarks/landscape.py --seeds 3   the whole grid for fewer seeds
    python benchmarks/landscape.py --json      also packs it into research/simlab/landscapes/, and draws it:
                                               benchmarks/results/landscape.{json,svg}

Recorded are `arith` and `guess`, each over 5 learning rates, 3 group sizes and 3 numbers of epochs, with 6 seeds: GRPO
on the tiny model, 32 steps of 128 and 64 episodes, all else as a job is by default. Each run counts, with every task
played once: hidden tasks solved before and after training, and search tasks after steps 4, 8, 16 and 32, which is what
a search may look at. Its CPU seconds are those of training and of these plays.

A run is a line of a file in `--lines`; a killed recording goes on where it stopped, also in two processes, each with an
`--environment` of its own. A seed whose grid is not whole is not packed. There is no goal: what is found is the ground
that searches are compared on, and no search is run here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from rig.frame import circumstances, parser
from rig.models import made
from rig.recording import Plan, Recording
from rig.training import ONE_THREAD

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


def main() -> int:
    """Record what is missing; return the exit code."""
    arguments = _arguments()
    os.environ.update(ONE_THREAD)  # before torch is imported
    with tempfile.TemporaryDirectory(prefix="ajet-landscape-") as scratch:
        folder = Path(scratch) if arguments.quick else arguments.lines
        for environment in arguments.environment or EPISODES:
            recorded(environment, folder, arguments)
    return 0


def _arguments() -> argparse.Namespace:
    options = parser(__doc__, quick="2 places of the grid, 1 seed, 4 steps")
    options.add_argument("--environment", action="append", choices=EPISODES, help="only this one")
    options.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds of each place of the grid (default {SEEDS})")
    options.add_argument(
        "--lines", type=Path, default=Path(tempfile.gettempdir()) / "ajet-landscape", help="folder of what is recorded"
    )
    return options.parse_args()


def plan(environment: str, *, seeds: int, quick: bool) -> Plan:
    """Return what is recorded of an environment."""
    rungs = RUNGS[:1] if quick else RUNGS
    job = {"environment": environment, "episodes_per_step": EPISODES[environment], "steps": rungs[-1], "device": "cpu"}
    return Plan(job, QUICK if quick else KNOBS, tuple(range(1, 2 if quick else seeds + 1)), rungs)


def recorded(environment: str, folder: Path, arguments: argparse.Namespace) -> Recording:
    """Train what is not recorded yet, and return the whole."""
    wanted = plan(environment, seeds=arguments.seeds, quick=arguments.quick)
    recording = Recording(folder / f"{environment}.jsonl", wanted, circumstances(arguments))
    models = made(environment, folder / "models")
    recording.record(models, lambda line: print(f"{environment} {line}", file=sys.stderr, flush=True))
    return recording


if __name__ == "__main__":
    sys.exit(main())
