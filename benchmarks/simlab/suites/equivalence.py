"""Is no difference found to be none, and a difference never?

Worlds with no difference, with one well inside the margin, at the margin, and beyond it: `equivalent` is right for the
first two and wrong for the others. At the margin itself an error of the test's level is what was asked for, so that
most studies are flown there: theory says 4.9 %, and only a large sample tells that from more than 5. The margin under
ugly noise is a part of the suite `effects`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from simlab.scores import Bar, Measured, Progress, SuiteOutcome, counted, silent, work
from simlab.sim_records import FlightRecord, FlownClaim, flown
from simlab.sim_run import Flight
from simlab.worlds import PAIRS

NAME = "equivalence"
QUESTION = "Is no difference found to be none, and a difference never?"
MARGIN = 0.10
"""The rule planner's smallest effect of interest is the margin."""
DIFFERENCES = (0.0, 0.02, MARGIN, 0.15)
SEED_SD = 0.03
MOST_WRONG = 0.05
_IN_TURN = (MARGIN, 0.0, MARGIN, 0.02, MARGIN, 0.15)
"""Half of all studies are at the margin."""


def flights(count: int) -> list[Flight]:
    """Return so many studies, the differences in turn; every other one is at the margin."""
    studies = []
    for number in range(count):
        ask = PAIRS[number // (2 * len(_IN_TURN)) % len(PAIRS)]
        effect = _IN_TURN[number % len(_IN_TURN)] * (1 if number // len(_IN_TURN) % 2 else -1)
        world = ask.planted(3_000_000 + number, effect, centre=0.5, seed_sd=SEED_SD, steps=8)
        studies.append(Flight(f"equivalence-{number}", ask.topic, world))
    return studies


def by_size(records: Sequence[FlightRecord]) -> Mapping[float, Sequence[FlownClaim]]:
    """Return the claims about each of the differences."""
    claims = [claim for record in records for claim in record.claims]
    return {size: [c for c in claims if abs(abs(c.truth_kept) - size) < 1e-6] for size in DIFFERENCES}


def figures(sizes: Mapping[float, Sequence[FlownClaim]]) -> list[Measured]:
    """Return what the claims about each of the differences amount to."""
    none, within, at, beyond = (sizes[size] for size in DIFFERENCES)
    return [
        _equivalent("equivalent where there is none", none),
        _equivalent(f"equivalent at {DIFFERENCES[1]:g}", within),
        _equivalent("equivalent at the margin", at, Bar("at most", MOST_WRONG)),
        _equivalent(f"equivalent at {DIFFERENCES[3]:g}", beyond, Bar("at most", MOST_WRONG)),
        counted("called better or worse where there is none", sum(c.false for c in none), len(none),
                Bar("at most", MOST_WRONG)),
    ]  # fmt: skip


def _equivalent(name: str, claims: Sequence[FlownClaim], bar: Bar | None = None) -> Measured:
    return counted(name, sum(claim.verdict == "equivalent" for claim in claims), len(claims), bar)


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many studies and count."""
    records = work(NAME, flown, flights(count), workers=workers, tell=tell)
    sizes = by_size(records)
    series = {f"{size:g}": dict(Counter(claim.verdict for claim in claims)) for size, claims in sizes.items()}
    return SuiteOutcome(NAME, QUESTION, len(records), figures(sizes), series={"verdicts": series, "margin": MARGIN})
