"""Does the backend `verl` learn what `local` learns, as whole trainings of real servers?

    python benchmarks/verl_agreement.py            20 trainings, one after the other: about an hour
    python benchmarks/verl_agreement.py --quick    4 trainings of 2 steps: no intervals, no goal
    python benchmarks/verl_agreement.py --json     also writes benchmarks/results/verl_agreement.{json,svg}
    python benchmarks/verl_agreement.py --check    exit code 1 unless the goals below are met
    python benchmarks/verl_agreement.py --only guess --seeds 20 --attempts 10       more of one, which --json writes
                                                   beside the others: verl_agreement_guess.{json,svg}

`guess` and `arith`, each by both backends with the same jobs and the same seeds: the default tiny model but with heads
of 32 numbers (vLLM has no attention for fewer on a CPU), warm-started as ever, GRPO, rows that are linear. Every
training is a swarm server of its own, as `ajet swarm start` begins one, with its store, its Ray and its vLLM; the
built-in agents play over HTTP. Both backends run in the environment that AJET_VERL_PYTHON names, or .venv-verl.
The seed is that of sampling and of the tasks' order. Two engines draw other tokens with it: a pair shares its order of
tasks and no more.

Judged is success on 216 held-out tasks after the last step, and the mean of training success over all steps, by the
verdict that studies get (`studies/verdicts`, paired by seed, two one-sided tests) with the margins of
`rig/verl_agreement.py`, which were written down before any training.

Goals: every one of these verdicts is `equivalent`, and both backends learn: the interval of what each gains lies above
its margin, or being equal would say little.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from rig.frame import RESULTS, circumstances, concluded, parser, show_table
from rig.plots import Curve, band, draw
from rig.training import made
from rig.verl_agreement import (
    BACKENDS,
    MARGINS,
    AgreementSize,
    ServedTraining,
    job_of,
    of_environment,
    trained,
)
from rig.verl_pair import require_verl

from swarm.job import TinyModel

NAME = "verl_agreement"
FULL = AgreementSize(("guess", "arith"), seeds=5, steps=30, episodes_per_step=128, held_out=216)
QUICK = AgreementSize(("guess", "arith"), seeds=1, steps=2, episodes_per_step=16, held_out=8)


def main() -> int:
    """Run the benchmark; return the exit code."""
    known = parser(__doc__, quick="few steps, one seed")
    known.add_argument("--only", choices=FULL.environments, help="one environment alone")
    known.add_argument("--seeds", type=int, help=f"trainings of each backend (default {FULL.seeds}; quick: 1)")
    known.add_argument("--attempts", type=int, default=1, help="plays of each held-out task (default 1)")
    options = known.parse_args()
    os.environ["AJET_VERL_PYTHON"] = require_verl()
    size = replace(QUICK if options.quick else FULL, attempts=options.attempts)
    size = replace(size, seeds=options.seeds or size.seeds)
    size = replace(size, environments=(options.only,) if options.only else size.environments)
    name = f"{NAME}_{options.only}" if options.only else NAME
    with tempfile.TemporaryDirectory(prefix="ajet-agreement-") as temporary:
        found = _all_trained(size, Path(temporary))
    figures = {**_figures(found, size), **circumstances(options)}
    show(figures)
    if options.json:
        _draw(figures, name)
    return concluded(name, figures, goals_missed(figures), options)


def _all_trained(size: AgreementSize, folder: Path) -> list[ServedTraining]:
    """Train seed by seed, the backends in turns, neither always first; return all trainings."""
    models, found = folder / "models", []
    for environment in size.environments:
        made(environment, models, TinyModel(head_size=32))
    for seed, environment in product(range(size.seeds), size.environments):
        for backend in BACKENDS if seed % 2 == 0 else BACKENDS[::-1]:
            place, began = folder / f"{environment}-{backend}-{seed}", time.monotonic()
            done = trained(place, models, job_of(environment, backend, seed, size), size)
            found.append(done)
            ends = f"{done.before:.3f} to {done.end:.3f}, mean of the curve {done.curve:.3f}"
            print(f"{environment}, {backend}, seed {seed}: {ends}; {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def _figures(found: Sequence[ServedTraining], size: AgreementSize) -> dict[str, Any]:
    judged = size.seeds > 1
    return {
        "size": asdict(size),
        "margins": dict(MARGINS),
        "seconds of all trainings": round(sum(each.boot_s + each.train_s for each in found)),
        "environments": {name: of_environment(name, found, size.held_out * size.attempts) for name in size.environments}
        if judged
        else {},
        "trainings": [asdict(each) for each in found],
    }


def _draw(figures: Mapping[str, Any], name: str) -> None:
    panels = {
        environment: {
            backend: Curve(range(1, len(runs[0]) + 1), band(runs))
            for backend in BACKENDS
            for runs in [own["arms"][backend]["success by step"]]
        }
        for environment, own in figures["environments"].items()
    }
    if panels:
        size = figures["size"]
        note = f"mean of {size['seeds']} seeds and its 95 % interval; {size['episodes_per_step']} episodes a step"
        draw(panels, RESULTS / f"{name}.svg", x="training step", y="success", note=note)


def goals_missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the goals of the module's docstring that are missed; one seed has none."""
    missed = []
    for environment, own in figures["environments"].items():
        for measure, found in own["verdicts"].items():
            if found["verdict"] != "equivalent":
                missed.append(f"{environment}, {measure}: {found['verdict']}, not equivalent within {found['margin']}")
        for backend, arm in own["arms"].items():
            if arm["gain"]["low"] <= figures["margins"]["end"]:
                missed.append(f"{environment}: training with {backend} may gain no more than {arm['gain']['low']:.3f}")
    return missed


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures."""
    rows = [
        (f"{environment}: {measure}", *(_shown(own["arms"][backend][measure]) for backend in BACKENDS),
         _difference(found), found["verdict"])
        for environment, own in figures["environments"].items() for measure, found in own["verdicts"].items()
    ]  # fmt: skip
    title = "success, mean and 95 % interval over seeds; differences with their 90 % interval"
    show_table(title, ("", *BACKENDS, "verl less local", "verdict"), rows)
    for each in figures["trainings"]:
        print(f"{each['environment']}, {each['backend']}, seed {each['seed']}: {each['before']:.3f} to "
              f"{each['end']:.3f}, boot {each['boot_s']} s, training {each['train_s']} s")  # fmt: skip
    print(f"{figures['seconds of all trainings']} s in all, on {figures['machine']}")


def _difference(found: Mapping[str, Any]) -> str:
    same = found["equivalence"]
    if same is None:
        return "" if found["estimate"] is None else f"{found['estimate']:+.3f}"
    return f"{found['estimate']:+.3f} [{same['low']:+.3f}, {same['high']:+.3f}]"


def _shown(value: Mapping[str, float]) -> str:
    return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
