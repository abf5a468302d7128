"""How often are verdicts on other metrics than success wrong, and what do they see?

    python benchmarks/metric_verdicts.py [--metric NAME ...] [--quick] [--json] [--check] [--workers N]

Simulated studies whose runs have a hidden curve (`simlab.curves`): evaluations before, during and after
training are drawn from it, the shipped metric reads its number off them, and the shipped verdict judges look by look,
by the test that designs lock. The truth is planted in the metric's own unit, and is that of the curves themselves.

Each kind of ugliness is a cell, the last one draws one of 40 mixtures for each study. Each cell has studies without a
difference and studies with the effect that so many seeds promise to see under normal noise as large as the cell's; it
is the margin of equivalence as well. For an area there is one cell more, in which the arms are equally fast and end at
different heights: that is a difference of areas, and what is counted as false is its reading as one of speed. Of the
share of trainings that collapse it is the rates that are planted, and the course of each run says whether it did.

Goals: false claims in at most 5 % of null studies, the wrong sign in at most 1 %, called equivalent at the margin in at
most 5 %; intervals hold the truth as often as they say, to 2 %; and power of at least 75 %, but where less than 95 % of
an arm reach the threshold or trainings collapse, as no design promises it there. What misses one is published as it is.
A metric that is not named keeps what is there. Full size: some 16 minutes of two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rig.curve_verdicts import CurveStudy, simulate
from rig.frame import circumstances, concluded, earlier, parser, tell
from rig.simulated_verdicts import GOALS
from simlab.curves import CELLS, PACES, RATES, Quantity, truth
from simlab.scores import Bar, Measured, counted, work

NAME = "metric_verdicts"
STUDIES, QUICK = 900, 40
"""Studies of a row: 897 tell whether 5 % are kept."""
MIXTURE = "mixture"
TOPS = "tops .90 and .78"
SPEED = f"{TOPS}, equal times, read as speed"
_OF_AREAS = (
    "clean", "heavy tails", "spreads .12 and .24", "spreads .12 and .45", TOPS, "20 % stuck", "20 % stuck in one arm",
    "collapses alike, 15 %", "collapses in one arm, 15 %", MIXTURE,
)  # fmt: skip
_OF_TIMES = (
    *_OF_AREAS[:4], "spreads .12 and .45, late", TOPS, "20 % late", "40 % late", "60 % late", "20 % stuck",
    "20 % stuck in one arm", "collapses in one arm, 15 %", MIXTURE,
)  # fmt: skip
_OF_SECONDS = (
    "clean", *PACES, "20 % late", "20 % stuck", "collapses in one arm, 15 %", MIXTURE,
)  # fmt: skip
METRICS: Mapping[Quantity, tuple[str, ...]] = {
    "episodes": _OF_TIMES,
    "seconds": _OF_SECONDS,
    "area": (*_OF_AREAS, SPEED),
    "area:0.7": (*_OF_AREAS, SPEED),
    "training-area": (*_OF_AREAS, SPEED),
    "collapse": (*RATES, MIXTURE),
}
"""The cells of each metric: an area has no threshold that a run could miss, so that late runs are ordinary ones."""
_TIMES: Sequence[Quantity] = ("episodes", "seconds")
SEEDS, FEW, RATE_SEEDS, QUICKLY = (3, 5, 8), (3, 5), (3, 5, 8, 12), (5,)
"""Of an arm. An effect on a time, and an area but where it is read as speed, are flown with few of them; rates are
quick, and take many."""
_WORDS = {
    "false": "false claims", "wrong_sign": "sign errors", "falsely_equivalent": "equivalent at the margin",
    "found": "power",
}  # fmt: skip
_ARRIVING = 0.95
"""Share of an arm that reaches the threshold where power is promised."""
_SLACK = 0.02


@dataclass(frozen=True)
class CurveRow:
    """One metric in one cell."""

    cell: str
    study: CurveStudy
    studies: int


def main() -> int:
    """Simulate, print, and write what the options ask."""
    asked = parser(__doc__, quick=f"{QUICK} studies a row, of 5 seeds", parallel=True)
    asked.add_argument("--metric", action="append", choices=METRICS, help="only this one")
    options = asked.parse_args()
    found: dict[str, Any] = earlier(NAME).get("metrics", {}) if options.metric else {}
    for name in options.metric or METRICS:
        began = time.monotonic()
        rows = work(name, _measured, _rows(name, options.quick), workers=options.workers, tell=tell)
        flown = {key: circumstances(options)[key] for key in ("date", "commit", "quick")}
        seconds = round(time.monotonic() - began, 1)
        found[name] = {"rows": rows, "seconds": seconds, "missed": missed(rows), **flown}
        _show(name, rows, found[name]["seconds"])
        if options.json:  # after each, so that a run that is ended keeps what it measured
            concluded(NAME, _figures(found, options), (), options)
    return concluded(
        NAME, _figures(found, options), missed([r for one in found.values() for r in one["rows"]]), options
    )


def _figures(found: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "circumstances": circumstances(options),
        "metrics": {name: found[name] for name in METRICS if name in found},
    }


def _rows(name: Quantity, quick: bool) -> list[CurveRow]:
    rows = []
    for cell in METRICS[name]:
        world = None if cell == MIXTURE else {**CELLS, **RATES, **PACES}[TOPS if cell == SPEED else cell]
        for effect in (False,) if cell == SPEED else (False, True):
            seeds: Sequence[int] = RATE_SEEDS
            if name != "collapse":
                seeds = SEEDS if cell == SPEED or (name in _TIMES and not effect) else FEW
            for count in QUICKLY if quick else seeds:
                study = CurveStudy(name, count, world, effect, "episodes" if cell == SPEED else None)
                rows.append(CurveRow(cell, study, QUICK if quick else STUDIES))
    return rows


def _measured(row: CurveRow) -> dict[str, Any]:
    tally, study, world = simulate(row.study, row.studies), row.study, row.study.world
    promised = row.cell == next(iter(RATES))
    if study.quantity != "collapse":  # power is promised where nearly all runs arrive, and none collapses
        arms = () if world is None or study.alike is not None else (world.control, world.treatment)
        arriving = (not arm.collapses and truth(arm, "episodes").reached >= _ARRIVING for arm in arms)
        promised = bool(arms) and all(arriving)
    return {
        "metric": study.quantity, "cell": row.cell, "n": study.seeds, "planted": study.effect, "promised": promised,
        "figures": None if tally is None else tally.figures(),
    }  # fmt: skip


def _show(name: str, rows: Sequence[Mapping[str, Any]], seconds: float) -> None:
    print(f"\n{name} ({seconds:.0f} s)")
    for row in rows:
        figures = row["figures"]
        if figures is None:
            print(f"  {row['cell']:38s} {row['n']} seeds: no treatment has an effect of the promised size")
            continue
        names = ("found", "wrong_sign", "falsely_equivalent") if row["planted"] else ("false", "equivalent")
        shown = ", ".join(f"{one} {figures[one][0]:.1%}" for one in (*names, "coverage") if figures[one])
        print(f"  {row['cell']:38s} {row['n']} seeds: {shown}")
    sys.stdout.flush()


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which goals are missed, in words."""
    return [figure.words() for row in rows for figure in goals(row) if figure.kept is False]


def goals(row: Mapping[str, Any]) -> list[Measured]:
    """Return a row's figures that have a goal; what is read as speed is shown, and has none."""
    figures = row["figures"]
    if figures is None or row["cell"] == SPEED:
        return []
    power = ("found",) if row["promised"] else ()
    names = (*power, "wrong_sign", "falsely_equivalent") if row["planted"] else ("false",)
    judged = [(_WORDS[name], figures[name], figures["studies"], GOALS[name]) for name in names]
    if figures["coverage"] is not None:
        bar = Bar("between", round(figures["level"] - _SLACK, 4), round(min(1.0, figures["level"] + _SLACK), 4))
        judged.append(("intervals", figures["coverage"], figures["intervals"], bar))
    what = f"{row['metric']}, {row['cell']}, {row['n']} seeds"
    return [counted(f"{what}: {words}", round(rate[0] * of), of, bar) for words, rate, of, bar in judged]


if __name__ == "__main__":
    sys.exit(main())
