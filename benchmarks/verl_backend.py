"""What does a step of the backend `verl` take beside `local`'s, and what of it is the backend's own with a large model?

    python benchmarks/verl_backend.py            about fifteen minutes
    python benchmarks/verl_backend.py --quick    about four minutes: two rounds of few episodes
    python benchmarks/verl_backend.py --json     also writes benchmarks/results/verl_backend.json
    python benchmarks/verl_backend.py --check    exit code 1 unless the goal below is met

Both backends in one process on this CPU, one job: `guess` with the default tiny model but for heads of 32 numbers,
linear rows, one rank, one replica, no server. In 12 rounds, whose order alternates, both play the same 16 tasks of 8
episodes each; then both learn one and the same batch, the one's in odd rounds and the other's in even ones. It runs in
the environment that AJET_VERL_PYTHON names, or .venv-verl (`rig/cluster/pair.py`).

An update of `verl` is split by clocks in driver and rank, which share the machine's (`rig/cluster/parts.py`). What
any learner computes is arithmetic: forward, log-probs, loss, backward, optimiser. All else is the backend's own: rows
dealt and written in verl's form, Ray there and back, verl's engine around the arithmetic, rows and metrics (which
`local` has, too), weights to the replica, and calls and tokens on their way through it. Updates of rows of several
sizes, and publications of two models, give what each call, row, id and byte costs.

Computed from these alone, and not run: what part of a step with a model of 1B parameters is the backend's own, by the
assumptions of `rig/cluster/at_scale.py`, which were written down before anything was measured.

Goal: under 5 % of a step of 1,024 episodes. It holds for these constants, which are a CPU's: how fast weights go to a
GPU was not measured.
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

from rich.console import Console
from rich.table import Table
from rig.frame import circumstances, concluded, parser
from rig.spans import ALL, PARTS
from rig.training import BENCHMARKS, ONE_THREAD, made
from rig.verl_pair import require_verl
from rig.verl_scale import GOAL, JUDGED, STEPS, forecast, line

from swarm.job import TinyModel

NAME = "verl_backend"
BACKENDS = ("local", "verl")


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = parser(__doc__, quick="two rounds of few episodes").parse_args()
    python = require_verl()
    with tempfile.TemporaryDirectory(prefix="ajet-verl-") as folder:
        found = measured(python, Path(folder), quick=options.quick)
    figures = {**summed_up(found), **circumstances(options)}
    show(figures)
    return concluded(NAME, figures, goals_missed(figures), options)


def measured(python: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Have the environment of the backend measure; return what it found."""
    models = made("guess", folder / "models", TinyModel(head_size=32))
    (folder / "order.json").write_text(json.dumps({"quick": quick, "models": str(models)}))
    roots = os.pathsep.join((str(BENCHMARKS.parent), str(BENCHMARKS)))
    subprocess.run(
        [python, "-m", "rig.verl_pair", str(folder)],
        check=True, cwd=BENCHMARKS, env={**os.environ, **ONE_THREAD, "PYTHONPATH": roots, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads((folder / "measured.json").read_text())
    return found


def summed_up(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures: medians over rounds, constants, and what they come to at scale."""
    rounds = found["rounds"]
    constants = constants_of(found)
    return {
        "boot, s": found["boot, s"],
        "medians": {backend: _medians(rounds, backend) for backend in BACKENDS},
        "verl over local, within rounds": {what: median(_ratios(rounds, what)) for what in ("rollout", "update")},
        "parts of an update, s": {
            part: median(each["update"]["verl"]["parts"][part] for each in rounds) for part in (*PARTS, ALL)
        },
        "largest difference of a probability": max(each["update"]["verl"]["difference"] for each in rounds),
        "constants": constants,
        "at scale": [forecast(constants, step) for step in STEPS],
        "measured": found,
    }


def constants_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each call, row, id and byte of the backend's own work costs, in seconds (`at_scale.own_seconds`)."""
    return {
        "update": found["sweep"]["constants"],
        "publish": line(found["publish, small"], found["publish, large"]),
        "rollout": {
            "a call": median(each["call on its way, s"] for each in found["rounds"]),
            "a token": found["token on its way, s"],
        },
    }


def _medians(rounds: Sequence[Mapping[str, Any]], backend: str) -> dict[str, float]:
    rolled = [each["rollout"][backend] for each in rounds]
    updated = [each["update"][backend] for each in rounds]
    return {
        "rollout, s": median(each["seconds"] for each in rolled),
        "calls/s": median(each["calls"] / each["seconds"] for each in rolled),
        "sampled tokens/s": median(each["sampled"] / each["seconds"] for each in rolled),
        "update, s": median(each["update, s"] for each in updated),
        "ids learned/s": median(each["ids"] / each["update, s"] for each in updated),
        "publish, s": median(each["publish, s"] for each in updated),
    }


def _ratios(rounds: Sequence[Mapping[str, Any]], what: str) -> list[float]:
    """Return, for each round, verl's time over local's: of a sampled token, and of an update of the same ids."""
    if what == "update":
        return [each["update"]["verl"]["update, s"] / each["update"]["local"]["update, s"] for each in rounds]
    pace = [{name: own["seconds"] / own["sampled"] for name, own in each["rollout"].items()} for each in rounds]
    return [each["verl"] / each["local"] for each in pace]


def judged_step(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the forecast that the goal is about."""
    found: Mapping[str, Any]
    (found,) = (each for each in figures["at scale"] if each["assumed"]["episodes"] == JUDGED)
    return found


def goals_missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the goal of the module's docstring if it is missed; a quick run has none."""
    part = judged_step(figures)["part"]
    return [] if figures["quick"] or part < GOAL else [f"{part:.3f} of a step at scale, the goal is {GOAL:g}"]


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures."""
    console = Console(width=120)
    table = Table("", *BACKENDS, title="medians over rounds")
    table.add_row("boot, s", *(f"{figures['boot, s'][name]:.1f}" for name in BACKENDS))
    for what in figures["medians"]["local"]:
        table.add_row(what, *(f"{figures['medians'][name][what]:,.3f}" for name in BACKENDS))
    console.print(table)
    parts, whole = figures["parts of an update, s"], figures["parts of an update, s"][ALL]
    split = Table("part of an update of verl", "ms", "%", title="where it goes")
    for part, seconds in parts.items():
        split.add_row(part, f"{1e3 * seconds:.1f}", f"{100 * seconds / whole:.1f}")
    console.print(split)
    sizes = (f"{each['assumed']['episodes']:,} episodes" for each in figures["at scale"])
    scale = Table("at 1B parameters, computed", *sizes)
    scale.add_row("arithmetic, assumed, s", *(f"{each['arithmetic, s']:.1f}" for each in figures["at scale"]))
    for part in figures["at scale"][0]["own, s"]:
        scale.add_row(f"{part}, s", *(f"{each['own, s'][part]:.3f}" for each in figures["at scale"]))
    scale.add_row("part of the step", *(f"{100 * each['part']:.1f} %" for each in figures["at scale"]))
    console.print(scale)
    print(f"constants: {json.dumps(figures['constants'])}")
    print(f"measured on {figures['machine']}")


if __name__ == "__main__":
    sys.exit(main())
