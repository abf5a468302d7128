"""What does a step of the backend `verl` take beside `local`'s, and what of a large model's is the backend's own?

    python benchmarks/verl_backend.py            about fifteen minutes
    python benchmarks/verl_backend.py --quick    about six minutes: two rounds of few episodes
    python benchmarks/verl_backend.py --json     also writes benchmarks/results/verl_backend.json
    python benchmarks/verl_backend.py --check    exit code 1 unless the goal below is met

Both backends in one process on this CPU, one job: `guess` with the default tiny model but for heads of 32 numbers,
linear rows, one rank, one replica, no server. In 12 rounds, whose order alternates, both play the same 16 tasks of 8
episodes each; then both learn one and the same batch, the one's in odd rounds and the other's in even ones. It runs in
the environment that AJET_VERL_PYTHON names, or .venv-verl (`rig/verl_pair.py`).

Computed, not run: what part of a step with 1B parameters is the backend's own, by what a row, an id, a micro-batch, a
byte and a token cost here. Arithmetic is assumed, without attention (6 N FLOP for each id of an update, 2 N for
each that is read or sampled: arXiv 2001.08361, section 2.1), at 40 % of an H100's dense bf16 rate; a real generation
takes far longer. Micro-batches are as large as 80 GB take; with the default of `micro_batch_tokens` each would have one
row. Goal: at most 15 %. It holds for these constants, which are a CPU's; nothing overlaps, and the way of a call to a
replica, half a second for four, is left out.
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
GOAL = 0.15
ASSUMED = {
    "episodes": 1024, "ids": 2048, "sampled": 1024, "ids of a micro-batch": 16384, "parameters": 1e9,
    "bytes of a parameter": 2, "FLOP/s": 4e14,
}  # fmt: skip
"""A step; ids and sampled ids are an episode's."""


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = parser(__doc__, quick="two rounds of few episodes").parse_args()
    python = require_verl()
    with tempfile.TemporaryDirectory(prefix="ajet-verl-") as folder:
        figures = {**summed_up(measured(python, Path(folder), quick=options.quick)), **circumstances(options)}
    show(figures)
    return concluded("verl_backend", figures, goals_missed(figures), options)


def goals_missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the goal of the module's docstring if it is missed; a quick run has none."""
    part = figures["at scale"]["part"]
    return [] if figures["quick"] or part <= GOAL else [f"{part:.3f} of a step at scale, the goal is {GOAL:g}"]


def forecast(own: Mapping[str, Any], step: Mapping[str, float] = ASSUMED) -> dict[str, Any]:
    """Return what a step at scale would take, by part, in seconds, and the backend's own part of it."""
    from scipy.optimize import nnls

    points, counted = own["updates"], ("rows", "ids", "micro-batches")
    design = [[1 / point["seconds"], *(point[name] / point["seconds"] for name in counted)] for point in points]
    costs = dict(zip(("a call", *counted), map(float, nnls(design, [1.0] * len(points))[0]), strict=True))
    small, large = own["publications"]
    a_byte = (large["seconds"] - small["seconds"]) / (large["bytes"] - small["bytes"])
    ids = step["episodes"] * step["ids"]
    counts = {"rows": step["episodes"], "ids": ids, "micro-batches": ids / step["ids of a micro-batch"]}
    seconds = {f"an update's {name}": costs[name] * count for name, count in {"a call": 1, **counts}.items()} | {
        "weights to the replica": small["seconds"] + a_byte * step["parameters"] * step["bytes of a parameter"],
        "tokens on their way": own["a token, s"] * step["sampled"] * step["episodes"],
    }
    whole, arithmetic = sum(seconds.values()), 8 * step["parameters"] * ids / step["FLOP/s"]
    return {
        "assumed": dict(step), "costs, s": {**costs, "a byte": a_byte}, "own, s": seconds, "own, all, s": whole,
        "arithmetic, s": arithmetic, "part": whole / (whole + arithmetic),
    }  # fmt: skip


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
        "at scale": forecast(figures["own"]),
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
    scale = figures["at scale"]
    rows = [(what, f"{value:.3f}") for what, value in scale["own, s"].items()]
    rows += [("arithmetic, assumed", f"{scale['arithmetic, s']:.1f}"), ("own part, %", f"{100 * scale['part']:.1f}")]
    show_table("a step of 1,024 episodes with 1B parameters, computed, s", ("", "verl"), rows)
    print(f"measured on {figures['machine']}")


if __name__ == "__main__":
    sys.exit(main())
