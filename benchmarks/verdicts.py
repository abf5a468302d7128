"""How often are verdicts wrong, and what do they see? Type I error, power, coverage and seeds used, by test and looks.

    python benchmarks/verdicts.py [--quick] [--json] [--check]

Simulated studies with a planted difference are judged by the shipped `studies.statistics.verdict.judge`, look by look,
as the loop does: a hypothesis that is decided gets no more runs. All numbers are in standard deviations between seeds.
The first table disturbs what the pooled test rests on: arms whose noise differs, a noise bank that is wrong, runs that
collapse. The default test, looks and seeds are chosen by these tables.

An interval of an early look, or of one claim among several, is wider than one of 95 %: its level stands beside it, and
it holds the true difference more often than 95 %.

Goals, as far as the simulation's own error allows: with equal noise, false claims in at most 5 % of null studies, and
intervals that hold the true difference in at least 93 % (with one look and one claim, at most 97 %); disturbed, false
claims in at most 8 %.
Full size: `python benchmarks/verdicts.py --json` (about half an hour on one core).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rig.frame import circumstances, concluded, parser
from rig.planted import ALPHA, Procedure, World, compared, simulate

from studies.procedure import Look
from studies.statistics.comparison import Test
from studies.statistics.looks import spend

EFFECTS = (0.0, 1.0, 2.0, 3.0)
DISTURBED_MOST = 0.08
"""Most false claims where what the test rests on does not hold."""


def main() -> int:
    """Simulate, print, and write what the options ask."""
    options = parser(__doc__, quick="200 studies of each kind instead of 2000").parse_args()
    studies = 200 if options.quick else 2000
    started = time.monotonic()
    disturbed = [_disturbed(*shape, world, 3 * studies) for shape in SHAPES for world in WORLDS]
    _show("One comparison at the end: what the test rests on does not hold", disturbed, _disturbed_line)
    plain = [_row(p, World(effect=e), studies) for p in PROCEDURES for e in EFFECTS]
    _show("Whole procedures: equal noise, a bank that is right", plain, _line)
    told = f"{studies} studies a row, three times as many in the first table, {time.monotonic() - started:.0f} s"
    print(f"\n{told}; in standard deviations between seeds")
    if options.quick:
        print("full size: python benchmarks/verdicts.py --json")
    figures = {"circumstances": circumstances(options), "seconds": round(time.monotonic() - started, 1),
               "plain": plain, "disturbed": disturbed}  # fmt: skip
    return concluded("verdicts", figures, _missed(plain, disturbed), options)


def _once(seeds: int) -> tuple[Look, ...]:
    return (Look(seeds=seeds, alpha=ALPHA),)


def _row(procedure: Procedure, world: World, studies: int) -> dict[str, Any]:
    found = simulate(procedure, world, studies).figures()
    print(f"  {procedure.name}, {world}", file=sys.stderr)
    return {"procedure": procedure.name, **vars(world), **found}


def _show(title: str, rows: Sequence[dict[str, Any]], line: Callable[[dict[str, Any]], str]) -> None:
    print(f"\n{title}\n")
    print("\n".join(line(row) for row in rows))


def _line(row: dict[str, Any]) -> str:
    says = "false claim" if not row["effect"] else "supported  "
    rate, low, high = row["false_claim"] if not row["effect"] else row["claimed"]
    return (
        f"{row['procedure']:42s} d = {row['effect']:g}  {says} {rate:6.1%} ({low:.1%} to {high:.1%})  "
        f"sign error {row['wrong_sign'][0]:.1%}  coverage {row['coverage'][0]:.1%} of {row['level']:.1%}  "
        f"seeds {row['seeds']:.1f}"
    )


def _disturbed(test: Test, seeds: int, arms: int, world: World, studies: int) -> dict[str, Any]:
    print(f"  {test}, {seeds} seeds, {arms} arms, {world}", file=sys.stderr)
    return compared(test, seeds, arms, world, studies)


def _disturbed_line(row: dict[str, Any]) -> str:
    says = "supported  " if row["effect"] else "false claim"
    rate, low, high = row["claimed"] if row["effect"] else row["false_claim"]
    world = f"d = {row['effect']:g}, sd ratio {row['ratio']:g}, bank x {row['bank']:g}, collapse {row['collapse']:.0%}"
    return (
        f"{row['test']:6s} {row['n']:3d} seeds, {row['arms']} arms  {world:52s} {says} {rate:6.1%} "
        f"({low:.1%} to {high:.1%})  Welch's test {row['fell_back']:.0%}"
    )


def _missed(plain: Sequence[dict[str, Any]], disturbed: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is worse than its goal by more than the simulation's error."""
    missed = []
    for row in plain:
        name = f"{row['procedure']}, d = {row['effect']:g}"
        if not row["effect"] and row["false_claim"][1] > ALPHA:
            missed.append(f"{name}: false claims {row['false_claim'][0]:.1%}")
        alone = row["level"] <= 1 - ALPHA + 1e-9
        if row["coverage"][2] < 0.93 or (alone and row["coverage"][1] > 0.97):
            missed.append(f"{name}: coverage {row['coverage'][0]:.1%}")
    for row in disturbed:
        if not row["effect"] and row["false_claim"][1] > DISTURBED_MOST:
            missed.append(f"{row['test']}, {row['n']} seeds, disturbed: false claims {row['false_claim'][0]:.1%}")
    return missed


PROCEDURES = (
    Procedure("welch, 5 seeds", "welch", _once(5), bank=False),
    Procedure("pooled, 5 seeds", "pooled", _once(5), bank=False),
    Procedure("pooled + bank, 3 seeds", "pooled", _once(3)),
    Procedure("pooled + bank, 5 seeds", "pooled", _once(5)),
    Procedure("pooled + bank, looks 3/5", "pooled", spend((3, 5), ALPHA)),
    Procedure("pooled + bank, looks 3/6/10", "pooled", spend((3, 6, 10), ALPHA)),
    Procedure("pooled + bank, 3 arms, looks 3/6/10", "pooled", spend((3, 6, 10), ALPHA), treatments=3),
    Procedure("pooled + bank, 4 claims, looks 3/6/10", "pooled", spend((3, 6, 10), ALPHA), treatments=4, variables=4),
    Procedure("paired (r = 0.5), 5 seeds", "paired", _once(5), correlation=0.5),
    Procedure("paired (r = 0.5), looks 3/6/10", "paired", spend((3, 6, 10), ALPHA), correlation=0.5),
)
SHAPES: tuple[tuple[Test, int, int], ...] = (
    ("welch", 3, 2), ("pooled", 3, 2), ("welch", 5, 2), ("pooled", 5, 2), ("pooled", 5, 4), ("pooled", 10, 2),
)  # fmt: skip
WORLDS = (
    World(), World(ratio=1.5), World(ratio=2.0), World(ratio=0.5), World(bank=0.7), World(bank=1.3),
    World(collapse=0.15), World(ratio=2.0, bank=0.7), World(effect=2.0),
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
