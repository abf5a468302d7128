"""Do the swarm's powers hold what they promise?

    python benchmarks/powers.py                  all proofs: about two hours on two quiet cores
    python benchmarks/powers.py --only teams     only this one (again: --only reload ...)
    python benchmarks/powers.py --quick          the same at a size that shows that they run, and proves nothing
    python benchmarks/powers.py --json           also writes benchmarks/results/powers.json; a proof that was not run
                                                 keeps what is there
    python benchmarks/powers.py --check          exit code 1 unless the goals below are met

- teams: two models that must cooperate learn together what neither learns beside a frozen one; with the hints of other
  tasks they fall to chance; a frozen member's weights stay bit-equal.
- cocktail: one model that learns three tasks is equal, within 0.1 of success, to three that learn one each, at equal
  tokens.
- faults: a training whose clients are killed every 5 s comes to the same reward, within 0.1, and every episode that was
  begun is accounted for once.
- reload: from the save of an agent's code to its first play in under 3 s, the slowest of 10 saves too.

Each is judged by the project's own statistics (`benchmarks/powers/`). What misses is published as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rig.frame import RESULTS, circumstances, parser

NAME = "powers"
PROOFS = ("teams", "cocktail", "faults", "reload")
Figures = Mapping[str, Any]


def main() -> int:
    """Run the proofs; return the exit code."""
    options = _options()
    known = _before() if options.only else {}
    missed: list[str] = []
    for name in options.only or PROOFS:
        figures = import_module(f"powers.{name}").measure(options.quick)
        found = _goals(name, figures)
        known[name] = {**figures, "goals": found, **circumstances(options)}
        missed += [f"{name}: {goal}" for goal, met in found.items() if not met]
        sys.stdout.write(f"{name}: {json.dumps(found)}\n")
        if options.json:  # after each, so that a run that is ended keeps what it measured
            written = {"proofs": known, **circumstances(options)}
            (RESULTS / f"{NAME}.json").write_text(json.dumps(written, indent=1) + "\n")
    if options.check and missed:
        sys.stdout.write("missed: " + "; ".join(missed) + "\n")
        return 1
    return 0


def _options() -> argparse.Namespace:
    options = parser(__doc__, quick="a size that shows that they run")
    options.add_argument("--only", action="append", choices=PROOFS, help="only this proof")
    return options.parse_args()


def _before() -> dict[str, Any]:
    path = RESULTS / f"{NAME}.json"
    found: dict[str, Any] = json.loads(path.read_text())["proofs"] if path.exists() else {}
    return found


def _goals(name: str, figures: Figures) -> dict[str, bool]:
    """Return which goals of a proof its figures meet."""
    match name:
        case "teams":
            return {"joint beats each frozen member, and falls to chance with other hints": bool(figures["holds"])}
        case "cocktail":
            verdicts = {task: found["verdict"] for task, found in figures["tasks"].items()}
            return {f"{task}: joint as good as alone": verdict == "equivalent" for task, verdict in verdicts.items()}
        case "faults":
            same = {"equivalent under kills": bool(figures["verdict"]["equivalent"])}
            return {**same, "every balance sheet closes": not figures["balance faults"]}
        case _:
            return {"every save is played within the goal": figures["reload, all under the goal"]}


if __name__ == "__main__":
    sys.exit(main())
