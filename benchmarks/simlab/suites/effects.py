"""How often is a planted difference found, with the right sign and size?

Two sets of worlds. *Sizes*: clean noise, and a knob that moves the success rate by 0.5, 1, 2 or 3 standard deviations
between seeds, up or down. *Cells*: each kind of ugliness and their mixture (`simlab.noise`), with the
smallest effect of interest planted in trainings that do not collapse. The design promises power at it, and it is the
margin of equivalence: one world tests power, signs and false equivalence.

A pilot sizes designs, or a bank that may be wrong does (`Ugliness.bank`). Power is held to its bar at the effect that
the design's number of seeds suffices for. Where the bank's word on the noise is too small, that is the promised effect
times as much: nobody can see with few seeds what takes many. Power at the promised effect itself stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from simlab.noise import EPISODES, MIXTURE, NAMES, OUT_OF_SCOPE, ugliness
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, counted, mean, share, silent, work
from simlab.sim_records import FlightRecord, FlownClaim, coverage, flown
from simlab.sim_run import Flight
from simlab.suites.null import by_cell, judged_cells
from simlab.worlds import PAIRS

NAME = "effects"
QUESTION = "How often is a planted difference found, with the right sign and size?"
EFFECT = 0.10
"""The rule planner's smallest effect of interest, which is its margin of equivalence."""
SIZES = (0.5, 1.0, 2.0, 3.0)
"""True differences, in standard deviations between seeds, evaluation included."""
SEED_SD = 0.045
"""Two standard deviations between seeds (0.05 with the evaluation of 512 episodes) are the promised effect."""
TOTAL_SD = 0.05
MOST_SIGN_ERRORS = 0.01
LIKELY_SIGN_ERRORS = 0.002
MOST_FALSELY_EQUIVALENT = 0.05
LEAST_POWER = 0.75
LIKELY_POWER = 0.80
"""What the designs promise."""
_LOUD = 1.05
"""Loudness from which the effect that is seen is planted besides the promised one."""
_WORLDS, _CELLS, _PER_CELL = 2_000_000, 20_000_000, 50_000
"""Where the seeds of the worlds begin, and how many a cell has."""


def flights(count: int, first: int = 0) -> list[Flight]:
    """Return so many studies with clean noise: all sizes and both signs in turn."""
    studies = []
    for number in range(first, first + count):
        size, sign = SIZES[number % len(SIZES)], 1 if number // len(SIZES) % 2 else -1
        ask = PAIRS[number // (2 * len(SIZES)) % len(PAIRS)]
        world = ask.planted(_WORLDS + number, sign * size * TOTAL_SD, centre=0.5, seed_sd=SEED_SD, steps=8)
        asks = {"episodes": EPISODES}  # of which `TOTAL_SD` is; else the product chooses
        studies.append(Flight(f"effects-{number}", ask.topic, world, asks=asks))
    return studies


def planted(count: int, cells: Sequence[str] = NAMES) -> list[Flight]:
    """Return so many studies of each cell, the cells in turn; where noise is louder than promised twice as many."""
    studies = []
    for number, cell in product(range(count), cells):
        place, ask, sign = NAMES.index(cell), PAIRS[number // 2 % len(PAIRS)], 1 if number % 2 else -1
        seed = _CELLS + _PER_CELL * place + number
        ugly = ugliness(cell, seed)
        loudness = ugly.loudness(ask)
        for name, effect in ({"margin": EFFECT} | ({"seen": EFFECT * loudness} if loudness > _LOUD else {})).items():
            world, bank = ugly.worlds(ask, seed, sign * effect)
            studies.append(Flight(f"effects-{place}-{name}-{number}", ask.topic, world, bank_world=bank))
    return studies


def figures(records: Sequence[FlightRecord]) -> list[Measured]:
    """Return what the studies with clean noise amount to."""
    claims = [claim for record in records for claim in record.claims]
    made = [claim for claim in claims if claim.difference]
    return [
        counted("sign errors", sum(claim.false for claim in claims), len(claims),
                Bar("at most", MOST_SIGN_ERRORS, likely=LIKELY_SIGN_ERRORS)),
        *(_power(f"power at {size:g} sd", _of_size(claims, size)) for size in SIZES),
        *(_exaggeration(f"exaggeration at {size:g} sd", _of_size(made, size)) for size in SIZES),
        coverage("intervals that hold the truth, beside their stated level", claims),
        mean("run-hours a study", [record.run_hours for record in records]),
        counted("studies refused", sum(record.refused is not None for record in records), len(records)),
    ]  # fmt: skip


def cell_figures(records: Sequence[FlightRecord]) -> list[Measured]:
    """Return what the studies of each cell amount to: power, signs, and equivalence at the margin."""
    told = []
    for cell, own in judged_cells(records).items():
        figures = (
            _power(f"{cell}: power", _seen(own), Bar("at least", LEAST_POWER, likely=LIKELY_POWER)),
            share(f"{cell}: sign errors", [claim.false for claim in _claims(own)],
                  Bar("at most", MOST_SIGN_ERRORS, likely=LIKELY_SIGN_ERRORS)),
            share(f"{cell}: called equivalent at the margin",
                  [claim.falsely_equivalent for claim in _claims(own, "margin")],
                  Bar("at most", MOST_FALSELY_EQUIVALENT)),
        )  # fmt: skip
        told += [replace(figure, outside=cell in OUT_OF_SCOPE) for figure in figures]
    return told


def rows(records: Sequence[FlightRecord]) -> list[Mapping[str, Any]]:
    """Return a row for each cell."""
    lines: list[Mapping[str, Any]] = []
    for cell, own in by_cell(records).items():
        claims, margin = _claims(own), _claims(own, "margin")
        lines.append({
            "cell": cell, "studies": len(own), "refused": sum(record.refused is not None for record in own),
            "power at the promised effect": _power("", margin).measured(),
            "false or of the other sign, read of all trainings": share("", [c.false_of_all for c in claims]).measured(),
            "of all trainings": share("", [c.scope == "all" for c in claims if c.verdict != "inconclusive"]).measured(),
            "seeds": mean("", [max(claim.n) for claim in claims]).measured(),
        })  # fmt: skip
    return lines


def _claims(records: Sequence[FlightRecord], kind: str = "") -> list[FlownClaim]:
    """Return the claims of the records, or of those that plant one kind of effect."""
    return [claim for record in records if kind in record.flight.split("-") or not kind for claim in record.claims]


def _seen(records: Sequence[FlightRecord]) -> list[FlownClaim]:
    """Return the claims of the effects that the design's number of seeds suffices for."""
    names = [record.flight.split("-") for record in records]
    louder = {name[-1] for name in names if "seen" in name}
    return _claims([one for one, name in zip(records, names, strict=True) if "seen" in name or name[-1] not in louder])


def _of_size(claims: Sequence[FlownClaim], size: float) -> list[FlownClaim]:
    return [claim for claim in claims if abs(abs(claim.truth_kept) - size * TOTAL_SD) < 1e-6]


def _power(name: str, claims: Sequence[FlownClaim], bar: Bar | None = None) -> Measured:
    return share(name, [claim.found for claim in claims], bar)


def _exaggeration(name: str, made: Sequence[FlownClaim]) -> Measured:
    """Return how much larger the estimates of claimed differences are than the truth (Gelman & Carlin 2014, type M)."""
    ratios = [abs(claim.estimate / claim.truth_kept) for claim in made if claim.estimate is not None]
    return mean(name, ratios)


def measure(sized: int, count: int, mixed: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many studies with clean noise, so many of each cell, and so many of the mixture, and count."""
    records = work(NAME, flown, flights(sized), workers=workers, tell=tell)
    studies = [*planted(count, cells=[name for name in NAMES if name != MIXTURE]), *planted(mixed, cells=[MIXTURE])]
    ugly = work(NAME, flown, studies, workers=workers, tell=tell)
    claims = [claim for record in records for claim in record.claims]
    found = {f"{size:g}": figure for size in SIZES if (figure := _power("", _of_size(claims, size))).value is not None}
    promise = next((claim.power for claim in claims if claim.power is not None), LIKELY_POWER)
    series = {
        "power": {size: [one.value, one.low, one.high] for size, one in found.items()},
        "promise": {"size": EFFECT / TOTAL_SD, "power": promise},
        "estimates": [[claim.truth_kept, claim.estimate, claim.low, claim.high, claim.verdict] for claim in claims],
    }
    told = [*figures(records), *cell_figures(ugly)]
    return SuiteOutcome(NAME, QUESTION, len(records) + len(ugly), told, rows(ugly), series)
