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

import json
import sys
from importlib import import_module

from rig.frame import circumstances, concluded, earlier, parser

NAME = "powers"
PROOFS = ("teams", "cocktail", "faults", "reload")


def main() -> int:
    """Run the proofs; return the exit code."""
    options = parser(__doc__, quick="a size that shows that they run")
    options.add_argument("--only", action="append", choices=PROOFS, help="only this proof")
    arguments = options.parse_args()
    proofs = earlier(NAME).get("proofs", {}) if arguments.only else {}
    missed: list[str] = []
    code = 0
    for name in arguments.only or PROOFS:
        figures = import_module(f"powers.{name}").measure(arguments.quick)
        proofs[name] = {**figures, **circumstances(arguments)}
        missed += [f"{name}: {goal}" for goal, met in figures["goals"].items() if not met]
        print(f"{name}: {json.dumps(figures['goals'])}", flush=True)
        # after each, so that a run that is ended keeps what it measured
        code = concluded(NAME, {"proofs": proofs, **circumstances(arguments)}, missed, arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
