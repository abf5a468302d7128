"""How often are verdicts wrong under ugly noise, and what do they see, by the rules alone?

    python benchmarks/verdicts.py [--cell NAME ...] [--quick] [--json] [--check] [--workers N]

Simulated studies with a planted truth are judged by the shipped `studies.verdicts.rules.judge`, look by look, as
the loop does: a hypothesis that is decided gets no more runs. Each kind of ugliness is a cell, the last one draws a
mixture for each study. *After* (the rules changed once) is what designs lock: Welch's test, or one variance of all of
more arms than two, on seeds that arms share; `paired` is what is locked where runs of one seed surely go together,
`pilot` and `trend` where nothing is known of the noise; `budget` and `peeker` are ended before their last look.

Each cell has studies without a difference and studies with the effect that so many seeds promise to see, which is the
margin of equivalence. A verdict is scored against the truth that it speaks of, that of the trainings that do not
collapse, that of those that start or that of all, on the tasks that were drawn; an equivalence that is said not to be
zero says that there is a difference. `read of all` is how often it would be false if it were read as one about all
trainings and tasks.

Goals, in every cell: false claims in at most 5 % of null studies, the wrong sign in at most 1 %,
called equivalent at the margin in at most 5 %, and power of at least 75 %, so that silence keeps none of them. What
misses one is published as it is; runs of one seed that go against each other are out of scope, and told beside. A cell
that is not named keeps what is there. Full size, on two cores: some 10 minutes, half of it for five arms.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rig.frame import circumstances, concluded, earlier, parser, show_table, tell
from rig.simulated_verdicts import GOALS, SD, Procedure, Rules, World, promised, simulate
from simlab.scores import counted, work

from research.design.power import MOST_SEEDS

TWO_ARMS, FIVE_ARMS, QUICK = 2000, 400, 60
"""Studies of a row."""
PILOTS = {f"a pilot, effect of {size:g} sd": size for size in (1.5, 2.0, 3.0)}
"""Clean studies whose first runs size them, by the effect that is to be seen."""
CELLS: dict[str, World | None] = {
    "clean": World(),
    "heavy tails": World(tails="t3"),
    "noise 1:2": World(ratio=2.0),
    "noise 1:5": World(ratio=5.0),
    "control louder, 2:1": World(ratio=0.5),
    "correlation 0.6": World(correlation=0.6),
    "correlation -0.3": World(correlation=-0.3),
    "correlation -0.6": World(correlation=-0.6),
    "near the ceiling": World(ceiling=True),
    "collapses alike, 15 %": World(collapses=(0.15, 0.15)),
    "collapses alike, never seen": World(collapses=(0.15, 0.15), bank_sees=False),
    "collapses in one arm, 15 %": World(collapses=(0.0, 0.15), bank_sees=False),
    "the same, equal over all": World(collapses=(0.0, 0.15), bank_sees=False, over_all=True),
    "stuck in one arm, 5 %": World(stuck=(0.0, 0.05)),
    "stuck in one arm, 5 %, equal over all": World(stuck=(0.0, 0.05), over_all=True, falls=True),
    "stuck in one arm, 10 %": World(stuck=(0.0, 0.1)),
    "stuck in one arm, 10 %, equal over all": World(stuck=(0.0, 0.1), over_all=True, falls=True),
    "skewed in one arm, 3 times as loud": World(tails="skewed", ratio=3.0, falls=True),
    "arm x task, on 32 tasks": World(tasks=32),
    "mixture": None,
    **dict.fromkeys(PILOTS, World()),
}
"""Each kind of ugliness alone; None draws a mixture for each study. Equal means trainings that start and do not
collapse."""
OUT_OF_SCOPE = ("correlation -0.3", "correlation -0.6")
"""Welch's test errs by more than it says where runs of one seed lie apart: told, and no goal."""
SHORT: tuple[Rules, ...] = ("budget", "peeker")
ENDING = ("clean", "noise 1:5", "mixture")
"""Cells in which studies are ended early too."""
UGLY = [cell for cell in CELLS if cell not in PILOTS]
TRENDS = ("a pilot, effect of 2 sd", "noise 1:5")
"""Cells in which a pilot sizes a claim on a trend too."""


@dataclass(frozen=True)
class Row:
    """One procedure in one cell."""

    cell: str
    procedure: Procedure
    studies: int
    planted: bool


def main() -> int:
    """Simulate, print, and write what the options ask."""
    asked = parser(__doc__, quick=f"{QUICK} studies a row, and no five arms but of the mixture", parallel=True)
    asked.add_argument("--cell", action="append", choices=CELLS, metavar="NAME", help="only this one, such as 'clean'")
    options = asked.parse_args()
    started, before, made = time.monotonic(), earlier("verdicts") if options.cell else {}, circumstances(options)
    rows = [row for row in _rows(options.quick) if row.cell in (options.cell or CELLS)]
    found = work("verdicts", _measured, rows, workers=options.workers, tell=tell)
    for table in sorted({(row["arms"], row["n"]) for row in found}):
        _show(*table, [row for row in found if (row["arms"], row["n"]) == table])
    seconds = time.monotonic() - started
    print(f"\n{sum(row['studies'] for row in found)} studies, {seconds:.0f} s")
    if options.quick:
        print("full size: python benchmarks/verdicts.py --json")
    flown = {key: made[key] for key in ("date", "commit", "quick")} if before else {}
    kept = [row for row in before.get("rows", ()) if row["cell"] not in options.cell] + [row | flown for row in found]
    figures = {
        "circumstances": before.get("circumstances", made), "seconds": round(seconds + before.get("seconds", 0), 1),
        "rows": sorted(kept, key=lambda row: list(CELLS).index(row["cell"])),
    }  # fmt: skip
    return concluded("verdicts", figures, missed(found), options)


def _rows(quick: bool) -> list[Row]:
    studies = QUICK if quick else TWO_ARMS
    two = [(cell, rules, n, 1, studies, planted)
           for cell in UGLY for n in (3, 5, 8)
           for rules in ("after", *("paired",) * (cell == "correlation 0.6"), *SHORT * (n > 3 and cell in ENDING))
           for planted in (False, True)]  # fmt: skip
    five = [(cell, "after", n, 4, QUICK // 6 if quick else FIVE_ARMS, planted)
            for cell in (["mixture"] if quick else UGLY)
            for n, planted in ((3, False), (5, False), (5, True))]  # fmt: skip
    sized = [
        Row(cell, Procedure(rules, MOST_SEEDS, treatments, size * SD), studies // part, planted)
        for cell, size in (*PILOTS.items(), ("noise 1:5", 2.0), ("mixture", 2.0))
        for treatments, part in ((1, 2), (2, 3), (4, 3))
        for rules in ("pilot", *("trend",) * (treatments > 1 and cell in TRENDS))
        for planted in (False, True)
    ]
    return [*sized, *(
        Row(cell, Procedure(rules, n, treatments, promised(n)), studies, planted)
        for cell, rules, n, treatments, studies, planted in (*two, *five)
    )]  # fmt: skip


def _measured(row: Row) -> dict[str, Any]:
    world, procedure = CELLS[row.cell], row.procedure
    tally = simulate(procedure, world, row.studies, planted=row.planted)
    return {
        "cell": row.cell, "rules": procedure.rules, "test": procedure.test, "arms": procedure.treatments + 1,
        "n": procedure.seeds, "planted": row.planted, "outside": row.cell in OUT_OF_SCOPE,
        "looks": [look.seeds for look in procedure.looks], "margin": procedure.margin,
        "world": None if world is None else asdict(world), **tally.figures(),
    }  # fmt: skip


def _show(arms: int, n: int, rows: Sequence[dict[str, Any]]) -> None:
    heads = ("cell", "rules", "false claims", "read of all", "equivalent", "power", "sign error", "at the margin")
    lines = []
    for cell, rules in dict.fromkeys((row["cell"], row["rules"]) for row in rows):
        own = {row["planted"]: row for row in rows if (row["cell"], row["rules"]) == (cell, rules)}
        names = {False: ("false", "false_of_all", "equivalent"), True: ("found", "wrong_sign", "falsely_equivalent")}
        shown = [f"{own[side][name][0]:.1%}" if side in own else "-" for side, of in names.items() for name in of]
        lines.append((cell, rules, *shown))
    show_table(f"{arms} arms, {n} seeds each: no difference, and the promised effect", heads, lines, left=2)


def missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return which goals are missed, in words; of what ends early or is paired no power is asked."""
    words = []
    for row in rows:
        unequal = not row["planted"] and CELLS[row["cell"]] == CELLS["the same, equal over all"]
        if row["cell"] in OUT_OF_SCOPE or unequal:  # where all trainings are equal the others differ, and none is null
            continue
        power = () if row["rules"] in (*SHORT, "paired") else ("found",)
        for name in (*power, "wrong_sign", "falsely_equivalent") if row["planted"] else ("false",):
            what = f"{row['cell']}, {row['rules']}, {row['arms']} arms, {row['n']} seeds: {name}"
            figure = counted(what, round(row[name][0] * row["studies"]), row["studies"], GOALS[name])
            words += [figure.words()] if figure.kept is False else []
    return words


if __name__ == "__main__":
    sys.exit(main())
