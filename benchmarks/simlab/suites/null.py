"""How often is a difference claimed where there is none?

Worlds in which the knob that is asked about does nothing to trainings that do not collapse: every claim of a difference
between those is false. Each kind of ugliness has a cell, and there is one of mixtures (`simlab.noise`).
What is called equivalent stands beside it: a system that says nothing would keep the bar as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from simlab.noise import MIXTURE, NAMES, OUT_OF_SCOPE, ugliness
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, share, silent, work
from simlab.sim_records import FlightRecord, coverage, flown
from simlab.sim_run import Flight
from simlab.worlds import ASKS

NAME = "null"
QUESTION = "How often is a difference claimed where there is none?"
MOST_FALSE = 0.05
_WORLDS = 1_000_000
"""Where the seeds of the worlds begin; a cell has `_PER_CELL` of them."""
_PER_CELL = 50_000


def flights(count: int, first: int = 0, cells: Sequence[str] = NAMES) -> list[Flight]:
    """Return so many studies of each cell, the cells in turn."""
    studies = []
    for number, cell in product(range(first, first + count), cells):
        ask, place = ASKS[number % len(ASKS)], NAMES.index(cell)
        seed = _WORLDS + _PER_CELL * place + number
        world, bank = ugliness(cell, seed).worlds(ask, seed, 0.0)
        studies.append(Flight(f"null-{place}-{number}", ask.topic, world, bank_world=bank))
    return studies


def by_cell(records: Sequence[FlightRecord]) -> dict[str, list[FlightRecord]]:
    """Return the records of each cell that has any."""
    found: dict[str, list[FlightRecord]] = {}
    for record in records:
        found.setdefault(NAMES[int(record.flight.split("-")[1])], []).append(record)
    return {cell: found[cell] for cell in NAMES if cell in found}


def judged_cells(records: Sequence[FlightRecord]) -> dict[str, list[FlightRecord]]:
    """Return the records of each cell in which anything was judged: where all is refused, its row says so."""
    return {cell: found for cell, found in by_cell(records).items() if any(record.claims for record in found)}


def figures(records: Sequence[FlightRecord]) -> list[Measured]:
    """Return what the records amount to."""
    claims = [claim for record in records for claim in record.claims]
    return [
        *(share(f"{cell}: studies with a false claim",
                [any(claim.false for claim in record.claims) for record in own if record.claims],
                Bar("at most", MOST_FALSE), outside=cell in OUT_OF_SCOPE)
          for cell, own in judged_cells(records).items()),
        share("called equivalent, rightly, of all claims",
              [claim.verdict == "equivalent" and not claim.falsely_equivalent for claim in claims]),
        share("called equivalent, falsely: of all trainings they differ by the margin",
              [claim.falsely_equivalent for claim in claims], Bar("at most", MOST_FALSE)),
        share("left inconclusive", [claim.verdict == "inconclusive" for claim in claims]),
        coverage("intervals that hold 0, beside their stated level", claims),
    ]  # fmt: skip


def rows(records: Sequence[FlightRecord]) -> list[Mapping[str, Any]]:
    """Return a row for each cell: what keeps its bar by silence is seen here."""
    lines: list[Mapping[str, Any]] = []
    for cell, own in by_cell(records).items():
        claims = [claim for record in own for claim in record.claims]
        runs = [sum(claim.collapsed) for claim in claims]
        lines.append({
            "cell": cell, "studies": len(own), "refused": sum(record.refused is not None for record in own),
            "claims": len(claims),
            "called equivalent": share("", [claim.verdict == "equivalent" for claim in claims]).measured(),
            "inconclusive": share("", [claim.verdict == "inconclusive" for claim in claims]).measured(),
            "false, read of all trainings": share("", [claim.false_of_all for claim in claims]).measured(),
            "collapses told, a claim": round(sum(runs) / len(runs), 2) if runs else None,
        })  # fmt: skip
    return lines


def measure(count: int, mixed: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many studies of each cell, and so many of the mixture, and count."""
    studies = [*flights(count, cells=[name for name in NAMES if name != MIXTURE]), *flights(mixed, cells=[MIXTURE])]
    records = work(NAME, flown, studies, workers=workers, tell=tell)
    most = by_cell(records).get(MIXTURE, [])
    series = {"estimates": [[c.estimate, c.low, c.high, c.verdict] for one in most for c in one.claims]}
    return SuiteOutcome(NAME, QUESTION, len(records), figures(records), rows(records), series)
