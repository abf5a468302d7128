"""What does a step of the backend `verl` take beside `local`'s?

    python benchmarks/verl_backend.py            about ten minutes
    python benchmarks/verl_backend.py --quick    about four minutes: two rounds of few episodes
    python benchmarks/verl_backend.py --json     also writes benchmarks/results/verl_backend.json

Both backends in one process on this CPU, one job: `guess` with the default tiny model but for heads of 32 numbers,
linear rows, one rank, one replica, no server. In 12 rounds, whose order alternates, both play the same 16 tasks of 8
episodes each; then both learn one and the same batch, the one's in odd rounds and the other's in even ones. It runs in
the environment that AJET_VERL_PYTHON names, or .venv-verl (`rig/verl_pair.py`). There is no goal: what a step takes on
GPUs was not measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rig.frame import circumstances, concluded, parser, show_table
from rig.training import BENCHMARKS, ONE_THREAD, made
from rig.verl_pair import require_verl

from swarm.job import TinyModel

BACKENDS = ("local", "verl")


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = parser(__doc__, quick="two rounds of few episodes").parse_args()
    python = require_verl()
    with tempfile.TemporaryDirectory(prefix="ajet-verl-") as folder:
        figures = {**summed_up(measured(python, Path(folder), quick=options.quick)), **circumstances(options)}
    show(figures)
    return concluded("verl_backend", figures, (), options)


def measured(python: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Have the environment of the backend measure; return what it found."""
    models = made("guess", folder / "models", TinyModel(head_size=32))
    (folder / "order.json").write_text(json.dumps({"quick": quick, "models": str(models)}))
    roots = os.pathsep.join((str(BENCHMARKS.parent), str(BENCHMARKS)))
    subprocess.run(
        [python, "-m", "rig.verl_pair", str(folder)],
        check=True, cwd=BENCHMARKS, env={**os.environ, **ONE_THREAD, "PYTHONPATH": roots, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    figures: dict[str, Any] = json.loads((folder / "measured.json").read_text())
    return figures


def summed_up(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures: medians over rounds, and verl's times over local's within each round."""
    rounds = figures["rounds"]
    return {
        "boot, s": figures["boot, s"],
        "medians": {backend: _medians(rounds, backend) for backend in BACKENDS},
        "verl over local, within rounds": {
            "rollout": median(_pace(one["rollout"]["verl"]) / _pace(one["rollout"]["local"]) for one in rounds),
            "update": median(
                one["update"]["verl"]["update, s"] / one["update"]["local"]["update, s"] for one in rounds
            ),
        },
        "largest difference of a probability": max(one["update"]["verl"]["difference"] for one in rounds),
        "measured": figures,
    }


def _pace(rollout: Mapping[str, float]) -> float:
    return rollout["seconds"] / rollout["sampled"]


def _medians(rounds: Sequence[Mapping[str, Any]], backend: str) -> dict[str, float]:
    rollouts = [one["rollout"][backend] for one in rounds]
    updates = [one["update"][backend] for one in rounds]
    return {
        "rollout, s": median(one["seconds"] for one in rollouts),
        "calls/s": median(one["calls"] / one["seconds"] for one in rollouts),
        "sampled tokens/s": median(one["sampled"] / one["seconds"] for one in rollouts),
        "update, s": median(one["update, s"] for one in updates),
        "ids learned/s": median(one["ids"] / one["update, s"] for one in updates),
        "publish, s": median(one["publish, s"] for one in updates),
    }


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures."""
    rows = [("boot, s", *(f"{figures['boot, s'][name]:.1f}" for name in BACKENDS))]
    rows += [
        (what, *(f"{figures['medians'][name][what]:,.3f}" for name in BACKENDS)) for what in figures["medians"]["local"]
    ]
    show_table("medians over rounds", ("", *BACKENDS), rows)
    print(f"verl over local, within rounds: {figures['verl over local, within rounds']}")
    print(f"measured on {figures['machine']}")


if __name__ == "__main__":
    sys.exit(main())
