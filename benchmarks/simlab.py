"""How often is ajet wrong, and what does it see, when the truth is known?

    python benchmarks/simlab.py                 all suites at full size: thousands of studies, half an hour of two cores
    python benchmarks/simlab.py --quick         the same at a size for CI: a few minutes of one core
    python benchmarks/simlab.py --suite null    only this one (again: --suite effects ...)
    python benchmarks/simlab.py --json          also writes benchmarks/results/simlab.json, docs/calibration.md and
                                                its plots; a suite that was not run keeps what is there
    python benchmarks/simlab.py --render        flies nothing: docs/calibration.md and its plots from what is there
    python benchmarks/simlab.py --check         exit code 1 unless the bars below are kept

Studies fly through the shipped loop (planner seam, compiler, scheduler, recovery, collection, statistics, decision
table) against simulated training whose truth was planted (benchmarks/simlab/). No model is trained, so nothing here
says what works in reinforcement learning: it says how often the system that studies it is right.

The bars. Studies of knobs that do nothing, for each kind of ugly noise and mixtures of them: a false claim in at most
5 %. Planted effects, for each kind again: sign errors in at most 1 % of the claims; power of 75 % at the promised
effect; called equivalent at the margin in at most 5 %. 95 % intervals hold the truth 93 to 97 % of the time. Where a
share is of too few to tell, it is marked with a question mark and neither kept nor missed. Confounds and traps: none is
a result. Killed controllers: the same verdicts, no duplicate, no orphan, at every event. Budgets: never exceeded; what
cannot be afforded is refused with a price that is enough. What misses a bar is published as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rig.calibration_page import write_page
from rig.frame import RESULTS, circumstances, earlier, parser, tell
from simlab.scores import SuiteOutcome
from simlab.suites import (
    baits,
    budget,
    effects,
    equivalence,
    faults,
    inquiries,
    null,
    planners,
    search,
    traps,
)

NAME = "simlab"
FLOWN = ("date", "commit")
"""What a suite's figures say of the version that they are of."""


def main() -> int:
    """Run the suites; return the exit code."""
    arguments = _arguments()
    if arguments.render:
        write_page(earlier(NAME))
        return 0
    before = _before() if arguments.suite else {}
    found: dict[str, Any] = dict(before.pop("suites", {}))
    made = before or circumstances(arguments)  # a page some of whose suites are flown again keeps its version
    missed: list[str] = []
    for name in arguments.suite or SUITES:
        began = time.monotonic()
        suite, quick, full = SUITES[name]
        sizes = quick if arguments.quick else full
        outcome = suite(*sizes, workers=arguments.workers, tell=tell)
        flown = {key: circumstances(arguments)[key] for key in FLOWN}
        found[name] = {**outcome.payload(), "seconds": round(time.monotonic() - began, 1), **flown}
        missed += outcome.missed
        show(outcome, found[name]["seconds"])
        if arguments.json:  # after each suite, so that a run that is ended keeps what it measured
            figures = {"suites": {name: found[name] for name in SUITES if name in found}, **made}
            (RESULTS / f"{NAME}.json").write_text(json.dumps(figures, indent=1) + "\n")
            write_page(figures)
    if arguments.check and missed:
        sys.stdout.write("missed: " + "; ".join(missed) + "\n")
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    options = parser(__doc__, quick="a size for CI", parallel=True)
    options.add_argument("--suite", action="append", choices=SUITES, help="only this suite")
    options.add_argument("--render", action="store_true", help="fly nothing")
    return options.parse_args()


def _before() -> dict[str, Any]:
    value = earlier(NAME)
    for suite in value.get("suites", {}).values():  # one that is kept stays of the version that flew it
        for key in FLOWN:
            suite.setdefault(key, value[key])
    return value


def show(outcome: SuiteOutcome, seconds: float) -> None:
    """Print what a suite found."""
    sys.stdout.write(f"\n{outcome.question}  ({outcome.name}: {outcome.flights} flights, {seconds:.0f} s)\n")
    for figure in outcome.figures:
        mark = "?" if figure.small else {None: " ", True: "+", False: "-"}[figure.kept]
        sys.stdout.write(f"  {mark} {figure.words()}\n")
    for row in outcome.rows:
        cells = (f"{name} {value}" for name, value in row.items() if name not in ("what", "said"))
        sys.stdout.write(f"    {', '.join(cells)}\n")
    sys.stdout.flush()


SUITES: dict[str, tuple[Callable[..., SuiteOutcome], Sequence[int], Sequence[int]]] = {
    null.NAME: (null.measure, (2, 2), (4, 700)),
    effects.NAME: (effects.measure, (24, 1, 1), (240, 4, 500)),
    equivalence.NAME: (equivalence.measure, (18,), (1200,)),
    baits.NAME: (baits.measure, (1,), (5,)),
    traps.NAME: (traps.measure, (1,), (5,)),
    faults.NAME: (faults.measure, (1, 8, 10), (3, 80, 1)),
    budget.NAME: (budget.measure, (4,), (24,)),
    planners.NAME: (planners.measure, (2,), (20,)),
    search.NAME: (search.measure, (7,), (84,)),
    inquiries.NAME: (inquiries.measure, (4, 1, 120), (20, 1, 20)),
}
"""Each with its quick size and the full one, at which the bars of mixtures and margins can be told."""


if __name__ == "__main__":
    sys.exit(main())
