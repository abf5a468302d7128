"""How often is a difference claimed where there is none?

Worlds in which the knob that is asked about does nothing: every claim of a difference is false. They differ in the
knob, the number of arms, the noise between seeds, its part that arms with one seed share, how often runs collapse, and
whether an arm is louder than the control.
"""

from __future__ import annotations

from collections.abc import Sequence

from research.simlab.flight import Flight
from research.simlab.pool import Progress, silent, work
from research.simlab.records import Record, coverage, flown
from research.simlab.scores import Bar, Figure, share
from research.simlab.suites import Outcome
from research.simlab.topics import ASKS
from research.simlab.world import Collapse, Planted, Table

NAME = "null"
QUESTION = "How often is a difference claimed where there is none?"
MOST_FALSE = 0.05
LOUD = 8
"""In every eighth world an arm is twice as loud as the control, which a shared variance does not know."""


def flights(count: int, first: int = 0) -> list[Flight]:
    """Return so many studies of knobs that do nothing."""
    return [_flight(number) for number in range(first, first + count)]


def _flight(number: int) -> Flight:
    ask = ASKS[number % len(ASKS)]
    world = Planted(
        seed=1_000_000 + number,
        knobs=ask.knobs,
        base=ask.base,
        centre=(0.35, 0.5, 0.65)[number % 3],
        seed_sd=(0.015, 0.03, 0.045)[number // 3 % 3],
        pairing=(0.0, 0.5)[number // 9 % 2],
        collapse=Collapse(0.1 if number % 10 == 9 else 0.0),
        louder=Table(ask.field, {ask.values[1]: 1.0}) if number % LOUD == LOUD - 1 else None,
        steps=8,
    )
    return Flight(f"null-{number}", ask.topic, world)


def figures(records: Sequence[Record]) -> list[Figure]:
    """Return what the records amount to."""
    judged = [record for record in records if record.claims]
    claims = [claim for record in judged for claim in record.claims]
    loud = [record for record in judged if int(record.flight.rsplit("-", 1)[1]) % LOUD == LOUD - 1]
    return [
        share("studies with a false claim", [any(c.false for c in record.claims) for record in judged],
              Bar("at most", MOST_FALSE)),
        share("studies with a false claim, of those with an arm twice as loud",
              [any(c.false for c in record.claims) for record in loud]),
        share("false claims", [claim.false for claim in claims]),
        share("called equivalent", [claim.verdict == "equivalent" for claim in claims]),
        share("left inconclusive", [claim.verdict == "inconclusive" for claim in claims]),
        coverage("intervals that hold 0, beside their stated level", claims),
        share("studies refused", [record.refused is not None for record in records]),
    ]  # fmt: skip


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> Outcome:
    """Fly so many studies and count."""
    records = work(NAME, flown, flights(count), workers=workers, tell=tell)
    series = {"estimates": [[c.estimate, c.low, c.high, c.verdict] for one in records for c in one.claims]}
    return Outcome(NAME, QUESTION, len(records), figures(records), series=series)
