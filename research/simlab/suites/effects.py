"""How often is a planted difference found, with the right sign and size?

Worlds in which the knob moves the success rate by 0.5, 1, 2 or 3 standard deviations between seeds, up or down. The
design promises power at the smallest effect of interest; worlds whose true difference is exactly that are its test.
"""

from __future__ import annotations

from collections.abc import Sequence

from research.simlab.flight import Flight
from research.simlab.pool import Progress, silent, work
from research.simlab.records import Claim, Record, coverage, flown
from research.simlab.scores import Bar, Figure, counted, mean
from research.simlab.suites import Outcome
from research.simlab.topics import ASKS, Ask
from research.simlab.world import Planted, Table

NAME = "effects"
QUESTION = "How often is a planted difference found, with the right sign and size?"
EFFECT = 0.10
"""The rule planner's smallest effect of interest."""
SIZES = (0.5, 1.0, 2.0, 3.0)
"""True differences, in standard deviations between seeds, evaluation included."""
SEED_SD = 0.045
"""Two standard deviations between seeds (0.05 with the evaluation of 512 episodes) are the promised effect."""
TOTAL_SD = 0.05
MOST_SIGN_ERRORS = 0.01
SLACK = 0.05
"""What power may lack of the promise."""
_PAIRS: Sequence[Ask] = tuple(ask for ask in ASKS if len(ask.values) == 2)


def flights(count: int, first: int = 0) -> list[Flight]:
    """Return so many studies of planted differences: all sizes and both signs in turn."""
    return [_flight(number) for number in range(first, first + count)]


def _flight(number: int) -> Flight:
    size, sign = SIZES[number % len(SIZES)], 1 if number // len(SIZES) % 2 else -1
    ask = _PAIRS[number // (2 * len(SIZES)) % len(_PAIRS)]
    world = Planted(
        seed=2_000_000 + number,
        knobs=ask.knobs,
        base=ask.base,
        effects=(Table(ask.field, {ask.values[1]: sign * size * TOTAL_SD}),),
        centre=0.5,
        seed_sd=SEED_SD,
        steps=8,
    )
    return Flight(f"effects-{number}", ask.topic, world)


def figures(records: Sequence[Record]) -> list[Figure]:
    """Return what the records amount to."""
    claims = [claim for record in records for claim in record.claims]
    made = [claim for claim in claims if claim.difference]
    promised = [claim for claim in claims if claim.promised and abs(abs(claim.truth) - claim.promised) < 1e-6]
    return [
        counted("sign errors", sum(claim.false for claim in made), len(claims), Bar("at most", MOST_SIGN_ERRORS)),
        _power("power at the promised effect", promised, Bar("at least", _promise(promised) - SLACK)),
        *(_power(f"power at {size:g} sd", _of_size(claims, size)) for size in SIZES),
        *(_exaggeration(f"exaggeration at {size:g} sd", _of_size(made, size)) for size in SIZES),
        coverage("intervals that hold the truth, beside their stated level", claims),
        mean("run-hours a study", [record.run_hours for record in records]),
        counted("studies refused", sum(record.refused is not None for record in records), len(records)),
    ]


def _promise(claims: Sequence[Claim]) -> float:
    return next((claim.power for claim in claims if claim.power is not None), 0.8)


def _of_size(claims: Sequence[Claim], size: float) -> list[Claim]:
    return [claim for claim in claims if abs(abs(claim.truth) - size * TOTAL_SD) < 1e-6]


def _power(name: str, claims: Sequence[Claim], bar: Bar | None = None) -> Figure:
    return counted(name, sum(claim.difference * claim.truth > 0 for claim in claims), len(claims), bar)


def _exaggeration(name: str, made: Sequence[Claim]) -> Figure:
    """Return how much larger the estimates of claimed differences are than the truth (Gelman & Carlin 2014, type M)."""
    ratios = [abs(claim.estimate / claim.truth) for claim in made if claim.estimate is not None]
    return mean(name, ratios)


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> Outcome:
    """Fly so many studies and count."""
    records = work(NAME, flown, flights(count), workers=workers, tell=tell)
    claims = [claim for record in records for claim in record.claims]
    found = {f"{size:g}": figure for size in SIZES if (figure := _power("", _of_size(claims, size))).value is not None}
    series = {
        "power": {size: [one.value, one.low, one.high] for size, one in found.items()},
        "promise": {"size": EFFECT / TOTAL_SD, "power": _promise(claims)},
        "estimates": [[claim.truth, claim.estimate, claim.low, claim.high, claim.verdict] for claim in claims],
    }
    return Outcome(NAME, QUESTION, len(records), figures(records), series=series)
