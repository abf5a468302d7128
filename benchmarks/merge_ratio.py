"""How many tokens does merging a batch's calls save, and is it what arithmetic says?

    python benchmarks/merge_ratio.py            all workloads
    python benchmarks/merge_ratio.py --quick    the small ones only
    python benchmarks/merge_ratio.py --json     also writes benchmarks/results/merge_ratio.json
    python benchmarks/merge_ratio.py --check    exit code 1 unless the goals below are met

The calls of conversations as a server keeps them. Their first prompt has P tokens, each of T turns samples a and is
followed by o observed tokens; a group has n episodes of one task. Ids are counted by the learner's own code in three
views: one row per call (unmerged), one row per leaf (linear), one packed tree per group (tree).

Goals: every count equals the closed form of docs/timelines.md exactly, and T/2 <= unmerged/linear < T.

Counts, not times: they are the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rig.frame import circumstances, concluded, parser, show_table
from rig.workloads import Workload, conversations, ids_of

QUICK = 10_000
"""Linear tokens of the largest workload that `--quick` plays."""
VOCABULARY = 50_000
VIEWS = {"unmerged": "none", "linear": "linear", "tree": "tree"}
"""What each view is called as a layout of rows."""


def closed_form(load: Workload) -> dict[str, int]:
    """Return the ids of each view by arithmetic.

    Unmerged, every call carries the visible part of all before it: n (T P + T a + (a - t + o) T (T - 1) / 2). Linear is
    n (P + T a + (T - 1) o), but unmerged where thinking is dropped: then no call goes on from another. A tree is
    P + n (T a + (T - 1) o); with thinking, a call's visible words are there once more behind the last prompt.
    """
    visible, more = load.answer - load.thought, load.turns - 1
    grown = load.turns * load.answer + more * load.observed
    carried = (visible + load.observed) * load.turns * more // 2
    unmerged = load.members * (load.turns * (load.prompt + load.answer) + carried)
    linear = unmerged if load.thought else load.members * (load.prompt + grown)
    again = visible * more if load.thought else 0
    return {"unmerged": unmerged, "linear": linear, "tree": load.prompt + load.members * (grown + again)}


TABLE = (
    Workload(300, 100, 100, 2, members=1),
    Workload(500, 200, 100, 4, members=1),
    Workload(500, 200, 300, 8, members=1),
    Workload(1_000, 200, 400, 10, members=1),
    Workload(2_000, 150, 350, 20, members=1),
    Workload(4_000, 150, 350, 30, members=1),
    Workload(4_000, 300, 700, 50, members=1),
    Workload(6_000, 200, 800, 100, members=1),
)
GROUPS = (
    Workload(512, 512, 0, 1),
    Workload(2_048, 512, 0, 1),
    Workload(8_192, 512, 0, 1),
    Workload(1_000, 8_000, 0, 1),
    Workload(500, 200, 300, 8),
    Workload(2_000, 150, 350, 20),
    Workload(4_000, 300, 700, 50),
)
THINKING = (
    Workload(1_000, 900, 200, 10, thought=800, members=1),
    Workload(2_000, 500, 300, 20, thought=400, members=1),
)


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="the small workloads only").parse_args()
    loads = [*(("turns", load) for load in TABLE), *(("group", load) for load in GROUPS),
             *(("thinking dropped", load) for load in THINKING)]  # fmt: skip
    rows = [measure(kind, load) for kind, load in loads if not arguments.quick or closed_form(load)["linear"] <= QUICK]
    figures = {"workloads": rows, **circumstances(arguments)}
    show(figures)
    return concluded("merge_ratio", figures, goals_missed(rows), arguments)


def measure(kind: str, load: Workload) -> dict[str, Any]:
    """Make a workload; return its counts beside the closed form's."""
    ids = ids_of(conversations(load, 1, VOCABULARY))
    counts = {view: ids[layout] for view, layout in VIEWS.items()}
    return {
        "kind": kind, "P": load.prompt, "a": load.answer, "o": load.observed, "T": load.turns, "n": load.members,
        "thought": load.thought, **counts,
        "unmerged/linear": round(counts["unmerged"] / counts["linear"], 3),
        "unmerged/tree": round(counts["unmerged"] / counts["tree"], 3),
        "closed form": closed_form(load),
    }  # fmt: skip


def goals_missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the goals of the module's docstring that `rows` miss."""
    missed = []
    for row in rows:
        name = f"P={row['P']} a={row['a']} o={row['o']} T={row['T']} n={row['n']}"
        found = {view: row[view] for view in VIEWS}
        if found != row["closed form"]:
            missed.append(f"{name}: counted {found}, the closed form is {row['closed form']}")
        if row["kind"] == "turns" and not row["T"] / 2 <= row["unmerged"] / row["linear"] < row["T"]:
            missed.append(f"{name}: unmerged/linear {row['unmerged/linear']} is not within T/2 and T")
    return missed


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    columns = ("kind", "P", "a", "o", "T", "n", *VIEWS, "unmerged/linear", "unmerged/tree")
    rows = ([row["kind"], *(f"{row[name]:,}" for name in columns[1:])] for row in figures["workloads"])
    show_table("ids in each view (the same on every machine)", columns, rows)
    print("full size: python benchmarks/merge_ratio.py --json --check")


if __name__ == "__main__":
    sys.exit(main())
