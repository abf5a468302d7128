"""Does an inquiry claim more falsehoods for having asked many times, and what does it still see in later rounds?

    python benchmarks/inquiries.py [--cell NAME ...] [--quick] [--json] [--check] [--workers N]

Inquiries of twelve rounds with a planted truth, judged by the shipped `studies.verdicts.rules.judge` under the
shipped ledgers: each round is a real design at its place, with its looks, of one to three claims about values of one
variable or of several. Planners choose on all that came before: something new each time; the largest estimate again;
the same until something is claimed; what is sure in every second round, to earn level for what is hopeless; a liar that
asks for as much as a round holds and says that all is proven. In some cells nothing is shared: each round
has 5 % of its own, as somebody has who tests until something is significant.

Goals, in every cell with ledgers: any false difference, and any false equivalence, in at most 5 % of the inquiries, as
far as 2,000 tell: the upper end of the 95 % interval at 6 % or below. No ledger overdrawn: the levels of rounds without
an effect sum to at most 5 % up to the first false claim. What misses one is published as it is. With `--json` figures
are written after each cell; a cell that is not flown keeps what is there. Full size: some 14 minutes of two cores, with
500 inquiries where pilots size each round, which takes longest.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from rig.campaign_verdicts import (
    INQUIRIES,
    NOISES,
    PILOTED,
    WORDS,
    InquiryCell,
    InquiryTally,
    missed,
    percent,
    simulate,
)
from rig.frame import circumstances, concluded, earlier, parser, tell
from simlab.scores import work

NAME = "inquiries"
QUICK = 20
"""Inquiries of a cell."""
_AT_ONCE = 100
_ASKING = ("plain", "largest", "repeat", "liar")
_UGLY = (("nothing", "plain"), ("half 0, half at the margin", "largest"), ("all at the margin", "plain"))


def name_of(cell: InquiryCell) -> str:
    """Return how a cell is called."""
    shared = "" if cell.ledgers else " / no ledgers"
    return f"{cell.truth} / {cell.planner} / {cell.noise}{shared}"


CELLS: Mapping[str, InquiryCell] = {
    name_of(cell): cell
    for cell in (
        *(InquiryCell("nothing", planner) for planner in _ASKING),
        *(InquiryCell(truth, planner) for truth in ("20 % true", "50 % true") for planner in _ASKING),
        *(InquiryCell("half 0, half at the margin", planner) for planner in _ASKING),
        *(InquiryCell("all at the margin", planner) for planner in ("plain", "repeat", "liar")),
        InquiryCell("sure effects, then nothing", "farm"),
        InquiryCell("sure equivalences, then the margin", "farm"),
        *(InquiryCell(truth, planner, noise) for noise in NOISES if noise != "normal" for truth, planner in _UGLY),
        *(InquiryCell("nothing", planner, ledgers=False) for planner in ("plain", "repeat")),
        InquiryCell("50 % true", "largest", ledgers=False),
    )
}


def main() -> int:
    """Simulate, print, and write what the options ask."""
    options = _options()
    rows: dict[str, Any] = {row["name"]: row for row in earlier(NAME).get("rows", ())}
    flown = {key: circumstances(options)[key] for key in ("date", "commit", "quick")}
    for name in options.cell or CELLS:
        began = time.monotonic()
        full = INQUIRIES // 4 if CELLS[name].noise == PILOTED else INQUIRIES
        numbers = range(QUICK if options.quick else full)
        batches = [numbers[first : first + _AT_ONCE] for first in range(0, len(numbers), _AT_ONCE)]
        tally = InquiryTally()
        for part in work(name, partial(simulate, CELLS[name]), batches, workers=options.workers, tell=tell):
            tally.add(part)
        seconds = round(time.monotonic() - began, 1)
        rows[name] = {"name": name, **asdict(CELLS[name]), **tally.figures(), "seconds": seconds, **flown}
        _show(rows[name])
        if options.json:  # after each, so that a run that is ended keeps what it measured
            concluded(NAME, _figures(rows, options), (), options)
    flown_now = [rows[name] for name in options.cell or CELLS]
    return concluded(NAME, _figures(rows, options), missed(flown_now), options)


def _options() -> argparse.Namespace:
    options = parser(__doc__, quick=f"{QUICK} inquiries a cell, too few to tell anything", parallel=True)
    options.add_argument("--cell", action="append", choices=CELLS, metavar="NAME", help="only this one, such as "
                         f"{next(iter(CELLS))!r}")  # fmt: skip
    return options.parse_args()


def _figures(rows: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    return {"circumstances": circumstances(options), "rows": [rows[name] for name in CELLS if name in rows]}


def _show(row: Mapping[str, Any]) -> None:
    shown = ", ".join(f"{words} {percent(row[name])}" for name, words in WORDS.items())
    right = f"right differences {row['right_differences']:.2f}, equivalences {row['right_equivalences']:.2f}"
    print(f"{row['name']} ({row['seconds']:.0f} s): {shown}; {right}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
