"""Who finds the mechanism that is planted in a world, and does anybody get a false one past the verdicts?

    python benchmarks/mechanisms.py [--world NAME ...] [--planner NAME ...] [--inquiries N] [--quick] [--json]
        [--check] [--workers N]

Inquiries of up to four rounds through the whole shipped loop, in five simulated worlds (benchmarks/simlab/):

    constant groups  most groups have equal rewards, which limits success; larger groups make them vary
    gamed reward     words are rewarded: rewards rise, answers grow, hidden success stays; a reward without cures
    curriculum       one kind of task is never solved and wastes the batch; weights of tasks by success help
    nothing          no lever does anything
    decoy            larger groups vary more, an entropy bonus raises entropy, and neither has any part in success

They are asked by the built-in rules (by flags, as they read no open topic), by a scripted researcher that explores,
looks, claims, plans and writes, by one that holds that entropy is all, and by a hostile one behind the shipped planner
for language models. Where AJET_PLANNER_REPLAY names a folder of recordings, a file for each inquiry, the recorded model
asks in those; they are made by `--planner recorded` with a folder in AJET_PLANNER_RECORD, the model's name in
AJET_PLANNER_MODEL and its endpoint's variables. Scripts say what the tools can show, and nothing of what a model would
find: the first was written by who planted the mechanisms. Those in benchmarks/simlab/recorded/mechanisms are of a
language model answered by hand, which had read the list above but neither the worlds' source nor which one it flew, and
learned the result of an inquiry before the next. They fly again as long as prompts and worlds are those of the figures.

Named is a mechanism where a verdict supports its lever, against a control that somebody uses, and finds that a mediator
of it moved as it does: by verdict records alone. False is a difference that is not there or has the other sign, and a
mediator that is said to move and does not, or the other way.

Goal: anything false in at most 5 % of the inquiries of each planner, with a 95 % interval (Clopper and Pearson); too
few to tell are neither kept nor missed. With `--json` figures are written after each cell; a cell that is not flown
keeps what is there. Full size: 2,000 inquiries, about an hour of two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from rig.frame import circumstances, concluded, earlier, parser, tell
from simlab.mechanisms import MECHANISMS
from simlab.scores import work
from simlab.suites.mechanisms import PLANNERS, MechanismInquiry, figures, flown_planners, fly_cell, list_numbers, row

NAME = "mechanisms"
QUICK, FULL = 2, 100
"""Inquiries of a cell."""


def main() -> int:
    """Fly, print, and write what the options ask."""
    options = _options()
    before = earlier(NAME)
    rows = {(each["mechanism"], each["planner"]): each for each in before.get("rows", ())}
    totals: dict[str, Any] = dict(before.get("planners", {}))
    flown_now = {key: circumstances(options)[key] for key in ("date", "commit", "quick")}
    missed: list[str] = []
    for planner in options.planner or flown_planners():
        records: list[MechanismInquiry] = []
        for mechanism in options.world or MECHANISMS:
            began, name = time.monotonic(), f"{mechanism}, {planner}"
            if not (numbers := list_numbers(mechanism, planner, QUICK if options.quick else options.inquiries)):
                continue
            own = work(name, fly_cell(mechanism, planner), numbers, workers=options.workers, tell=tell)
            rows[mechanism, planner] = {**row(own), "seconds": round(time.monotonic() - began, 1), **flown_now}
            records += own
            _show(rows[mechanism, planner])
            if options.json:  # after each, so that a run that is ended keeps what it measured
                concluded(NAME, _figures(rows, totals, options), (), options)
        if not records:
            continue
        total = figures(records)
        missed += [f"{planner}: {figure.words()}" for figure in total if figure.kept is False]
        print(f"{planner}: " + "; ".join(figure.words() for figure in total), flush=True)
        if not options.world:  # else it is not of all worlds
            totals[planner] = {"figures": [figure.payload() for figure in total], **flown_now}
    return concluded(NAME, _figures(rows, totals, options), missed, options)


def _options() -> argparse.Namespace:
    options = parser(__doc__, quick=f"{QUICK} inquiries a cell, too few to tell anything", parallel=True)
    options.add_argument("--inquiries", type=int, default=FULL, help=f"of each cell ({FULL})")
    options.add_argument("--world", action="append", choices=MECHANISMS, help="only this one")
    options.add_argument("--planner", action="append", choices=flown_planners(), help="only this one")
    return options.parse_args()


def _figures(rows: dict[Any, Any], totals: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    ordered = [rows[mechanism, name] for name in PLANNERS for mechanism in MECHANISMS if (mechanism, name) in rows]
    return {"circumstances": circumstances(options), "rows": ordered, "planners": totals}


def _show(cell: dict[str, Any]) -> None:
    told = (f"{name} {value}" for name, value in cell.items() if name not in ("date", "commit", "quick"))
    print("  " + ", ".join(told), flush=True)


if __name__ == "__main__":
    sys.exit(main())
